"""What the pages on the field say besides their tables: README.md on published constants, tuned.md on equal tuning."""

from __future__ import annotations

from statistics import median

import pandas

from harness.runs import tune
from studies import pages
from studies.checks import WORDS, Page, compare_choice
from studies.field import analysis as field
from studies.field import other_base, tuned
from studies.field.analysis import AVG, PASS, Rows
from studies.transfer import analysis as transfer

PAGE, TUNED = Page("studies/field/README.md"), Page("studies/field/tuned.md")
ADVICE = Page("docs/which-method.md")
COUNTDOWN, COLORING = tuned.TASKS
HALF_OF_GRPO = "grpo(lr=1.75e-4,clip_high=0.28)"


def gains(rows: Rows) -> transfer.Effects:
    return transfer.effects_of(rows, PASS)


def prices(rows: Rows) -> transfer.Effects:
    return transfer.effects_of(rows, AVG)


def p_values(rows: Rows) -> dict[str, float]:
    """Return the corrected p-value in Pass@16 of each method with a positive difference."""
    return {method: rows[method][PASS]["p_holm"] for method, gain in gains(rows).items() if gain["mean"] > 0}


def verdicts(rows: Rows) -> dict[str, str]:
    """Return the verdict on each method that has one."""
    return {method: found for method, scores in rows.items() if (found := field.verdict(scores))}


def with_price(rows: Rows, methods: set[str]) -> set[str]:
    return {method for method in methods if is_below(prices(rows)[method])}


def is_below(effect: dict[str, float]) -> bool:
    return effect["high"] is not None and effect["high"] < 0


def candidates(matrix: str) -> pandas.DataFrame:
    """Return the candidates of a tuned matrix with their scores on the validation problems."""
    table = pages.table_below((pages.REFERENCE / matrix / "candidates.md").read_text()).set_index("candidate")
    return table.astype({AVG: float, "Pass@K": float})


def highest(rows: Rows, score: str) -> str:
    """Return the row with the highest mean of a score."""
    return max(rows, key=lambda row: float(rows[row][score]["mean"]["mean"]))


# README.md


def check_the_lowest_p_values_of_gains_with_published_constants() -> None:
    shown = [f"{min(p_values(rows).values()):.2f}" for rows in field.by_task().values()]
    PAGE.states(f"of a gain are {shown[0]} on Countdown", f"strength, and {shown[1]} on graph coloring, for GSPO")


def check_twelve_rows_gain_on_both_tasks() -> None:
    both = set(field.gaining([*field.by_task().values()]))
    paying = with_price(field.compared("field"), both)
    PAGE.states(
        f"{WORDS[len(both)].title()} rows have a higher Pass@16 than GRPO on both tasks",
        f"{WORDS[len(paying)]} of the {WORDS[len(both)]} have a lower Avg@K there",
    )


def check_the_highest_rows_are_the_same_in_the_second_run() -> None:
    for matrix, top in (("field", 12), ("field-coloring", 14)):
        runs = other_base.runs_of(matrix)
        first_top, second_top = ({*field.methods_of([rows])[:top]} for rows in runs)
        assert first_top == second_top
        assert not {"wins", "trades"} & {*verdicts(runs[0]).values(), *verdicts(runs[1]).values()}
    assert {*other_base.agreement_table(field.TASKS)["contradicted"]} == {"0"}


def check_the_gains_that_the_second_run_finds_again() -> None:
    runs = other_base.runs_of("field")
    first, second = (set(field.gaining([rows])) for rows in runs)
    again, lost = first & second, first - second
    means = [gains(rows) for rows in runs]
    assert with_price(runs[0], again) == again
    assert all(0 < means[1][method]["mean"] < means[0][method]["mean"] for method in lost)
    PAGE.states(
        f"On Countdown, the first run had {len(first)} gains, and these {WORDS[len(again)]} are found again.",
        f"have a price in the first run, and {WORDS[len(with_price(runs[1], again))]} in the second",
    )
    runs = other_base.runs_of("field-coloring")
    first, second = (set(field.gaining([rows])) for rows in runs)
    again = first & second
    paying = with_price(runs[1], again)
    losses = [-prices(runs[1])[method]["mean"] for method in paying]
    assert not with_price(runs[0], again)
    PAGE.states(
        f"On graph coloring, the first run had {len(first)} gains, and {len(again)} are found again",
        f"{WORDS[len(paying)]} have one, of {min(losses):.3f} to {max(losses):.3f}",
    )


