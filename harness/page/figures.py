"""The figures of the page as plain data: the series, their meaning, and the same numbers as a table.

A series has the name of a method, by which the page's script colors it, and lists of numbers. A reported series is
gray and dashed.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame

from harness.base.terminal import visible
from harness.table.statistics import Estimate, geometric_interval, mean_interval

Series = dict[str, Any]  # name, and lists of numbers
Interval = Callable[[np.ndarray], Estimate]  # of the values of the seeds
EstimatesByStep = Mapping[str, Mapping[int, Estimate]]  # by method and step
QUADRANTS = {  # a token's advantage, and the place of its S*
    "positive_above": "A > 0, S* > N",
    "positive_below": "A > 0, S* < N",
    "negative_above": "A < 0, S* > N",
    "negative_below": "A < 0, S* < N",
}
PHASES = ("rollout", "verify", "stats", "update", "critic", "sync", "dynamics", "evaluate")  # the order of bars
JUDGING = "time/judging_s"  # is spent within other phases, and so belongs to no sum
Reported = Mapping[str, Mapping[int, float]]  # published curves by run and step
CURVES = Path(__file__).parent / "curves"
INDEX = "index.csv"  # a line for each of the other files: the run, its source and license
REPORTED_NOTE = (
    "Gray and dashed: single runs that others published with this base model, with settings and an entropy of their "
    "own; they enter no mean, interval or comparison."
)
CLIPS = {
    "ratio/clipped_low": "Ratio clipped low",
    "ratio/clipped_high": "Ratio clipped high",
    "weights/dropped": "Dropped by a control",
    "weights/dropped_positive": "Dropped by a control, A > 0",
    "weights/dropped_negative": "Dropped by a control, A < 0",
}


@dataclass(frozen=True)
class Figure:
    """A figure as data, with the same numbers as a table."""

    title: str
    note: str  # the meaning of points, bands and bars
    kind: str  # lines | points | rates | dots | bars
    x: str
    y: str
    series: list[Series]
    header: list[str]
    lines: list[list[str]]
    small: bool = False
    # log_x, log_y: logarithmic; ticks: of x; names: x is text; cut: y is limited to 0 to 1
    options: dict[str, Any] = field(default_factory=dict)


def page_number(value: float | None) -> float | None:
    """Return a number that JSON can hold, short enough for a page; None for values that are not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.5g}")


def page_numbers(values: Iterable[float | None]) -> list[float | None]:
    return [page_number(value) for value in values]


def limits(estimates: Collection[Estimate]) -> dict[str, list[float | None]]:
    """Return the limits of intervals as series."""
    low = page_numbers(estimate.low for estimate in estimates)
    high = page_numbers(estimate.high for estimate in estimates)
    return {"low": low, "high": high}


def estimates_by_step(curves: DataFrame, methods: Sequence[str], interval: Interval) -> EstimatesByStep:
    """Return the mean of a metric over the seeds that have a number at a step, with its interval.

    `curves`: a row for each method, seed and step.
    """
    estimates = {}
    for method, of_method in by_method(curves[np.isfinite(curves["value"])], methods):
        ordered = of_method.sort_values("step", kind="stable")
        # Without groupby: a matrix has a hundred thousand such groups, and pandas takes long for each.
        steps, starts = np.unique(ordered["step"].to_numpy(), return_index=True)
        values = np.split(ordered["value"].to_numpy(dtype="float64"), starts[1:])
        estimates[method] = {int(step): interval(of_step) for step, of_step in zip(steps, values, strict=True)}
    return estimates


def estimates_over_steps(
    title: str, note: str, y: str, estimates: EstimatesByStep, *, small: bool = False, **options: Any
) -> Figure:
    series, lines = [], []
    for method, by_step in estimates.items():
        series.append({"name": method, "x": list(by_step), **estimate_band(by_step.values())})
        means = [estimate.mean for estimate in by_step.values()]
        last = by_step[max(by_step)]
        interval = " to ".join(map(short_number, last.ends or ()))
        lines.append(summary_line(method, min(by_step), max(by_step), means, interval))
    header = ["method", "first mean", "last mean", "its 95 % interval", "lowest mean", "highest mean"]
    return Figure(title, note, "lines", "step", y, series, header, lines, small, options)


def summary_line(name: str, first: int, last: int, means: Sequence[float], interval: str) -> list[str]:
    ends = [f"{short_number(means[0])} (step {first})", f"{short_number(means[-1])} (step {last})"]
    return [name, *ends, interval, short_number(min(means)), short_number(max(means))]


