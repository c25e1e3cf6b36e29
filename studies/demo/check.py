"""What README.md and docs/evidence/demo.md say of the demo besides their tables and the curves."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas

from harness import config
from harness.rollout import digests
from harness.runs import tune
from studies import pages
from studies.checks import Page, apart, column, compare_choice, prose, section
from studies.demo import power
from studies.field import tuned

README, PAGE = Page("README.md"), Page("docs/evidence/demo.md")
CLIPS = ("clip_b", "clip_v")
INSTRUCTION_SETS = ("demo", "demo-avx2")  # the same demo twice, which differs in the last digits of floats


def check_every_score_of_the_readme_has_its_place_in_a_table() -> None:
    assert not re.findall(r"\b\d\.\d\d\d\b", prose(pages.FIGURE.sub("", README.path.read_text())))


def check_the_base_models_are_named() -> None:
    kept = json.loads((pages.REFERENCE / "demo/base_model.json").read_text())["base_models"]
    digest, other = (base_model["digest"] for base_model in kept)
    assert len(digest) == len(other) == digests.SHOWN
    assert digest != other
    PAGE.states(f"base model `{digest}`", f"the same machine makes base model `{other}`")


def check_the_findings_hold_with_both_instruction_sets() -> None:
    for folder in INSTRUCTION_SETS:
        averages, passed, answers = (column(folder, name) for name in ("Avg@K", "Pass@16", "distinct right"))
        # GRPO pays for accuracy with diversity.
        assert averages["grpo"][1] > averages["base model"][2]
        assert passed["grpo"][2] < passed["base model"][1]
        # All that win have more distinct right answers.
        winning = [method for method, found in pages.verdicts(folder).items() if found == "wins"]
        assert all(answers[method][0] > answers["grpo"][2] for method in winning)
        # Clip_B has the highest Pass@16 after training, and no method keeps that of the base model.
        base_model, _, _ = passed.pop("base model")
        assert max(passed, key=lambda method: passed[method][0]) == "clip_b"
        assert all(high < base_model for _, _, high in passed.values())


def check_the_finding_does_not_depend_on_the_trainer() -> None:
    for name in ("Avg@K", "Pass@16", "entropy, end"):
        scores = column("demo-trl", name)
        for method in ("grpo", "clip_b"):
            assert not apart(scores[f"{method}, own"], scores[f"{method} (trained by trl), trl"])
    gains = column("demo-trl", "Pass@16 - grpo")
    assert all(gains[row][1] > 0 for row in ("clip_b, own", "clip_b (trained by trl), trl"))


def check_no_control_beats_tuned_grpo_in_avg_at_k() -> None:
    baseline = "grpo(lr=3.5e-4)"
    differences, gains = (column("demo-tuned", f"{score} - {baseline}") for score in ("Avg@K", "Pass@16"))
    del differences["base model"]
    assert len(differences) == 6
    assert not any(low > 0 for _, low, _ in differences.values())
    for clip in CLIPS:
        row = f"{baseline}+{clip}(share=0.02)"
        assert gains[row][1] > 0 > differences[row][2]


def check_all_methods_were_tuned_to_half_the_rate() -> None:
    compare_choice("demo-tuned", candidates=42)
    assert all("lr=3.5e-4" in spec for spec in tuned.choice("demo-tuned")["methods"].values())


def check_the_strengths_follow_from_the_tuning() -> None:
    """By the rule of `entrobench tune`, from the candidates in the table of the round that chose them."""
    demo, present = config.load_config("demo"), config.load_config("demo-tuned")
    averages, passed = (
        {spec: float(text.split()[0]) for spec, text in pages.reference_table("demo-tune")[name].items()}
        for name in ("Avg@K", "Pass@16")
    )
    specs = averages.keys() - {"base model"}
    candidates = [tune.Candidate(spec.partition("(")[0], spec, averages[spec], passed[spec]) for spec in specs]
    assert len(candidates) == 5 * 3 + 1  # GRPO has its published constants there, and CE-GPPO is missing
    chosen = tune.chosen_candidates(candidates, averages["grpo"], demo.tune.slack)
    assert chosen.pop("grpo").spec == "grpo"
    assert len(chosen) == 5
    for method, candidate in chosen.items():
        [(key, value)] = re.findall(r"(\w+)=([\d.e-]+)", candidate.spec)
        assert demo.method_options[method][key] == float(value), candidate.spec
        # The space of the present round has the two strengths with the highest Pass@16 of that one.
        of_method = sorted((spec for spec in specs if spec.partition("(")[0] == method), key=lambda spec: -passed[spec])
        assert {*of_method[:2]} == specs & {*present.tune.candidates[method]}


def check_the_time_is_that_of_the_earlier_design_scaled() -> None:
    train, seeds, evaluation = (getattr(config.load_config("demo"), name) for name in ("train", "seeds", "eval"))
    minutes, seconds = divmod(round(60 * power.minutes_of(train.steps, len(seeds), evaluation.problems)), 60)
    assert f"{minutes} min {seconds} s" in prose(section(PAGE.path.read_text(), "Speed"))
    assert minutes == 7
    README.states("seven to eleven minutes on two cores")


def check_the_curves_end_at_the_numbers_of_the_table() -> None:
    curves = pandas.read_csv(pages.CURVES).set_index(["metric", "method", "step"])["mean"]
    last = curves.index.get_level_values("step").max()
    rows = {row["method"]: row for row in json.loads((pages.REFERENCE / "demo/leaderboard.json").read_text())}
    start = rows.pop("base model")["pass_at_k"]["16"]["mean"]
    for method, row in rows.items():
        ends = [(0, pages.PASS_AT_16, start), (last, pages.PASS_AT_16, row["pass_at_k"]["16"]["mean"])]
        for step, metric, mean in [*ends, (last, pages.ENTROPY, row["entropy_final"]["mean"])]:
            assert abs(curves[metric, method, step] - mean) < 1e-5, (metric, method, step)


def check_the_picture_shows_the_curves() -> None:
    """A curve's heights are a linear function of its values, the same function for all curves of a panel."""
    curves = pandas.read_csv(pages.CURVES).set_index(["metric", "method"])["mean"]
    methods = [method for method in pages.STYLES if (pages.ENTROPY, method) in curves.index]
    drawn = [curve for curve in heights(pages.PICTURE.read_text()) if len(curve) > 2]
    assert len(drawn) == 2 * len(methods)
    for metric, panel in ((pages.PASS_AT_16, drawn[: len(methods)]), (pages.ENTROPY, drawn[len(methods) :])):
        values = np.concatenate([curves[metric, method].to_numpy() for method in methods])
        assert np.corrcoef(values, np.concatenate(panel))[0, 1] < -1 + 1e-6


def heights(svg: str) -> list[list[float]]:
    """Return the y coordinates of each curve that matplotlib drew, from the top."""
    curves = re.findall(r'<g id="line2d_\d+">\s*<path d="(M[^"]*)" clip-path="[^"]*" style="[^"]*stroke: #', svg)
    return [[float(y) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", curve)] for curve in curves]
