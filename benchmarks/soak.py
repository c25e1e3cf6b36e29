"""Kills the processes of a matrix at moments drawn by a seed, and compares what comes of it with an uninterrupted run.

    python -m benchmarks.soak [minutes] [cells] [seed] [ranks]

The victim is a cell, one of its ranks if it has several, the server that cells are forked from, the runner, or all of
them; the moment a phase of a cell, a write, or any, and first of all while the base model of the matrix is made, while
problems are filtered, and while its MLflow store is made. What must be as if nothing had happened: every number but
times, every sample, every weight, and MLflow with each attempt and each point once. No cell may outlive its runner for
more than some seconds, and no memory or files of the runner may grow while cells come and go.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.patience import patient
from harness.cells import lease
from harness.cells.heartbeat import last_heartbeat
from harness.tracking.reader import reader
from harness.tracking.sync import metric_name
from tasks.countdown import Countdown

SETTINGS = ["methods=[grpo,clip_b]", "train.steps=3", "train.prompts=4", "train.updates=2", "train.group=4"]
SETTINGS += ["eval.problems=4", "eval.samples=4", "eval.k=2", "eval.every=0", "checkpoint.every=1", "dynamics.every=0"]
SETTINGS += ["tasks=[countdown(count=2)]", "models=[tiny.yaml]", "train.filter={n: 64, low: 0, high: 1}", "name=soak"]
MODEL = {
    "task": "countdown(count=2)",
    "hidden": 32,
    "layers": 1,
    "steps": 60,
    "batch": 32,
    "lr": 1e-2,
    "warmup_steps": 5,
}
ASKED = len(Countdown(count=2).problems("train"))  # by the filter, in more than one batch
# With the victim. These come once in a matrix whose cache is empty, so they are the first that are waited for.
ONCE = (("making the model", "runner"), ("filter", "all"), ("making the store", "runner"))
VICTIMS = ("cell", "server", "runner", "all")
PHASES = ("loading the model", "rollout", "update", "evaluate", "saving the model")
MOMENTS = (*PHASES, "importing", "checkpoint", "line", "done", "any")
LATEST = 60.0  # seconds to wait for a moment on an idle machine
CERTAIN = 600.0  # for one that comes once in each matrix
LONGER = {
    "any": 3.0,
    "importing": 3.0,
    "making the model": 1.0,
    "making the store": 0.3,
}  # at most so many seconds after it has come
ORPHANS = 10.0  # seconds for cells to end whose runner was killed
KEPT = 4  # ends of cells after which a file counts as kept: twice the cells that two cores run at once
GROWTH = 32 * 2**20  # bytes that the runner may grow by after a quarter of its cells


@dataclass
class Harm:
    """Counts what was done."""

    killed: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    slowest: float = 0.0  # seconds from the end of a runner to that of its last cell


class Run:
    """A runner as people start it."""

    def __init__(self, folder: Path, settings: list[str]) -> None:
        self.folder, self.cache = folder / "results" / "soak", folder / "cache"
        (folder / "tiny.yaml").write_text(json.dumps({"recipe": MODEL}))
        command = [sys.executable, "-m", "harness.cli", "run", "demo", *settings, f"results={folder / 'results'}"]
        with open(folder / "said.txt", "ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "ENTROBENCH_CACHE": str(self.cache)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def parts(self) -> dict[str, list[int]]:
        """Returns the ids of its processes by what they are."""
        children: dict[int, list[int]] = {}
        for process in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):  # it has ended
                told = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(told[1]), []).append(int(process))
        server = [child for child in children.get(self.process.pid, []) if b"forkserver" in words(child)]
        cells = [cell for each in server for cell in children.get(each, [])]
        ranks = [rank for cell in cells for rank in children.get(cell, []) if b"cell.run_rank" in words(rank)]
        return {"runner": [self.process.pid], "server": server, "cell": cells, "rank": ranks}

    def open_files(self) -> set[str]:
        """List the runner's open files, each by its number and name; a pipe's name is unique."""
        names = set()
        for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was closed since it was listed
                names.add(f"{entry.name} {os.readlink(entry)}")
        return names

    def memory(self) -> int:
        """Return the runner's memory in bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def words(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


# The moments


