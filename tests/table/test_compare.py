import csv
import dataclasses
import io
import itertools
import json
from collections.abc import Mapping

import numpy as np
import pytest
from frames import comparison, joined_frames, made_up_frames
from intervals import limits
from known import known

from harness.base.errors import UserError
from harness.table import compare, formats
from harness.table.compare import Comparison, comparisons
from harness.table.render import as_csv, as_json
from harness.table.scores import pooled
from harness.table.statistics import (
    Estimate,
    crossed_interval,
    crossed_p_value,
    detectable,
    difference_interval,
    holm,
    iqm,
    share_interval,
)


def draw(share: float, seeds: int, problems: int = 12, first: int = 0) -> dict[int, np.ndarray]:
    random = np.random.default_rng(int(1000 * share) + first)
    return {seed: (random.random((problems, 8)) < share).astype(int) for seed in range(seeds)}


def of(compared: list[Comparison], method: str, score: str = "Avg@K", task: str = "countdown") -> Comparison:
    (one,) = (each for each in compared if (each.method, each.score, each.task) == (method, score, task))
    return one


def scores(right: Mapping[int, np.ndarray]) -> np.ndarray:
    return np.array([right[seed].mean(axis=1) for seed in sorted(right)])


RIGHT = {"grpo": draw(0.3, 3), "clip_b": draw(0.6, 3), "clip_v": draw(0.58, 3), "ppo": draw(0.31, 3)}


def test_comparisons_by_paired_differences() -> None:
    compared = comparisons(made_up_frames(RIGHT), "grpo", {"countdown": 4})
    assert [(each.method, each.score) for each in compared] == [
        (method, score) for score in ("Avg@K", "Pass@4") for method in RIGHT
    ]
    base = scores(RIGHT["grpo"])
    p_values = [crossed_p_value(scores(RIGHT[method]) - base) for method in ("clip_b", "clip_v", "ppo")]
    adjusted = holm([p for p in p_values if p is not None])
    for i, method in enumerate(("clip_b", "clip_v", "ppo")):
        one, ours = of(compared, method), scores(RIGHT[method])
        assert one.difference == difference_interval(ours - base)
        assert (one.p, one.p_holm) == (p_values[i], adjusted[i])
        assert one.detectable == detectable(ours - base)
        share = np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a, b in zip(ours.flat, base.flat, strict=True)])
        assert known(one.improvement).mean == pytest.approx(share)
        assert known(one.iqm).mean == pytest.approx(iqm(ours.mean(axis=1)))
        assert one.mean == share_interval(ours)
        assert one.seeds == 3
    grpo = of(compared, "grpo")
    assert (grpo.difference, grpo.p, grpo.p_holm, grpo.improvement, grpo.detectable) == (None,) * 5


def test_ranks_of_methods_that_intervals_do_not_tell_apart() -> None:
    compared = comparisons(made_up_frames(RIGHT), "grpo", {"countdown": 4})
    ranks = {method: (of(compared, method).rank_best, of(compared, method).rank_worst) for method in RIGHT}
    assert ranks == {"grpo": (3, 4), "clip_b": (1, 2), "clip_v": (1, 2), "ppo": (3, 4)}
    assert {method for method in RIGHT if of(compared, method).best} == {"clip_b", "clip_v"}


def test_comparisons_in_another_order() -> None:
    compared = comparisons(made_up_frames(RIGHT), "grpo", {"countdown": 4})
    turned = {method: dict(reversed(RIGHT[method].items())) for method in reversed(RIGHT)}
    again = comparisons(made_up_frames(turned), "grpo", {"countdown": 4})
    assert sorted(again, key=repr) == sorted(compared, key=repr)