def check_eight_methods_gain_in_both_runs_on_both_tasks() -> None:
    runs = [rows for matrix in field.TASKS for rows in other_base.runs_of(matrix)]
    assert {*field.gaining(runs)} == {
        *("pkpo", "maxrl", "passk", "clip_servo", "clip_predict", "opefo"),
        *("clip_b(share=0.02)", "clip_v(share=0.02)"),
    }


def check_one_effect_changed_between_the_runs() -> None:
    first, second = map(gains, other_base.runs_of("field-coloring"))
    changed = [method for method in second if not other_base.within_noise(first[method], second[method])]
    assert changed == ["stare_release"]


def check_the_verdicts_of_five_seeds_in_both_runs() -> None:
    either, both = 0, 0
    for matrix, changed in (("field-shortlist", "0"), ("field-shortlist-coloring", "1")):
        runs = other_base.runs_of(matrix)
        first, second = ({*verdicts(rows).items()} for rows in runs)
        either, both = either + len({method for method, _ in first | second}), both + len(first & second)
        assert {method for method, _ in first - second} <= {*field.gaining([runs[1]])}
        assert is_below(prices(runs[1])["unlikeliness"])
        table = other_base.agreement_table({matrix: "task"}).set_index("score")
        assert {*table["contradicted"]} == {"0"}
        assert table["changed"][PASS] == changed
    PAGE.states(
        f"Of the {either} pairs of a method and a task with a verdict in either run, {WORDS[both]} have the same",
    )


# tuned.md: new seeds


def check_the_rules_name_the_methods_with_new_seeds() -> None:
    for matrix in tuned.TASKS:
        rows = tuned.by_name(matrix)
        of_rule_3, of_rule_5 = (field.loaded(f"{matrix}{end}") for end in (field.NEW_SEEDS, tuned.ALL_GAINS))
        assert of_rule_3.methods == ["grpo", *field.named_for_seeds([rows]), "clip_b", "clip_v"]
        assert of_rule_5.methods[: len(of_rule_3.methods)] == of_rule_3.methods
        assert {*of_rule_5.methods} == {*of_rule_3.methods, *field.gaining([rows])}
        assert of_rule_3.tune.candidates == tuned.choice(matrix)["candidates"]
        assert of_rule_3.seeds == of_rule_5.seeds
        assert {*of_rule_3.seeds}.isdisjoint(field.loaded(matrix).seeds)


def check_every_row_with_new_seeds_has_five_and_none_exceeds_the_base_model() -> None:
    for matrix, methods in zip((*tuned.RULE_3, *tuned.RULE_5), (12, 12, 17, 23), strict=True):
        rows = tuned.by_name(matrix)
        assert len(rows) == 2 + methods
        assert {scores[PASS]["seeds"] for scores in rows.values()} == {5}
        assert highest(rows, PASS) == field.BASE_MODEL


def check_what_the_winners_by_rule_3_may_lose_on_graph_coloring() -> None:
    effects = prices(tuned.by_name(f"{COLORING}{field.NEW_SEEDS}"))
    lows = [f"{effects[name]['low']:.3f}" for name in ("rs_grpo", "clip_v", "clip_b")]
    TUNED.states(
        f"the lower ends are {lows[0]}, {lows[1]} and {lows[2]}",
        f"{sum(price['mean'] > 0 for price in effects.values())} of its 12 methods have a higher Avg@K than GRPO",
    )


def check_what_rule_5_decides_on_countdown() -> None:
    rows = tuned.by_name(f"{COUNTDOWN}{tuned.ALL_GAINS}")
    shown = {name: (f"{gain['mean']:.3f}", f"{-prices(rows)[name]['mean']:.3f}") for name, gain in gains(rows).items()}
    in_order = [shown[name] for name in ("maxrl", "passk", "clip_v", "kl_cov", "kl_cov_release")]
    (maxrl, maxrl_price), (passk, passk_price), (clip_v, clip_v_price), (kl_cov, kl_price), (release, _) = in_order
    assert shown["kl_cov_release"][1] == kl_price
    TUNED.states(
        f"MaxRL {maxrl}, Pass@k training {passk}, Clip_V {clip_v}",
        f"and KL-Cov, in both of its forms, {kl_cov} and {release}",
        f"are {shown['pkpo'][1]}, {maxrl_price}, {passk_price}, {clip_v_price} and {kl_price}",
    )
    gaining = field.gaining([rows])
    assert gaining[-1] == "entropy_bonus"
    undecided = [p_values(rows)[name] for name in gaining if not field.verdict(rows[name])]
    TUNED.states(
        f"Among the {WORDS[len(gaining)]} methods whose uncorrected intervals exclude 0",
        f"corrected p-values of {min(undecided):.2f} to {max(undecided):.2f}",
    )


