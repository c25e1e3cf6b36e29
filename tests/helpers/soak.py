"""Kill the processes of a matrix at random moments, and compare its results with those of an uninterrupted run.

    python tests/helpers/soak.py [minutes] [cells] [seed] [ranks]

A seed draws the victims and moments. The victim is a cell, one of its ranks if it has several, the server that cells
are forked from, the runner, or all of them. The moment is a phase of a cell, a write, or any; the first moments are
when the matrix makes its base model, when it filters problems, and when it makes its MLflow store. The results must
equal those of the uninterrupted run: every number except times, every sample, every weight, and MLflow with each
attempt and each point once. No cell may outlive its runner by more than some seconds, and the runner's memory and open
files may not grow while cells come and go.
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

from patience import patient

from harness.cells import lease
from harness.cells.lease import last_heartbeat
from harness.tracking.reader import reader
from harness.tracking.sync import metric_name
from tasks.countdown import Countdown

SETTINGS = ["methods=[grpo,clip_b]", "train.steps=3", "train.prompts=4", "train.updates=2", "train.group=4"]
SETTINGS += ["eval.problems=4", "eval.samples=4", "eval.k=2", "eval.every=0", "checkpoint.every=1", "dynamics.every=0"]
SETTINGS += ["tasks=[countdown(count=2)]", "models=[tiny.yaml]", "train.filter={n: 64, low: 0, high: 1}", "name=soak"]
MODEL = {"task": "countdown(count=2)", "hidden": 32, "layers": 1, "steps": 60, "batch": 32, "lr": 1e-2}
MODEL |= {"warmup_steps": 5}
FILTERED = len(Countdown(count=2).problems("train"))  # problems that the filter samples, in more than one batch
# With their victims. These moments come only once, in a matrix with an empty cache, so they are the first.
ONCE = (("making the model", "runner"), ("filter", "all"), ("making the store", "runner"))
VICTIMS = ("cell", "server", "runner", "all")
PHASES = ("loading the model", "rollout", "update", "evaluate", "saving the model")
MOMENTS = (*PHASES, "importing", "checkpoint", "line", "done", "any")
WAIT = 60.0  # seconds to wait for a moment on an idle machine
WAIT_ONCE = 600.0  # for a moment that comes once in each matrix
# The kill comes at a random time within this many seconds after the moment; 0.05 for all others.
DELAYS = {"any": 3.0, "importing": 3.0, "making the model": 1.0, "making the store": 0.3}
ORPHANS = 10.0  # seconds in which the cells of a killed runner must end
KEPT = 4  # a file counts as leaked after this many ends of cells: twice the cells that two cores run at once
GROWTH = 32 * 2**20  # bytes by which the runner may grow after a quarter of its cells
OUTPUT = "output.txt"  # of the runners


@dataclass
class Harm:
    """The kills of a matrix, by victim and moment, and their consequences."""

    killed: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    slowest: float = 0.0  # seconds from the end of a runner to that of its last cell


class Run:
    """A runner, started as on the command line."""

    def __init__(self, folder: Path, settings: list[str]) -> None:
        self.folder, self.cache = folder / "results" / "soak", folder / "cache"
        (folder / "tiny.yaml").write_text(json.dumps({"recipe": MODEL}))
        command = [sys.executable, "-m", "entrobench", "run", "demo", *settings, f"results={folder / 'results'}"]
        with open(folder / OUTPUT, "ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "ENTROBENCH_CACHE": str(self.cache)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def completes(self, cells: int) -> bool:
        """Wait for the end, and return whether all cells are done; if one learned nothing, a run ends with 1."""
        return self.process.wait() in (0, 1) and done_cells(self.folder) == cells

    def parts(self) -> dict[str, list[int]]:
        """Return the ids of the run's processes by their kind."""
        servers = [child for child in children(self.process.pid) if b"forkserver" in command_line(child)]
        cells = list(chain.from_iterable(map(children, servers)))
        ranks = [
            child for child in chain.from_iterable(map(children, cells)) if b"cell.run_rank" in command_line(child)
        ]
        return {"runner": [self.process.pid], "server": servers, "cell": cells, "rank": ranks}

    def open_files(self) -> set[str]:
        """List the runner's open files, each by its number and name; a pipe's name is unique."""
        names = set()
        for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was closed after the listing
                names.add(f"{entry.name} {os.readlink(entry)}")
        return names

    def memory(self) -> int:
        """Return the runner's memory in bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def children(process: int) -> list[int]:
    """Return the children of all threads of a process, of which none are left once it has ended."""
    found: list[int] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def command_line(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


# The moments


def log_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*/metrics.jsonl"))


def done_cells(folder: Path) -> int:
    return sum(b'"done"' in path.read_bytes() for path in folder.glob("*/state.json"))


def condition_of(moment: str, run: Run) -> Callable[[], bool]:
    """Return a function that returns whether a moment has come since now."""
    folder = run.folder
    size_before, done_before = log_size(folder), done_cells(folder)
    start = time.time()

    def phase_has_begun() -> bool:
        beats = [path for path in folder.glob("*/leases/*/standing-0") if path.stat().st_mtime > start]
        return any(last_heartbeat(path.parent).startswith(moment) for path in beats)

    conditions: dict[str, Callable[[], bool]] = {
        "making the model": lambda: any(not lock.with_suffix("").is_dir() for lock in run.cache.glob("models/*.lock")),
        "filter": lambda: any(
            len(json.loads(path.read_bytes())["right"]) < FILTERED for path in run.cache.glob("filters/*.json")
        ),
        "making the store": lambda: any(folder.parent.glob(".mlflow.db.*/mlflow.db")),
        "importing": lambda: bool(run.parts()["server"]),
        "checkpoint": lambda: any(folder.glob("*/leases/*/.step-*")),
        "line": lambda: log_size(folder) > size_before,
        "done": lambda: done_cells(folder) > done_before,
        "any": lambda: True,
    }
    return conditions.get(moment, phase_has_begun)


def holds(condition: Callable[[], bool]) -> bool:
    with contextlib.suppress(FileNotFoundError):  # a lease was released during the check
        return condition()
    return False


def wait(run: Run, moment: str, random_delay: random.Random) -> bool:
    """Wait for a moment and a short random time while the run is alive; return whether it still is."""
    once = moment in [name for name, _ in ONCE]
    condition = condition_of(moment, run)
    deadline = time.monotonic() + patient(WAIT_ONCE if once else WAIT)
    while run.process.poll() is None and time.monotonic() < deadline and not holds(condition):
        time.sleep(0.002)
    time.sleep(random_delay.random() * DELAYS.get(moment, 0.05))
    return run.process.poll() is None


def kill(run: Run, victim: str) -> float:
    """Kill a part of a run, if it exists; return the seconds until all cells that lost their runner have ended."""
    parts = run.parts()
    processes = parts[victim][:1] if victim != "all" else list(chain(*parts.values()))
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    if victim not in ("runner", "all"):
        return 0.0
    start = time.monotonic()
    run.process.wait()
    while True:
        orphans = [process for process in (*parts["cell"], *parts["rank"]) if lease.born(process)]
        if not orphans:
            return time.monotonic() - start
        assert time.monotonic() - start < patient(ORPHANS), f"cells {orphans} outlive their runner"
        time.sleep(0.02)


def run_with_kills(folder: Path, settings: list[str], cells: int, kills: int, until: float, seed: int) -> Harm:
    """Run a matrix to its end, and kill its processes `kills` times or until a time (monotonic) has come."""
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
                if run.completes(cells):
                    return harm
                continue
            harm.slowest = max(harm.slowest, kill(run, victim))
            # A moment that comes once may have passed before the kill.
            if (moment, victim) not in ONCE or holds(condition_of(moment, run)):
                harm.killed[f"{victim} at {moment}"] += 1
        while run is None or not run.completes(cells):
            harm.runs += 1
            assert harm.runs < kills + 5, f"the matrix does not end; see {folder / OUTPUT}"
            run = Run(folder, settings)
        return harm
    finally:
        if run is not None and run.process.poll() is None:  # something went wrong, or Ctrl-C
            kill(run, "all")


# Results that must be equal


def records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return all results of a matrix by cell, without times and ids."""
    by_cell: dict[str, dict[str, Any]] = {}
    for config in sorted(folder.glob("results/soak/*/config.yaml")):
        cell = config.parent
        by_cell[cell.name] = {
            **checksums(cell, "samples/*", "evals/*", "model/*"),
            "state": json.loads((cell / "state.json").read_bytes())["state"],
            "steps": [(line["step"], numbers(line["metrics"])) for line in logged(cell)],
        }
    return by_cell


