"""The demo from the first cell to the leaderboard: wall time, the fixed cost of a cell, the share of each phase.

    python -m benchmarks.demo                                           # the demo of this tree
    python -m benchmarks.demo --against COMMIT                          # and of another version, cell by cell
    python -m benchmarks.demo --against COMMIT seeds=[0] train.steps=20     # fewer cells and steps

With `--against`, both versions train each cell, one after the other and in alternating order, so that both meet the
same load of the machine. The seconds of a phase are by the clock; CPU seconds are those of the whole command, with
imports, evaluation, MLflow and the leaderboard. Curves are compared step by step: equal up to rounding at first, and
later only in distribution, since one sampled token that rounding changed leads to different updates.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from benchmarks.common import show
from harness import config, matrix
from harness.cells.log import MetricsLog
from harness.matrix import Cell

HERE = Path(__file__).parent.parent
ROUNDING = 1e-4  # of a column, relative to its largest value: below it two curves are called equal
CURVES = ("reward/mean", "entropy/mean", "gradient/norm", "loss/policy")
SIDES = ("then", "now")
SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of Linux's prctl


@dataclass(frozen=True)
class CellRun:
    """One cell, trained by one version of the demo."""

    lines: list[dict[str, float]]  # of metrics.jsonl, by step
    wall: float
    cpu: float
    load: float  # of the machine as it started: processes that run or wait to


def phases_of(lines: Sequence[Mapping[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = defaultdict(float)
    for line in lines:
        for key, value in line.items():
            if key.startswith("time/"):
                totals[key.removeprefix("time/").removesuffix("_s")] += value
    return dict(totals)


def lines_of(cell: Cell) -> list[dict[str, float]]:
    return [line["metrics"] for line in MetricsLog(cell.folder).read()]


# One version


def measure(overrides: Sequence[str]) -> None:
    """Run the whole demo of this tree, and print the seconds of its phases."""
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"results={folder}", *overrides]
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "entrobench", "run", "demo", *settings], check=True)
        wall = time.perf_counter() - start
        cells = matrix.cells(config.load_config("demo", settings))
        phases: dict[str, list[float]] = defaultdict(list)
        fixed = []
        for cell in cells:
            totals = phases_of(lines_of(cell))
            for name, seconds in totals.items():
                phases[name].append(seconds)
            # From the moment it was launched to the moment it was done, less what the phases account for.
            launched, done = (Path(cell.folder / name).stat().st_mtime for name in ("config.yaml", "state.json"))
            fixed.append(done - launched - sum(totals.values()))
    rows = [
        [f"wall time of {len(cells)} cells", f"{wall:.0f} s"],
        ["fixed cost of a cell, median", f"{median(fixed):.1f} s"],
        ["of the first, imports included", f"{max(fixed):.1f} s"],
    ]
    whole = sum(map(sum, phases.values()))
    for name, values in sorted(phases.items(), key=lambda item: -sum(item[1])):
        rows.append([f"{name}, a cell that has it", f"{mean(values):.1f} s ({sum(values) / whole:.0%} of all)"])
    show("The demo", ["", ""], rows)


# Two versions


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check out a commit in a temporary worktree of this repository."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(HERE), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def train_cell(tree: Path, cell: Cell, folder: Path, overrides: Sequence[str]) -> CellRun:
    """Train one cell of the demo with the code of a tree."""
    # A matrix of its own, whose baseline must be among its methods.
    axes = [f"methods=[{cell.method}]", f"baseline={cell.method}", f"seeds=[{cell.seed}]"]
    settings = [*overrides, f"results={folder}", *axes]
    # The packages of the tree take precedence over installed ones.
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    load, start, before = os.getloadavg()[0], time.perf_counter(), cpu_of_children()
    command = [sys.executable, "-m", "entrobench", "run", "demo", *settings]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - start
    wait_for_orphans()
    cpu = cpu_of_children() - before
    if done.returncode:
        raise SystemExit(f"{cell.label} of {tree} failed:\n{done.stdout}\n{done.stderr}")
    # By its place, since the other version may give its cells different ids.
    [log] = folder.glob("*/*/metrics.jsonl")
    lines = [line["metrics"] for line in MetricsLog(log.parent).read()]
    return CellRun(lines, wall, cpu, load)


def adopt_orphans() -> None:
    """Become the parent of orphaned processes, on Linux: the server from which cells are forked outlives its parent.

    Otherwise this process could not read the CPU seconds of cells.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wait_for_orphans() -> None:
    """Wait for all child processes, so that their CPU seconds are counted."""
    with suppress(ChildProcessError):  # none is left
        while True:
            os.wait()