def check_the_entropy_bonus_paid_in_the_earlier_tables() -> None:
    for matrix in (COUNTDOWN, tuned.SHORTLIST):
        assert tuned.chosen(matrix)["entropy_bonus"] == tuned.chosen(f"{COUNTDOWN}{field.NEW_SEEDS}")["entropy_bonus"]
        assert is_below(prices(tuned.by_name(matrix))["entropy_bonus"])


def check_what_rule_5_decides_on_graph_coloring() -> None:
    rows = tuned.by_name(f"{COLORING}{tuned.ALL_GAINS}")
    gained = {*field.gaining([tuned.by_name(COLORING)])}
    decided = verdicts(rows)
    assert {*decided} == gained - {"erc"}
    assert gained <= {*field.gaining([rows])}
    trading = {name for name, found in decided.items() if found == "trades"}
    means = [gains(rows)[name]["mean"] for name in decided]
    losses = [-prices(rows)[name]["mean"] for name in trading]
    of_both = ("passk", "maxrl", "outcome_exploration", "unlikeliness")
    assert {f"{prices(rows)[name]['mean']:.2f}" for name in of_both} == {"-0.03"}
    lows = [-prices(rows)[name]["low"] for name in of_both]
    TUNED.states(
        f"{WORDS[len(decided)]} methods gain {min(means):.2f} to {max(means):.2f} in Pass@16",
        f"for {min(losses):.2f} to {max(losses):.2f} in Avg@K",
        f"all but ERC (p {rows['erc'][PASS]['p_holm']:.3f}) survive the correction: {WORDS[len(decided)]} methods",
        f"is about 0.03 below GRPO's, and losses down to {min(lows):.2f} to {max(lows):.2f} remain possible",
    )


def check_grpo_at_half_of_its_rate_takes_much_of_the_gains() -> None:
    rows, decided = field.compared(tuned.HALF_RATE), tuned.by_name(f"{COLORING}{tuned.ALL_GAINS}")
    chosen = tuned.chosen(COLORING)
    others = {method: scores for method, scores in rows.items() if scores[PASS]["p_holm"] is not None}
    assert {*others} == {chosen[name] for name in verdicts(decided)}
    corrected = {method: scores[PASS]["p_holm"] for method, scores in others.items()}
    assert min(corrected, key=lambda method: corrected[method]) == chosen["maxrl"]
    kept = [scores[PASS]["difference"] for scores in others.values()]
    means = [each["mean"] for each in kept]
    brought = rows[HALF_OF_GRPO][PASS]["mean"]["mean"] - decided[field.BASELINE][PASS]["mean"]["mean"]
    TUNED.states(
        f"half of the learning rate alone brings GRPO {brought:.3f}",
        f"keep gains of {min(means):.2f} to {max(means):.2f}, of which none survives",
        f"{WORDS[sum(each['low'] > 0 for each in kept)]} of them exclude 0 without a correction, and none survives it",
        f"(the lowest p is {min(corrected.values()):.2f}, for MaxRL)",
    )
    winners = ("rs_grpo", "clip_v", "clip_b")  # by rule 3
    assert all(brought > decided[name][PASS]["difference"]["mean"] / 2 for name in winners)
    of_winners = [rows[chosen[name]][PASS] for name in winners]
    assert not verdicts(rows)
    means = [each["difference"]["mean"] for each in of_winners]
    lowest = min(of_winners, key=lambda each: float(each["p"]))
    assert lowest is of_winners[0]
    TUNED.states(
        f"keep gains of {min(means):.2f} to {max(means):.2f}, of which none survives Holm's correction over three rows",
        f"(RS-GRPO: p {len(winners) * lowest['p']:.3f})",
    )


def check_the_winners_on_graph_coloring_are_above_that_grpo_in_validation() -> None:
    table, chosen = candidates(COLORING), tuned.chosen(COLORING)
    scores = table[[AVG, "Pass@K"]]
    slower, ours = scores.loc[HALF_OF_GRPO], scores.loc[chosen[field.BASELINE]]
    limit = scores.loc["grpo", AVG] - field.SLACK
    of_clips = [scores.loc[chosen[name], AVG] for name in ("clip_b", "clip_v")]
    TUNED.states(
        f"was {slower[AVG]:.3f} instead of {ours[AVG]:.3f}",
        f"(Pass@16: {slower['Pass@K']:.3f} instead of {ours['Pass@K']:.3f})",
        f"({of_clips[0]:.3f} and {of_clips[1]:.3f} in Avg@K, where {limit:.3f} was asked for)",
    )
    assert (scores.loc[[chosen[name] for name in ("rs_grpo", "clip_v", "clip_b")]] > slower).all(axis=None)
    for clip in ("clip_v", "clip_b"):
        of_clip = scores[table["method"] == clip]
        assert len(of_clip) == 4
        assert (of_clip[AVG] < limit).all()
    assert scores.loc[chosen["rs_grpo"], AVG] >= limit


