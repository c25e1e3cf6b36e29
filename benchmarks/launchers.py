"""The seconds that launchers add to a cell on two cores: six cells of one step each, two at a time.

A cell's own seconds begin when its process has imported everything, so that starting it counts as the launcher's time.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import submitit

from benchmarks.common import show
from harness import config
from harness.cells.state import State
from harness.config import Config
from harness.elsewhere.ray import Ray
from harness.launch import launcher
from harness.launch.launcher import Launcher
from harness.launch.local import Local
from harness.launch.slurm import Job, SlurmArray, SlurmCell
from harness.matrix import Cell, cells

CORES = 2
SETTINGS = ["methods=[grpo,clip_b]", "seeds=[0,1,2]", "train.steps=1", "train.prompts=4", "train.updates=1"]
SETTINGS += ["train.group=4", "eval.problems=4", "eval.every=0", "checkpoint.save_model=false", "hardware.device=cpu"]


class Submitit(SlurmArray):
    """Submissions to submitit's executor of this machine, which has no queue: no more cells than cores at a time."""

    def __init__(self, settings: Config) -> None:
        super().__init__(settings, "cpu")
        self.submissions: dict[str, Any] = {}

    def start(self, waiting: Sequence[Cell]) -> list[SlurmCell]:
        running = sum(not job.done() for job in self.submissions.values())
        return super().start(waiting[: CORES - running])

    def executor(self, cells: int) -> Any:
        executor = submitit.LocalExecutor(self.place)
        executor.update_parameters(timeout_min=60)
        return executor

    def submit(self, cells: Sequence[Cell]) -> list[Any]:
        jobs = super().submit(cells)
        self.submissions |= {job.job_id: job for job in jobs}
        return jobs

    def look(self, job: str) -> Job | None:
        return Job("COMPLETED" if self.submissions[job].done() else "RUNNING", "")


LAUNCHERS: dict[str, Callable[[Config], Launcher]] = {
    "local": lambda settings: Local(CORES, 1),
    "Ray": lambda settings: Ray(settings, "cpu", CORES),
    "submitit": Submitit,
}


def main() -> None:
    rows = []
    for name, build in LAUNCHERS.items():
        with tempfile.TemporaryDirectory() as folder:
            settings = config.load_config("demo", [*SETTINGS, f"results={folder}"])
            settings.folder.mkdir()
            matrix = cells(settings)
            start = time.perf_counter()
            launcher.run_cells(matrix, build(settings), launcher.Watcher())
            wall = time.perf_counter() - start
            states = [State.read(cell.folder) for cell in matrix]
            assert all(state.state == "done" for state in states)
            in_cells = sum(state.seconds for state in states)
            cell_s, added_s = in_cells / len(matrix), (CORES * wall - in_cells) / len(matrix)
            rows.append([name, f"{wall:.0f} s", f"{cell_s:.1f} s", f"{added_s:.1f} s"])
    show(f"{len(matrix)} cells, {CORES} at a time", ["launcher", "wall", "a cell's own", "added to a cell"], rows)


if __name__ == "__main__":
    main()