def cpu_of_children() -> float:
    """Return the CPU seconds of all ended child processes, with theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def compare(commit: str, overrides: Sequence[str]) -> None:
    """Train the demo's cells by both versions in turn; print times and the differences of the curves."""
    adopt_orphans()
    cells = matrix.cells(config.load_config("demo", overrides))
    runs: dict[str, list[CellRun]] = {side: [] for side in SIDES}
    with checked_out(commit) as tree, tempfile.TemporaryDirectory() as results:
        trees = {"then": tree, "now": HERE}
        for side in SIDES:  # a cell of one step that is not measured: it compiles modules and makes the base model
            train_cell(trees[side], cells[0], Path(results) / f"warm-{side}", [*overrides, "train.steps=1"])
        for number, cell in enumerate(cells):
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                run = train_cell(trees[side], cell, Path(results) / f"{number}-{side}", overrides)
                runs[side].append(run)
                print(f"{cell.label}, {side}: {run.cpu:.1f} CPU s, {run.wall:.1f} s, load {run.load:.1f}", flush=True)
    pairs = list(zip(runs["then"], runs["now"], strict=True))
    show(f"The demo of {commit} (then) and of this tree (now)", TIMED, timed(cells, pairs))
    show("Seconds of each phase, all cells, by the clock", ["phase", "then", "now", "ratio"], by_phase(pairs))
    show("Curves", COMPARED, [compared(cell, *pair) for cell, pair in zip(cells, pairs, strict=True)])


TIMED = ["cell", "CPU s then", "now", "ratio", "s then", "now", "ratio", "load then", "now"]
COMPARED = ["cell", "equal to 1e-4 up to step", "reward then", "now", "entropy then", "now", "Avg@K then", "now"]


def ratio_of(then: float, now: float) -> str:
    return f"{now / then:.2f}" if then else "-"


def timed(cells: Sequence[Cell], pairs: Sequence[tuple[CellRun, CellRun]]) -> list[list[str]]:
    """Return a row for each cell, and one of their sums."""
    rows = []
    for cell, (then, now) in zip(cells, pairs, strict=True):
        rows.append([cell.label, *numbers(then.cpu, now.cpu), *numbers(then.wall, now.wall)])
        rows[-1] += [f"{then.load:.1f}", f"{now.load:.1f}"]
    cpu = [sum(run.cpu for run in side) for side in zip(*pairs, strict=True)]
    wall = [sum(run.wall for run in side) for side in zip(*pairs, strict=True)]
    loads = [f"{mean(run.load for run in side):.1f}" for side in zip(*pairs, strict=True)]
    return [*rows, ["all", *numbers(*cpu), *numbers(*wall), *loads]]


def numbers(then: float, now: float) -> list[str]:
    return [f"{then:.1f}", f"{now:.1f}", ratio_of(then, now)]


def by_phase(pairs: Sequence[tuple[CellRun, CellRun]]) -> list[list[str]]:
    """Return a row for each phase of a step, the longest first, and one of their sums."""
    then, now = (phases_of([line for run in side for line in run.lines]) for side in zip(*pairs, strict=True))
    rows = [[name, *numbers(then[name], now.get(name, 0.0))] for name in sorted(then, key=lambda name: -then[name])]
    # Judging goes on while others are sampled, and its seconds are in those of `rollout` already.
    sums = [sum(phases.values()) - phases["judging"] for phases in (then, now)]
    return [*rows, ["all but judging", *numbers(*sums)]]


def compared(cell: Cell, then: CellRun, now: CellRun) -> list[str]:
    """Return the last step up to which the curves are equal to rounding, and means over the whole training."""
    row = [cell.label, str(equal_up_to(then.lines, now.lines))]
    for column in ("reward/mean", "entropy/mean"):
        row += [f"{mean(column_of(run.lines, column)):.4f}" for run in (then, now)]
    return row + [f"{final_average(run.lines):.4f}" for run in (then, now)]


def column_of(lines: Sequence[Mapping[str, float]], name: str) -> list[float]:
    """Return a metric at all training steps, which come after the evaluation of step 0."""
    return [line[name] for line in lines[1:]]


def equal_up_to(then: Sequence[Mapping[str, float]], now: Sequence[Mapping[str, float]]) -> int:
    """Return the last step up to which all curves differ by no more than rounding."""
    scales = {name: max(map(abs, column_of(then, name))) for name in CURVES}
    for step in range(1, min(len(then), len(now))):
        apart = [abs(then[step][name] - now[step][name]) / scales[name] for name in CURVES]
        if max(apart) > ROUNDING:
            return step - 1
    return min(len(then), len(now)) - 1


def final_average(lines: Sequence[Mapping[str, float]]) -> float:
    """Return Avg@K of the last evaluation."""
    [key] = [key for key in lines[-1] if key.startswith("eval/") and key.endswith("/avg")]
    return lines[-1][key]


def main(*arguments: str) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo")
    parser.add_argument("--against", metavar="COMMIT", help="compare with the demo of this version, cell by cell")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings of the demo")
    options = parser.parse_args(arguments)
    if options.against:
        compare(options.against, options.overrides)
    else:
        measure(options.overrides)


if __name__ == "__main__":
    main(*sys.argv[1:])