def check_the_advice() -> None:
    """Rounded more than the tables."""
    tasks = countdown, coloring = [*tuned.decided().values()]
    of_all = [gains(coloring)[name]["mean"] for name, found in verdicts(coloring).items() if found]
    suited = tuned.suited()
    assert suited == {
        "Pass@K": {"passk", "maxrl", "pkpo", "clip_v"},
        "accuracy": {"kl_cov", "gspo", "clip_b", "clip_servo", "qae"},
        "both": {"gspo", "kl_cov"},
    }
    (low, high), (low_coloring, high_coloring), (most, least) = (
        (min(means), max(means))
        for means in (
            [effects[name]["mean"] for name in suited["Pass@K"]]
            for effects in (gains(countdown), gains(coloring), prices(countdown))
        )
    )
    ADVICE.states(
        f"{WORDS[len(of_all)].title()} methods gain {min(of_all):.2f} to {max(of_all):.2f} over the faster GRPO",
        f"they gain {low:.2f} to {high:.2f} in Pass@16 and lose {-least:.2f} to {-most:.2f} in Avg@K",
        f"on graph coloring they gain {low_coloring:.2f} to {high_coloring:.2f}",
    )
    winning = [{name for name in suited["accuracy"] if verdicts(rows).get(name) == "wins"} for rows in tasks]
    assert winning == [{"kl_cov"}, suited["accuracy"] - {"kl_cov"}]


# tuned.md: three seeds


def check_no_method_has_a_verdict_with_three_seeds() -> None:
    tasks = [tuned.by_name(matrix) for matrix in tuned.TASKS]
    assert [len(rows) for rows in tasks] == [65, 65]
    countdown, coloring = map(p_values, tasks)
    assert min(coloring, key=lambda name: coloring[name]) == "maxrl"
    TUNED.states(f"{min(countdown.values()):.2f} (Countdown) and {coloring['maxrl']:.2f} (graph coloring, MaxRL)")


def check_five_methods_gain_on_both_tasks() -> None:
    countdown, coloring = (tuned.by_name(matrix) for matrix in tuned.TASKS)
    both = field.gaining([countdown, coloring])
    assert {*both} == {"pkpo", "passk", "maxrl", "opefo", "clip_predict"} == {*field.gaining([countdown])}
    others = len(field.gaining([coloring])) - len(both)
    TUNED.states(f"{WORDS[others].title()} more gain on graph coloring only")
    losses = [-prices(countdown)[name]["mean"] for name in both]
    assert with_price(countdown, {*both}) == {*both}
    TUNED.states(f"The five that gain lose Avg@K, {min(losses):.3f} to {max(losses):.3f}")


def check_the_limit_of_rule_3_failed_on_graph_coloring() -> None:
    rows = tuned.by_name(COLORING)
    assert highest(rows, AVG) == field.BASELINE
    near = {name for name, price in prices(rows).items() if price["mean"] >= -field.SLACK}
    gaining = {*field.gaining([rows])}
    TUNED.states(
        f"only {len(near)} of 63 methods were within 0.02 of it",
        f"of the {WORDS[len(gaining)]} that gained Pass@16, it named {WORDS[len(near & gaining)]}",
    )


def check_what_the_rule_of_tuning_excludes() -> None:
    compare_choice(COUNTDOWN, candidates=256)
    table = candidates(COUNTDOWN)
    others = table[table["method"] != field.BASELINE]
    highest_of = others[AVG].groupby(others["method"]).max()
    without = highest_of.index[highest_of < table.loc["grpo", AVG] - field.SLACK]
    assert "clip_v" in without
    # Of a method without a candidate that fits, the highest is marked as chosen, and not as too low.
    excluded = (others["choice"] == tune.TOO_LOW).sum() + len(without)
    TUNED.states(
        f"at least {excluded} of the {len(others)} candidates of the 63 methods fail it",
        f"For {WORDS[len(without)]} methods, Clip_V among them, all four do",
    )
    chosen = tuned.choice(COUNTDOWN)["methods"]
    assert "lr=1.75e-4" in chosen[field.BASELINE]
    TUNED.states(f"{len(at_half_rate(COUNTDOWN))} of the 63 chose it, and so did GRPO")
    assert chosen["clip_b"] == "clip_b(share=0.01)"


