"""What the page on the warm start says besides its table."""

from __future__ import annotations

from studies.checks import Page, any_apart, column

PAGE = Page("studies/warm-start/README.md")
GRPO, CLIP_B, RS_GRPO = "grpo", "clip_b(share=0.02)", "rs_grpo"
MODELS = ("countdown-short", "countdown-tiny", "countdown-long")


def check_the_ranking_changes_with_the_warm_start() -> None:
    passed = {row: mean for row, (mean, _, _) in column("warm-start", "Pass@16").items()}
    orders = [sorted((GRPO, CLIP_B, RS_GRPO), key=lambda method: passed[f"{method}, {model}"]) for model in MODELS]
    assert orders == [[GRPO, RS_GRPO, CLIP_B], [GRPO, RS_GRPO, CLIP_B], [GRPO, CLIP_B, RS_GRPO]]
    above = passed[f"{RS_GRPO}, {MODELS[-1]}"] - passed[f"{CLIP_B}, {MODELS[-1]}"]
    PAGE.states(f"RS-GRPO's mean is {above:.3f} above Clip_B's after the longest warm start")


def check_no_gain_depends_on_the_warm_start() -> None:
    gains = column("warm-start", "Pass@16 - grpo")
    for method in (CLIP_B, RS_GRPO):
        assert not any_apart([gains[f"{method}, {model}"] for model in MODELS])
