"""The figures of a training: the metrics of its steps, and where their time went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pandas import DataFrame

from harness.page.content import phase_times
from harness.page.figures import Figure, by_method, over_steps, page_numbers
from harness.statistics import geometric_interval

QUADRANTS = {  # a token's advantage, and the place of its S*
    "positive_above": "A > 0, S* > N",
    "positive_below": "A > 0, S* < N",
    "negative_above": "A < 0, S* > N",
    "negative_below": "A < 0, S* < N",
}
PHASES = ("rollout", "verify", "stats", "update", "critic", "sync", "dynamics", "evaluate")  # the order of bars
CLIPS = {
    "ratio/clipped_low": "Ratio clipped low",
    "ratio/clipped_high": "Ratio clipped high",
    "weights/dropped": "Dropped by a control",
    "weights/dropped_positive": "Dropped by a control, A > 0",
    "weights/dropped_negative": "Dropped by a control, A < 0",
}


def training_figures(curves: DataFrame, methods: Sequence[str]) -> dict[str, list[Figure]]:
    """Return the figures over the training steps by the titles of their groups; metrics without a value have none."""
    by_metric = dict(list(curves.groupby("metric")))  # by a list, since dict() takes the grouping for a mapping

    def of(metric: str, title: str, y: str, note: str = "", *, small: bool = True, **options: Any) -> list[Figure]:
        if metric not in by_metric:
            return []
        return [over_steps(title, note, y, by_metric[metric], methods, small=small, **options)]

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
                "Full vocabulary, at the sampling temperature, of the policy before the update; geometric means over "
                "seeds, as in the table.",
                interval=geometric_interval,
                small=False,
                log_y=True,
            ),
            *of(
                "entropy/answer",
                "Entropy up to the end of the answer",
                "nats a token",
                "Without the tokens after an answer; all tokens of a response without one. Geometric means over seeds.",
                interval=geometric_interval,
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
        "Time": time_figures(curves, methods),
    }
    return {title: of_group for title, of_group in figures.items() if of_group}


def time_figures(curves: DataFrame, methods: Sequence[str]) -> list[Figure]:
    """Return the seconds of a step by phase, as bars on each other."""
    seconds = seconds_by_phase(curves, methods)
    recorded = set().union(*seconds.values())
    phases = [phase for phase in PHASES if phase in recorded]
    phases += sorted(recorded - set(PHASES))
    if not phases:
        return []
    lines = []
    for method, by_phase in seconds.items():
        columns = [f"{by_phase.get(phase, 0.0):.3f}" for phase in phases]
        lines.append([method, *columns, f"{sum(by_phase.values()):.3f}"])
    series = []
    for phase in phases:
        x = page_numbers(by_phase.get(phase, 0.0) for by_phase in seconds.values())
        series.append({"name": phase, "x": x, "methods": list(seconds)})
    note = (
        "Seconds of a training step, mean over steps and seeds; evaluations are spread over the steps. Work that was "
        "repeated after an interruption is not counted, nor is loading."
    )
    header = ["method", *phases, "all"]
    return [Figure("Time per phase", note, "bars", "seconds a step", "", series, header, lines)]


def seconds_by_phase(curves: DataFrame, methods: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the seconds of a step in each phase, mean over the steps of all cells, by method and phase."""
    seconds = {}
    for method, of_method in by_method(curves, methods):
        # All steps of all cells, also for evaluations, which only some steps have.
        steps = of_method.groupby("cell")["step"].max().sum()
        totals = phase_times(of_method).groupby("metric")["value"].sum()
        if steps and len(totals):
            phases = totals.index.str.removeprefix("time/").str.removesuffix("_s")
            seconds[method] = dict(zip(phases, (totals / steps).tolist(), strict=True))
    return seconds