def lines(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*/metrics.jsonl"))


def done(folder: Path) -> int:
    return sum(b'"done"' in path.read_bytes() for path in folder.glob("*/state.json"))


def half_made(cache: Path) -> bool:
    return any(not path.with_suffix("").is_dir() for path in cache.glob("models/*.lock"))


def half_filtered(cache: Path) -> bool:
    return any(len(json.loads(path.read_bytes())["right"]) < ASKED for path in cache.glob("filters/*.json"))


def half_stored(results: Path) -> bool:
    return any(results.glob(".mlflow.db.*/mlflow.db"))


def comes(moment: str, run: Run) -> Callable[[], bool]:
    """Returns what says whether a moment has come since now."""
    folder = run.folder
    before = {"line": lines(folder), "done": done(folder)}
    if moment == "making the model":
        return lambda: half_made(run.cache)
    if moment == "filter":
        return lambda: half_filtered(run.cache)
    if moment == "making the store":
        return lambda: half_stored(folder.parent)
    if moment == "importing":
        return lambda: bool(run.parts()["server"])
    if moment == "checkpoint":
        return lambda: any(folder.glob("*/leases/*/.step-*"))
    if moment == "line":
        return lambda: lines(folder) > before["line"]
    if moment == "done":
        return lambda: done(folder) > before["done"]
    if moment == "any":
        return lambda: True
    began = time.time()

    def there() -> bool:
        places = [path for path in folder.glob("*/leases/*/standing-0") if path.stat().st_mtime > began]
        return any(last_heartbeat(path.parent).startswith(moment) for path in places)

    return there


def holds(come: Callable[[], bool]) -> bool:
    with contextlib.suppress(FileNotFoundError):  # a lease was given back while this looked
        return come()
    return False


def wait(run: Run, moment: str, dice: random.Random) -> bool:
    """Waits for a moment and a little longer, as long as the run goes on; returns whether it does."""
    once = any(moment == each for each, _ in ONCE)
    come, deadline = comes(moment, run), time.monotonic() + patient(CERTAIN if once else LATEST)
    while run.process.poll() is None and time.monotonic() < deadline and not holds(come):
        time.sleep(0.002)
    time.sleep(dice.random() * LONGER.get(moment, 0.05))
    return run.process.poll() is None


def kill(run: Run, victim: str) -> float:
    """Kills a part of a run, if it is there; returns the seconds until no cell is left that has lost its runner."""
    parts = run.parts()
    for name in parts if victim == "all" else (victim,):
        for process in parts[name][: None if victim == "all" else 1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    if victim not in ("runner", "all"):
        return 0.0
    began = time.monotonic()
    run.process.wait()
    while left := [each for each in (*parts["cell"], *parts["rank"]) if lease.born(each)]:
        assert time.monotonic() - began < patient(ORPHANS), f"cells {left} outlive their runner"
        time.sleep(0.02)
    return time.monotonic() - began


def harmed(folder: Path, settings: list[str], kills: int, until: float, seed: int) -> Harm:
    """Runs a matrix to its end though its processes are killed, so many times or until that time comes."""
    dice, harm = random.Random(seed), Harm()
    victims = (*VICTIMS, "rank") if "hardware.ranks=1" not in settings else VICTIMS
    plan = [(moment, victim) for moment in MOMENTS for victim in victims]
    dice.shuffle(plan)
    run = None
    try:
        for moment, victim in islice(chain(ONCE, cycle(plan)), kills):
            if time.monotonic() > until:
                break
            if run is None or run.process.poll() is not None:
                harm.runs += 1
                run = Run(folder, settings)
            if not wait(run, moment, dice):
                if run.process.wait() == 0:  # nothing is left to be killed
                    return harm
                continue
            harm.slowest = max(harm.slowest, kill(run, victim))
            if (moment, victim) not in ONCE or holds(comes(moment, run)):  # otherwise it was over
                harm.killed[f"{victim} at {moment}"] += 1
        while run is None or run.process.wait():
            harm.runs += 1
            assert harm.runs < kills + 5, f"it does not come to an end; see {folder / 'said.txt'}"
            run = Run(folder, settings)
        return harm
    finally:
        if run is not None and run.process.poll() is None:  # something went wrong, or Ctrl-C
            kill(run, "all")


# What must be the same


def records(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns all that the cells of a matrix have left, by cell, but for times and ids."""
    found: dict[str, dict[str, Any]] = {}
    for cell in sorted(path.parent for path in folder.glob("results/soak/*/config.yaml")):
        found[cell.name] = {
            **sums(cell, "samples/*", "evals/*", "model/*"),
            "state": json.loads((cell / "state.json").read_bytes())["state"],
            "steps": [(line["step"], numbers(line["metrics"])) for line in logged(cell)],
        }
    return found


def sums(folder: Path, *patterns: str) -> dict[str, str]:
    """Returns the sums of files in a folder, by their paths there."""
    found = sorted(path for pattern in patterns for path in folder.glob(pattern))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def logged(cell: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (cell / "metrics.jsonl").read_bytes().splitlines()]


def numbers(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


def check_mlflow(folder: Path) -> None:
    """Raises AssertionError where MLflow does not hold each cell and each point once."""
    with reader(f"sqlite:///{folder / 'results' / 'mlflow.db'}") as source:
        every = [run for run in source.runs(source.experiments()["soak"]) if "cell" in run.tags]
        points_of = source.curves(every, lambda name: not name.startswith(("final/", "time/")))
        curves = {run.tags["cell"]: points for run, points in zip(every, points_of, strict=True)}
    cells = {path.parent.name.rpartition("-")[2]: path.parent for path in folder.glob("results/soak/*/config.yaml")}
    assert len(every) == len(curves), "a cell has several runs"
    assert curves.keys() == cells.keys()
    for key, cell in cells.items():
        wanted: dict[str, list[tuple[int, float]]] = {}
        for line in logged(cell):
            for name, value in numbers(line["metrics"]).items():
                wanted.setdefault(metric_name(name), []).append((line["step"], value))
        there = {name: [(point.step, point.value) for point in points] for name, points in curves[key].items()}
        assert there == wanted, cell.name


# The reference, and whether the runner grows


@dataclass(frozen=True)
class Look:
    """The runner at one moment."""

    done: int  # cells
    files: set[str]
    memory: int


def watched(folder: Path, settings: list[str]) -> list[Look]:
    """Run a matrix to its end, and look at its runner ten times a second."""
    run, looks = Run(folder, settings), list[Look]()
    while run.process.poll() is None:
        with contextlib.suppress(OSError):  # it has just ended
            looks.append(Look(done(run.folder), run.open_files(), run.memory()))
        time.sleep(0.1)
    assert run.process.wait() == 0, (folder / "said.txt").read_text()
    return looks


def kept_open(looks: list[Look]) -> set[str]:
    """List the files of a cell's process that the runner keeps open when the cell has ended.

    How many files are open at a moment proves nothing: MLflow's database, its journal and the lock of the cell that is
    being sent come and go. A file counts that was opened after the first cell had ended, and is still open KEPT ends of
    cells later, when all cells that ran at the time are gone. The database is left out, since a pool holds it, and so
    are locks in cells' folders, since one of them is held as long as MLflow takes for that cell.
    """
    first: dict[str, int] = {}
    kept = set()
    for look in looks:
        for name in look.files:
            begun = first.setdefault(name, look.done)
            if begun >= 1 and look.done >= begun + KEPT and "mlflow" not in name:
                kept.add(name)
        for name in first.keys() - look.files:
            del first[name]  # the number may be given to another file
    return kept


def least_memory(looks: list[Look], cells: int, quarter: int) -> int:
    return min(look.memory for look in looks if 4 * look.done // cells == quarter)


def soak(folder: Path, cells: int, kills: int, minutes: float, seed: int, ranks: int = 1) -> tuple[Harm, list[Look]]:
    """Raises AssertionError where a killed matrix ends in another way than one that was left in peace."""
    settings = [*SETTINGS, f"seeds=[{','.join(map(str, range(cells // 2)))}]", f"hardware.ranks={ranks}"]
    places = [folder / "in-peace", folder / "killed"]
    for place in places:
        place.mkdir()
    looks = watched(places[0], settings)
    harm = harmed(places[1], settings, kills, time.monotonic() + 60 * minutes, seed)
    expected, found = map(records, places)
    assert len(expected) == cells
    assert found == expected
    base, again = (sums(place / "cache", "models/*/*", "filters/*.json") for place in places)
    assert len(base) > 1
    assert again == base
    for place in places:
        check_mlflow(place)
    return harm, looks


def check_growth(looks: list[Look], cells: int) -> None:
    """Raise AssertionError where the runner keeps files of cells that have ended, or grows after it has loaded all that
    it needs."""
    kept = kept_open(looks)
    assert not kept, f"the runner keeps files of cells that have ended: {sorted(kept)}"
    early, late = least_memory(looks, cells, 1), least_memory(looks, cells, 3)
    print(f"MiB of the runner, early and late: {early >> 20}, {late >> 20}", flush=True)
    assert late <= early + GROWTH, f"the runner has grown from {early} to {late} bytes"


def main(minutes: float = 60.0, cells: int = 200, seed: int = 0, ranks: int = 1) -> None:
    """Begins with another seed whenever a matrix has ended, until the time is over."""
    until = time.monotonic() + 60 * minutes
    while (left := until - time.monotonic()) > 0:
        with tempfile.TemporaryDirectory() as folder:
            harm, looks = soak(Path(folder), cells, 10**6, left / 60, seed, ranks)
        print(f"seed {seed}: {cells} cells are the same after {harm.killed.total()} kills in {harm.runs} runs:")
        for what, times in sorted(harm.killed.items()):
            print(f"  {times:4d}  {what}")
        print(f"the last cell ended {harm.slowest:.1f} s after its runner, at the latest")
        check_growth(looks, cells)
        seed += 1


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