def test_comparisons_over_shared_seeds() -> None:
    right = {"grpo": RIGHT["grpo"], "clip_b": {s: RIGHT["clip_b"][s] for s in (1, 2)}, "ppo": {5: RIGHT["ppo"][0]}}
    compared = comparisons(made_up_frames(right), "grpo", {"countdown": 4})
    clip, ppo = of(compared, "clip_b"), of(compared, "ppo")
    assert clip.seeds == 2
    assert clip.difference == difference_interval(scores(right["clip_b"]) - scores(RIGHT["grpo"])[1:])
    assert (ppo.seeds, ppo.difference, ppo.p, ppo.improvement) == (0, None, None, None)
    assert (ppo.rank_best, ppo.rank_worst) == (1, 3)


def test_comparisons_of_one_seed() -> None:
    right = {"grpo": draw(0.1, 1), "clip_b": draw(0.9, 1)}
    compared = comparisons(made_up_frames(right), "grpo", {"countdown": 4})
    assert {(each.rank_best, each.rank_worst, each.p, each.best) for each in compared} == {(1, 2, None, True)}
    assert any("One seed" in note for note in compare.comparison_notes(compared))


@pytest.mark.parametrize("missing", ["grpo", "clip_b", "both"])
def test_comparisons_without_done_cells(missing: str) -> None:
    right = {method: {} if missing in (method, "both") else RIGHT[method] for method in ("grpo", "clip_b")}
    compared = comparisons(made_up_frames(right), "grpo", {"countdown": 4})
    for each in compared:
        assert (each.mean is None) == (each.iqm is None) == (each.rank_best is None) == (not right[each.method])
        assert (each.difference, each.p) == (None, None)
        assert each.best == bool(right[each.method])
    text = compare.render_comparisons(compared, "md")
    assert "Methods without a rank have no seed that is done." in text
    assert "--" in formats.render_latex(compared)


def test_comparisons_without_the_baseline() -> None:
    compared = comparisons(made_up_frames({"clip_b": RIGHT["clip_b"], "ppo": RIGHT["ppo"]}), "grpo", {"countdown": 4})
    assert (of(compared, "clip_b").rank_worst, of(compared, "ppo").rank_best) == (1, 2)
    assert {each.difference for each in compared} == {None}


def test_comparisons_refuse_other_problems() -> None:
    right = {"grpo": {}, "clip_b": RIGHT["clip_b"], "ppo": draw(0.3, 3, problems=13)}
    with pytest.raises(UserError, match="ppo seed 0 was not evaluated on the same problems"):
        comparisons(made_up_frames(right), "grpo", {"countdown": 4})


# Several tasks


def test_comparisons_weigh_tasks_of_any_size_alike() -> None:
    small = {"grpo": draw(0.2, 3, 5), "clip_b": draw(0.5, 3, 5)}
    large = {"grpo": draw(0.7, 3, 40), "clip_b": draw(0.6, 3, 40)}
    both = joined_frames(made_up_frames(small, "aime"), made_up_frames(large, "amc"))
    compared = comparisons(both, "grpo", {"aime": 4, "amc": 4})
    one = of(compared, "clip_b", task="all tasks")
    means = {m: (scores(small[m]).mean(), scores(large[m]).mean()) for m in small}
    assert known(one.mean).mean == pytest.approx(np.mean(means["clip_b"]))
    assert known(one.difference).mean == pytest.approx(np.mean(means["clip_b"]) - np.mean(means["grpo"]))
    of_tasks = [known(of(compared, "clip_b", task=task).improvement).mean for task in ("aime", "amc")]
    assert known(one.improvement).mean == pytest.approx(np.mean(of_tasks))
    runs = np.array([[x.mean() for x in right["clip_b"].values()] for right in (small, large)])
    assert known(one.iqm).mean == pytest.approx(iqm(runs))
    assert [each.score for each in compared if each.task == "all tasks"] == ["Avg@K", "Avg@K", "Pass@4", "Pass@4"]
    unlike = comparisons(both, "grpo", {"aime": 4, "amc": 8})
    assert [each.score for each in unlike if each.task == "all tasks"] == ["Avg@K", "Avg@K", "Pass@k", "Pass@k"]