def at_half_rate(matrix: str) -> set[str]:
    """Return the methods, apart from GRPO, for which tuning chose half of the field's learning rate."""
    methods = tuned.choice(matrix)["methods"]
    return {name for name, spec in methods.items() if "lr=1.75e-4" in spec and name != field.BASELINE}


def check_tuning_chooses_otherwise_on_graph_coloring() -> None:
    same, methods = tuned.same_choices()
    choice = tuned.choice(COLORING)
    assert choice["candidates"] == field.loaded(COLORING).tune.candidates == tuned.choice(COUNTDOWN)["candidates"]
    assert "lr=1.75e-4" not in choice["methods"][field.BASELINE]
    table = candidates(COLORING)
    usual, half = table.loc["grpo"], table.loc["grpo(lr=1.75e-4)"]
    assert (usual["choice"], half["choice"]) == ("", tune.TOO_LOW)
    excluded = (table.loc[table["method"] != field.BASELINE, "choice"] == tune.TOO_LOW).sum()
    TUNED.states(
        f"the same candidate on both tasks for {same} of {methods} methods",
        f"(from {usual['Pass@K']:.3f} to {half['Pass@K']:.3f}, with the published clips)",
        f"lowers its Avg@K from {usual[AVG]:.3f} to {half[AVG]:.3f}",
        f"Only {len(at_half_rate(COLORING))} of the 63 other methods chose it",
        f"At least {excluded} of the 252 candidates",
    )


# tuned.md: another base model, and the shortlist


def check_four_of_five_gains_are_found_again_with_another_base_model() -> None:
    runs = other_base.runs_of(COUNTDOWN)
    table = other_base.agreement_table(other_base.TUNED)
    assert {*table["contradicted"], *table["changed"]} == {"0"}
    first, second = ({*field.gaining([rows])} for rows in runs)
    assert (len(first), first - second) == (5, {"opefo"})
    new = {"clip_v", "gspo", "kl_cov_release", "siren", "repo_r", "vespo", "top_entropy"}
    assert second - first == new
    before, after = map(gains, runs)
    assert {method for method in second if before[method]["mean"] < 0} == {"repo_r"}
    means = [after[method]["mean"] for method in new - {"clip_v"}]
    lowest = min(p_values(runs[1])[method] for method in second)
    TUNED.states(
        f"and six from {min(means):.3f} to {max(means):.3f}",
        f"no gain survives the correction (lowest p-value {lowest:.2f})",
    )
    for rows in runs:
        top = field.methods_of([rows])[:3]
        assert top == ["pkpo", "maxrl", "passk"]
        assert with_price(rows, {*top}) == {*top}


def check_how_far_the_other_base_model_moves_the_differences() -> None:
    before, after = (gains(rows) for rows in other_base.runs_of(COUNTDOWN))
    moves = {method: abs(before[method]["mean"] - after[method]["mean"]) for method in before}
    most = max(moves, key=lambda method: moves[method])
    assert most == "w_reinforce"
    widths = [median(other_base.half_width(run[method]) for method in before) for run in (before, after)]
    TUNED.states(
        f"half of the {len(moves)} means moved by less than {median(moves.values()):.3f}",
        f"in the median ±{widths[0]:.3f} in the first run and ±{widths[1]:.3f} in the second",
        f"W-REINFORCE's by {moves[most]:.3f}, has ±{other_base.half_width(before[most]):.3f} in the first",
    )


def check_the_shortlist_has_one_verdict() -> None:
    compare_choice(tuned.SHORTLIST, candidates=48)
    rows = tuned.by_name(tuned.SHORTLIST)
    assert tuned.chosen(tuned.SHORTLIST)[field.BASELINE] == "grpo(lr=1.75e-4)"
    assert {scores[PASS]["seeds"] for scores in rows.values()} == {5}
    assert field.gaining([rows]) == ["clip_v", "entropy_bonus", "top_entropy"]
    of_clip_v, of_top_entropy = (p_values(rows)[name] for name in ("clip_v", "top_entropy"))
    paying = with_price(rows, {*prices(rows)})
    much = [name for name in paying if prices(rows)[name]["mean"] < -field.SLACK]
    TUNED.states(
        f"whose uncorrected intervals exclude 0, are {of_clip_v:.2f} and {of_top_entropy:.2f}",
        f"{WORDS[len(paying)]} methods are significantly below GRPO in Avg@K",
        f"{WORDS[len(much)]} of them by more than 0.02",
    )