def checksums(folder: Path, *patterns: str) -> dict[str, str]:
    """Return the hashes of files in a folder, by their relative paths."""
    hashes = {}
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            hashes[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return hashes


def logged(cell: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (cell / "metrics.jsonl").read_bytes().splitlines()]


def numbers(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


def check_mlflow(folder: Path) -> None:
    """Raise AssertionError unless MLflow has each cell and each point once."""
    with reader(f"sqlite:///{folder / 'results' / 'mlflow.db'}") as source:
        runs = [run for run in source.runs(source.experiments()["soak"]) if "cell" in run.tags]
        points_of_runs = source.curves(runs, lambda name: not name.startswith(("final/", "time/")))
        curves = {run.tags["cell"]: points for run, points in zip(runs, points_of_runs, strict=True)}
    # The name of a cell's folder ends in its key.
    cells = {path.parent.name.rpartition("-")[2]: path.parent for path in folder.glob("results/soak/*/config.yaml")}
    assert len(runs) == len(curves), "a cell has several runs"
    assert curves.keys() == cells.keys()
    for key, cell in cells.items():
        expected: dict[str, list[tuple[int, float]]] = {}
        for line in logged(cell):
            for name, value in numbers(line["metrics"]).items():
                expected.setdefault(metric_name(name), []).append((line["step"], value))
        actual = {}
        for name, points in curves[key].items():
            actual[name] = [(point.step, point.value) for point in points]
        assert actual == expected, cell.name


# The uninterrupted run, and the growth of its runner


@dataclass(frozen=True)
class Look:
    """The state of the runner at one moment."""

    done: int  # cells
    files: set[str]
    memory: int


def run_uninterrupted(folder: Path, settings: list[str], cells: int) -> list[Look]:
    """Run a matrix to its end, and record the state of its runner ten times a second."""
    run, looks = Run(folder, settings), list[Look]()
    while run.process.poll() is None:
        with contextlib.suppress(OSError):  # the runner has just ended
            looks.append(Look(done_cells(run.folder), run.open_files(), run.memory()))
        time.sleep(0.1)
    assert run.completes(cells), (folder / OUTPUT).read_text()
    return looks


def kept_open(looks: list[Look]) -> set[str]:
    """List the files that the runner opened for a cell and keeps open after the cell has ended.

    The number of open files proves nothing: MLflow's database, its journal and the lock of the cell that is being sent
    come and go. A file counts if it was opened after the first cell had ended and is still open KEPT ends of cells
    later, when all cells of that time are gone. The database is left out, since a pool holds it, and so are
    locks in cells' folders, which are held as long as MLflow takes for that cell.
    """
    done_at_opening: dict[str, int] = {}
    kept = set()
    for look in looks:
        for name in look.files:
            opened_at = done_at_opening.setdefault(name, look.done)
            if opened_at >= 1 and look.done >= opened_at + KEPT and "mlflow" not in name:
                kept.add(name)
        for name in done_at_opening.keys() - look.files:
            del done_at_opening[name]  # a later file may get the same number
    return kept


def soak(folder: Path, cells: int, kills: int, minutes: float, seed: int, ranks: int = 1) -> tuple[Harm, list[Look]]:
    """Raise AssertionError if a matrix with kills ends differently from an uninterrupted one."""
    settings = [*SETTINGS, f"seeds=[{','.join(map(str, range(cells // 2)))}]", f"hardware.ranks={ranks}"]
    uninterrupted, killed = folder / "uninterrupted", folder / "killed"
    for place in (uninterrupted, killed):
        place.mkdir()
    looks = run_uninterrupted(uninterrupted, settings, cells)
    harm = run_with_kills(killed, settings, cells, kills, time.monotonic() + 60 * minutes, seed)
    expected = records(uninterrupted)
    assert len(expected) == cells
    assert records(killed) == expected
    expected_cache = checksums(uninterrupted / "cache", "models/*/*", "filters/*.json")
    assert len(expected_cache) > 1
    assert checksums(killed / "cache", "models/*/*", "filters/*.json") == expected_cache
    for place in (uninterrupted, killed):
        check_mlflow(place)
    return harm, looks


def check_growth(looks: list[Look], cells: int) -> None:
    """Raise AssertionError if the runner keeps files of ended cells open, or its memory grows after the first cells."""
    kept = kept_open(looks)
    assert not kept, f"the runner keeps files of cells that have ended: {sorted(kept)}"
    early, late = (min(look.memory for look in looks if 4 * look.done // cells == quarter) for quarter in (1, 3))
    # The first quarter includes the loading of everything that the runner needs.
    print(f"MiB of the runner, early and late: {early >> 20}, {late >> 20}", flush=True)
    assert late <= early + GROWTH, f"the runner has grown from {early} to {late} bytes"


def main(minutes: float = 60.0, cells: int = 200, seed: int = 0, ranks: int = 1) -> None:
    """Repeat the soak with the next seed until the time is over."""
    until = time.monotonic() + 60 * minutes
    while (seconds_left := until - time.monotonic()) > 0:
        with tempfile.TemporaryDirectory() as folder:
            harm, looks = soak(Path(folder), cells, 10**6, seconds_left / 60, seed, ranks)
        print(f"seed {seed}: {cells} cells are the same after {harm.killed.total()} kills in {harm.runs} runs:")
        for victim, times in sorted(harm.killed.items()):
            print(f"  {times:4d}  {victim}")
        print(f"the last cell ended {harm.slowest:.1f} s after its runner, at the latest")
        check_growth(looks, cells)
        seed += 1


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