@pytest.mark.slow
@pytest.mark.parametrize("seed_sd", [0.0, 0.02, 0.1])
def test_pooled_interval_coverage(seed_sd: float) -> None:
    """Three tasks of unlike size and level; seeds are better or worse on all of them."""
    random, sizes, levels = np.random.default_rng(0), (30, 30, 200), (0.2, 0.3, 0.6)
    held = 0
    for _ in range(1000):
        seed_S1 = random.normal(0, seed_sd, (3, 1))
        tasks = [
            level + seed_S1 + random.normal(0, 0.2, size) + random.normal(0, 0.1, (3, size))
            for size, level in zip(sizes, levels, strict=True)
        ]
        mean, low, high = limits(crossed_interval(pooled(tasks)))
        assert mean == pytest.approx(np.mean([x_SJ.mean() for x_SJ in tasks]))
        held += low <= sum(levels) / 3 <= high
    assert 0.93 <= held / 1000 <= 0.98


def test_comparisons_of_several_trainings() -> None:
    right = {"grpo": RIGHT["grpo"], "clip_b": RIGHT["clip_b"]}
    places = itertools.product(("easy", "hard"), ("aime", "amc"))
    both = joined_frames(*(made_up_frames(right, task, trained_on) for trained_on, task in places))
    compared = comparisons(both, "grpo", {"aime": 4, "amc": 4})
    labels = list(dict.fromkeys(each.task for each in compared))
    assert labels == [
        f"{task} (trained on {trained_on})" for trained_on in ("easy", "hard") for task in ("aime", "amc", "all tasks")
    ]
    assert len(compare.render_comparisons(compared, "md").split("**")) // 2 == 2 * len(labels)


# Showing

ROW = comparison(
    "clip|b", mean=Estimate(0.5, 0.4, 0.6), iqm=Estimate(0.5, 0.45, 0.55), difference=Estimate(-0.125, -0.25, 0.0),
    p=0.05, p_holm=0.0001, improvement=Estimate(0.25, 0.125, 0.375), detectable=0.2, rank_best=1, rank_worst=2,
    best=True, ranked=2, verdict="loses",
)  # fmt: skip
BASE = dataclasses.replace(
    ROW, method="grpo", verdict="", difference=None, p=None, p_holm=None, improvement=None, detectable=None, best=False
)


def test_render_comparisons_as_tables() -> None:
    lines = compare.render_comparisons([BASE, dataclasses.replace(ROW, rank_worst=1)], "md").splitlines()
    assert lines[:6] == [
        "**countdown, tiny: Avg@K**",
        "",
        "| method | IQM | difference | p | p, Holm | verdict | P(better) | detectable | rank | shared seeds |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| grpo | 0.500 ±0.050 | baseline |  |  |  |  |  | 1-2 of 2 | 3 |",
        r"| clip\|b | 0.500 ±0.050 | -0.125 ±0.125 | 0.050 | <0.001 | loses | 0.250 ±0.125 | 0.200 | 1 of 2 | 3 |",
    ]
    text = compare.render_comparisons([BASE, ROW], "table")
    cells = ["clip|b", "0.500", "±0.050", "-0.125", "±0.125", "0.050", "<0.001", "loses", "0.250", "±0.125", "0.200"]
    assert [*cells, "1-2", "of", "2", "3"] in [line.split() for line in text.splitlines()]


def test_render_comparisons_as_data() -> None:
    listed = json.loads(as_json([BASE, ROW]))
    assert (listed[0]["p"], listed[1]["p"], listed[1]["rank_worst"]) == (None, 0.05, 2)
    assert listed[1]["improvement"] == {"mean": 0.25, "low": 0.125, "high": 0.375}
    base, row = csv.DictReader(io.StringIO(as_csv([BASE, ROW])))
    assert (base["p"], row["p"], row["difference.low"], row["method"]) == ("", "0.05", "-0.25", "clip|b")
