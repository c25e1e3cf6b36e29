"""The figures of a training: what its steps have recorded, and where their time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.page.figures import Figure, Styles, by_method, finite, over_steps
from harness.page.story import INSIDE, Told, Training

QUADRANTS = {  # what a token's advantage is, and where its S* lies
    "positive_above": "A > 0, S* > N",
    "positive_below": "A > 0, S* < N",
    "negative_above": "A < 0, S* > N",
    "negative_below": "A < 0, S* < N",
}
PHASES = ("rollout", "verify", "stats", "update", "critic", "sync", "dynamics", "evaluate")  # the order of bars
COLOURS = 8


def training_figures(training: Training, styles: Styles) -> dict[str, list[Figure]]:
    """Returns the figures over the training steps by the titles of their groups; what was not recorded has none."""
    groups = by_method(training.cells, styles)

    def of(metric: str, title: str, y: str, note: str = "", *, small: bool = True, **options: Any) -> list[Figure]:
        curves = {m: [cell.curves[metric] for cell in cells if metric in cell.curves] for m, cells in groups.items()}
        curves = {method: found for method, found in curves.items() if found}
        if not curves:
            return []
        return [over_steps(title, note, y, curves, styles, small=small, **options)]

    found = {
        "Entropy": [
            *of(
                "entropy/mean",
                "Entropy over steps",
                "nats a token",
                "Full vocabulary, at the sampling temperature, of the policy before the update.",
                small=False,
                log_y=True,
            ),
            *of(
                "entropy/answer",
                "Entropy up to the end of the answer",
                "nats a token",
                "Without the tokens after an answer; all tokens of a response without one.",
                log_y=True,
            ),
        ],
        "Rewards": [
            *of("reward/mean", "Mean reward", "reward", "Of the training batch of the step."),
            *of(
                "reward/groups_without_signal",
                "Groups without a signal",
                "share of groups",
                "All responses to the prompt got the same reward.",
            ),
        ],
        "Quadrants": [
            *(
                figure
                for quadrant, said in QUADRANTS.items()
                for figure in of(f"dynamics/{quadrant}/share", f"Share: {said}", "share of tokens")
            ),
            *(
                figure
                for quadrant, said in QUADRANTS.items()
                for figure in of(f"dynamics/{quadrant}/push", f"Push: {said}", "nats per logit step")
            ),
        ],
        "Clips": [
            figure
            for metric, said in {
                "ratio/clipped_low": "Ratio clipped low",
                "ratio/clipped_high": "Ratio clipped high",
                "weights/dropped": "Dropped by a control",
                "weights/dropped_positive": "Dropped by a control, A > 0",
                "weights/dropped_negative": "Dropped by a control, A < 0",
            }.items()
            for figure in of(metric, said, "share of tokens")
        ],
        "Lengths": [
            *of("responses/length", "Length of responses", "tokens"),
            *of("responses/truncated", "Truncated responses", "share of responses"),
            *of("responses/distinct_answers", "Distinct answers", "per response of a group"),
            *of("responses/after_answer", "Text after the answer", "share of responses"),
        ],
        "Time": times(groups, styles),
    }
    return {title: figures for title, figures in found.items() if figures}


def times(groups: Mapping[str, Sequence[Told]], styles: Styles) -> list[Figure]:
    """Returns the seconds of a step by phase, as bars on each other."""
    seconds: dict[str, dict[str, float]] = {}  # by method and phase
    for method, cells in groups.items():
        steps = sum(cell.step for cell in cells)
        for name in sorted({name for cell in cells for name in cell.curves if name.startswith("time/")} - {INSIDE}):
            total = sum(sum(cell.curves.get(name, {}).values()) for cell in cells)
            if steps:
                seconds.setdefault(method, {})[name.removeprefix("time/").removesuffix("_s")] = total / steps
    known = {phase for of_phases in seconds.values() for phase in of_phases}
    phases = [*(phase for phase in PHASES if phase in known), *sorted(known - set(PHASES))]
    if not phases:
        return []
    return [
        Figure(
            "Time per phase",
            "Seconds of a training step, mean over steps and seeds; evaluations are spread over the steps. What was "
            "done twice after an interruption is not counted, nor is loading.",
            "bars",
            "seconds a step",
            "",
            [
                {
                    "name": phase,
                    "style": place % COLOURS,
                    "x": [finite(seconds[method].get(phase, 0.0)) for method in seconds],
                    "methods": [{"name": method, "style": styles[method]} for method in seconds],
                }
                for place, phase in enumerate(phases)
            ],
            ["method", *phases, "all"],
            [
                [method, *(f"{here.get(phase, 0.0):.3f}" for phase in phases), f"{sum(here.values()):.3f}"]
                for method, here in seconds.items()
            ],
        )
    ]
