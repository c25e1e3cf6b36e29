"""The figures of a training: the metrics of its steps, and where their time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.page.content import JUDGING, CellRecord
from harness.page.figures import Figure, Styles, by_method, over_steps, page_number

QUADRANTS = {  # a token's advantage, and the place of its S*
    "positive_above": "A > 0, S* > N",
    "positive_below": "A > 0, S* < N",
    "negative_above": "A < 0, S* > N",
    "negative_below": "A < 0, S* < N",
}
PHASES = ("rollout", "verify", "stats", "update", "critic", "sync", "dynamics", "evaluate")  # the order of bars
BAR_STYLES = 8  # colors of bars, which repeat
CLIPS = {
    "ratio/clipped_low": "Ratio clipped low",
    "ratio/clipped_high": "Ratio clipped high",
    "weights/dropped": "Dropped by a control",
    "weights/dropped_positive": "Dropped by a control, A > 0",
    "weights/dropped_negative": "Dropped by a control, A < 0",
}


def training_figures(cells: Sequence[CellRecord], styles: Styles) -> dict[str, list[Figure]]:
    """Return the figures over the training steps by the titles of their groups; metrics without a value have none."""
    groups = by_method(cells, styles)

    def of(metric: str, title: str, y: str, note: str = "", *, small: bool = True, **options: Any) -> list[Figure]:
        curves = {}
        for method, of_method in groups.items():
            recorded = [cell.curves[metric] for cell in of_method if metric in cell.curves]
            if recorded:
                curves[method] = recorded
        return [over_steps(title, note, y, curves, styles, small=small, **options)] if curves else []

    quadrants = []
    for quadrant, label in QUADRANTS.items():
        quadrants += of(f"dynamics/{quadrant}/share", f"Share: {label}", "share of tokens")
    for quadrant, label in QUADRANTS.items():
        quadrants += of(f"dynamics/{quadrant}/push", f"Push: {label}", "nats per logit step")
    clips = []
    for metric, label in CLIPS.items():
        clips += of(metric, label, "share of tokens")
    figures = {
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
        "Quadrants": quadrants,
        "Clips": clips,
        "Lengths": [
            *of("responses/length", "Length of responses", "tokens"),
            *of("responses/truncated", "Truncated responses", "share of responses"),
            *of("responses/distinct_answers", "Distinct answers", "per response of a group"),
            *of("responses/after_answer", "Text after the answer", "share of responses"),
        ],
        "Time": time_figures(groups, styles),
    }
    return {title: of_group for title, of_group in figures.items() if of_group}


def time_figures(groups: Mapping[str, Sequence[CellRecord]], styles: Styles) -> list[Figure]:
    """Return the seconds of a step by phase, as bars on each other."""
    seconds = {}
    for method, cells in groups.items():
        by_phase = seconds_by_phase(cells) if any(cell.step for cell in cells) else {}
        if by_phase:
            seconds[method] = by_phase
    recorded = {phase for by_phase in seconds.values() for phase in by_phase}
    phases = [phase for phase in PHASES if phase in recorded]
    phases += sorted(recorded - set(PHASES))
    if not phases:
        return []
    methods = [{"name": method, "style": styles[method]} for method in seconds]
    series, lines = [], []
    for place, phase in enumerate(phases):
        x = [page_number(by_phase.get(phase, 0.0)) for by_phase in seconds.values()]
        series.append({"name": phase, "style": place % BAR_STYLES, "x": x, "methods": methods})
    for method, by_phase in seconds.items():
        columns = [f"{by_phase.get(phase, 0.0):.3f}" for phase in phases]
        lines.append([method, *columns, f"{sum(by_phase.values()):.3f}"])
    note = (
        "Seconds of a training step, mean over steps and seeds; evaluations are spread over the steps. Work that was "
        "repeated after an interruption is not counted, nor is loading."
    )
    header = ["method", *phases, "all"]
    return [Figure("Time per phase", note, "bars", "seconds a step", "", series, header, lines)]


def seconds_by_phase(cells: Sequence[CellRecord]) -> dict[str, float]:
    """Return the seconds of a step in each phase, mean over the steps of all cells."""
    steps = sum(cell.step for cell in cells)
    names = {name for cell in cells for name in cell.curves if name.startswith("time/")} - {JUDGING}
    seconds = {}
    for name in sorted(names):
        total = sum(sum(cell.curves.get(name, {}).values()) for cell in cells)
        seconds[name.removeprefix("time/").removesuffix("_s")] = total / steps
    return seconds