def with_reported(figure: Figure, reported: Reported) -> Figure:
    """Return a figure over steps with published curves next to its own, up to its own last step."""
    if not reported or not figure.series:
        return figure
    last_step = max(max(series["x"]) for series in figure.series)
    series, lines = list(figure.series), list(figure.lines)
    for name, entropy in reported.items():
        points = {step: value for step, value in entropy.items() if step <= last_step}
        steps, values = list(points), list(points.values())
        band = {"low": [None] * len(steps), "high": [None] * len(steps)}
        series.append({"name": name, "reported": True, "x": steps, "y": page_numbers(values), **band})
        lines.append(summary_line(name, steps[0], steps[-1], values, ""))
    return replace(figure, note=f"{figure.note} {REPORTED_NOTE}", series=series, lines=lines)


def reported_curves(model: str) -> dict[str, dict[int, float]]:
    """Return the published entropies of a model by run and step; folder, revision and case of its name do not count."""
    with open(CURVES / INDEX, newline="", encoding="utf-8") as file:
        runs = [run for run in csv.DictReader(file) if short_name(run["model"]) == short_name(model)]
    curves = {}
    for run in runs:
        with open(CURVES / run["file"], newline="", encoding="utf-8") as file:
            entropy = {int(line["step"]): float(line["entropy"]) for line in csv.DictReader(file)}
        curves[f"{run['method']}, {run['task']} (reported)"] = entropy
    return curves


def short_name(model: str) -> str:
    return model.rpartition("/")[2].partition("@")[0].casefold()


def estimate_band(estimates: Collection[Estimate]) -> dict[str, list[float | None]]:
    """Return the means and the limits of estimates as series."""
    return {"y": page_numbers(estimate.mean for estimate in estimates), **limits(estimates)}


def by_method(frame: DataFrame, methods: Sequence[str]) -> Iterator[tuple[str, DataFrame]]:
    """Yield the rows of each method, sorted by seed, in the order of the methods."""
    groups = dict(list(frame.groupby("method")))  # by a list, since dict() takes the grouping for a mapping
    for method in methods:
        if method in groups:
            yield method, groups[method].sort_values("seed", kind="stable")


def short_number(value: float) -> str:
    return f"{value:.4g}"


def payload(figure: Figure) -> dict[str, Any]:
    """Return the parts of a figure that the page's script draws, with control characters written out."""
    return {key: drawable(getattr(figure, key)) for key in ("kind", "x", "y", "series", "small", "options")}


def drawable(value: Any) -> Any:
    """Return a value of JSON with the control characters of its texts written out, names included."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {drawable(key): drawable(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [drawable(child) for child in value]
    return value


# The figures of a training: the metrics of its steps, and where their time went


def training_figures(curves: DataFrame, methods: Sequence[str], reported: Reported) -> dict[str, list[Figure]]:
    """Return the figures over the training steps by their groups; metrics without a value have none.

    `reported`: published curves of the same base model.
    """
    by_metric = dict(list(curves.groupby("metric")))  # by a list, since dict() takes the grouping for a mapping

    def of(metric: str, title: str, y: str, note: str = "", *, small: bool = True) -> list[Figure]:
        if metric not in by_metric:
            return []
        if metric.startswith("entropy/"):  # skewed, so by their logarithms
            estimates = estimates_by_step(by_metric[metric], methods, geometric_interval)
            return [estimates_over_steps(title, note, y, estimates, small=small, log_y=True)]
        estimates = estimates_by_step(by_metric[metric], methods, mean_interval)
        return [estimates_over_steps(title, note, y, estimates, small=small)]

    quadrants = []
    for kind, unit in (("share", "share of tokens"), ("push", "nats per logit step")):
        for quadrant, label in QUADRANTS.items():
            quadrants += of(f"dynamics/{quadrant}/{kind}", f"{kind.capitalize()}: {label}", unit)
    clips = [figure for metric, label in CLIPS.items() for figure in of(metric, label, "share of tokens")]
    entropies = of(
        "entropy/mean",
        "Entropy over steps",
        "nats a token",
        "Full vocabulary, at the sampling temperature, of the policy before the update; geometric means over seeds, as "
        "in the table.",
        small=False,
    )
    return {
        "Entropy": [
            *[with_reported(entropy, reported) for entropy in entropies],
            *of(
                "entropy/answer",
                "Entropy up to the end of the answer",
                "nats a token",
                "Without the tokens after an answer; all tokens of a response without one. Geometric means over seeds.",
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
        metric = of_method["metric"].astype("str")
        of_phases = of_method[metric.str.startswith("time/") & (metric != JUDGING)]  # their sum is the step's time
        totals = of_phases.groupby("metric")["value"].sum()
        if steps and len(totals):
            phases = totals.index.str.removeprefix("time/").str.removesuffix("_s")
            seconds[method] = dict(zip(phases, (totals / steps).tolist(), strict=True))
    return seconds
