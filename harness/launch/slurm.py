"""Cells as jobs of SLURM: one array for all of them, which a cell leaves and enters again as its machines come and go.

The array outlives the process that submitted it, unless that one is interrupted: the next one finds it in the queue.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.base import files
from harness.base.errors import UserError
from harness.base.processes import wait_for_all
from harness.cells.state import State
from harness.config import Config
from harness.config import Slurm as Settings
from harness.launch import remote
from harness.launch.launcher import check_extra, environment, failed, prepare
from harness.matrix import Cell

JOBS = "slurm.json"  # of a matrix: the job of each cell, by its key
LOOKS = 2.0  # seconds from one look at the queue to the next
LIVES = 10_000  # so often a cell may run out of time, as long as each life brings it forward
SETTLING = 20.0  # seconds after which a job is believed that it has ended: one that is put back may look so before
SPARE = 30  # seconds before its end in which a job is put back into the queue
OVER = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "REVOKED", "TIMEOUT")


@dataclass(frozen=True)
class Job:
    """A job as the queue shows it."""

    state: str  # as SLURM calls it
    reason: str

    def __str__(self) -> str:
        return self.state.lower() + (f" ({self.reason})" if self.reason not in ("", "None") else "")

    @property
    def over(self) -> bool:
        return self.state in OVER


def queue() -> dict[str, Job] | None:
    """Returns this user's jobs by their ids, those of the last minutes among them; None where SLURM gives no answer."""
    command = ["squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i|%T|%r"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return {job: Job(*rest) for job, *rest in (line.split("|") for line in told.splitlines())}


def jobs(config: Config) -> dict[str, str]:
    """Returns the job that each cell was submitted as last, by the cell's key."""
    path = config.folder / JOBS
    return files.read_json(path) if path.exists() else {}


def queued(config: Config) -> dict[str, Job]:
    """Returns the jobs of cells that are in the queue now, by the cell's key."""
    known = jobs(config)
    now = (queue() or {}) if known else {}
    return {key: now[job] for key, job in known.items() if job in now and not now[job].over}


def private(name: str) -> Path:
    """Returns the folder for what is submitted, and for what SLURM and the processes say before a cell's log begins.

    The job opens the pickle that lies there: nobody else may write one, whoever may write to the results.
    """
    folder = files.default_cache() / f"slurm-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (found := folder.stat()).st_uid != os.getuid() or found.st_mode & 0o022:
        raise UserError(f"others may write to {folder}, from which jobs run code; take that right away, or the folder")
    (folder / name).mkdir(exist_ok=True)
    return folder / name


class Task:
    """A cell that was submitted."""

    def __init__(self, cell: Cell, job: str, array: Slurm) -> None:
        self.cell, self.job, self.array = cell, job, array
        self.over: float | None = None  # since when the queue says so

    def waits(self) -> str | None:
        now = self.array.now(self.job)
        return f"SLURM: {now}" if now is not None and now.state != "RUNNING" else None

    def code(self) -> int | None:
        now = self.array.now(self.job)
        if now is not None and not now.over:
            self.over = None
            return None
        if State.known(self.cell.folder).ended:
            return 0
        self.over = self.over or time.monotonic()
        return 1 if time.monotonic() - self.over > SETTLING else None

    def reason(self) -> str:
        now = self.array.now(self.job)
        return f"SLURM ended its job {self.job}: {now or 'unknown why'}; see {self.array.place / self.job}_0_log.out"

    def kill(self) -> None:
        cancel(self.job)


class Slurm:
    """Submits cells as one array, and watches the queue."""

    def __init__(self, config: Config, device: str, jobs: int | None = None) -> None:
        check_extra("slurm", "submitit")
        if config.hardware.share < 1:
            raise UserError(
                f"hardware.share is {config.hardware.share}; allowed with --launcher slurm: 1, as a job has whole GPUs"
            )
        if (slurm := config.launch.slurm).notice_minutes >= slurm.minutes:
            raise UserError(
                f"launch.slurm.notice_minutes is {slurm.notice_minutes}; allowed: less than minutes ({slurm.minutes})"
            )
        self.config, self.device, self.jobs = config, device, jobs
        self.place = private(config.name)
        self.known: dict[str, Job] = {}
        self.looked = float("-inf")
        self.tasks: list[Task] = []

    def __enter__(self) -> Slurm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt) and error.args not in ((), (signal.SIGINT,)):
            return  # a terminal was closed, or a login node restarts: the array runs on
        cancel(*(task.job for task in self.tasks if task.code() is None))

    def start(self, waiting: Sequence[Cell]) -> list[Task]:
        """Takes over what an earlier run has left in the queue, and submits the others."""
        self.looked = float("-inf")
        known = {key: job for key, job in jobs(self.config).items() if (now := self.now(job)) and not now.over}
        new = [cell for cell in waiting if cell.key not in known]
        for cell in new:
            prepare(cell)
        known |= {cell.key: job.job_id for cell, job in zip(new, self.submitted(new), strict=True)}
        files.write_json(self.config.folder / JOBS, known)
        self.known |= {known[cell.key]: Job("PENDING", "") for cell in waiting}  # until a look tells
        self.looked = float("-inf")
        found = [Task(cell, known[cell.key], self) for cell in waiting]
        self.tasks += found
        return found

    def submitted(self, cells: Sequence[Cell]) -> list[Any]:
        """Returns the jobs of these cells, as submitit has them."""
        from submitit.core.utils import FailedJobError

        if not cells:
            return []
        threads = self.config.hardware.threads
        work = [Work(str(cell.folder.absolute()), threads, self.config.launch.slurm) for cell in cells]
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # to which submitit writes the refusal too
                jobs: list[Any] = self.executor(len(cells)).submit_array(work)
                return jobs
        except FailedJobError as error:
            said = str(error).strip().splitlines()[-1].removeprefix("sbatch: error: ")
            asked = ", ".join(f"{key}={value}" for key, value in self.asked.items() if value is not None)
            raise UserError(f"sbatch refuses the jobs: {said}; launch.slurm and hardware ask for {asked}") from error

    @property
    def asked(self) -> dict[str, Any]:
        """Returns what a job asks for, in the words of sbatch."""
        hardware, slurm = self.config.hardware, self.config.launch.slurm
        return {
            "partition": slurm.partition,
            "account": slurm.account,
            "time": slurm.minutes,
            "nodes": hardware.nodes,
            "ntasks_per_node": hardware.ranks,
            "cpus_per_task": hardware.threads,
            "gpus_per_node": hardware.ranks if self.device == "cuda" else None,
        }

    def executor(self, cells: int) -> Any:
        """Returns what submits so many cells."""
        import submitit

        if not shutil.which("sbatch"):
            raise UserError("--launcher slurm submits jobs with sbatch, and there is none on this machine")
        slurm = self.config.launch.slurm
        inside = {"python": f"{slurm.container} python"} if slurm.container else {}
        executor = submitit.SlurmExecutor(self.place, max_num_timeout=LIVES, **inside)
        executor.update_parameters(
            job_name=f"entrobench-{self.config.name}",
            signal_delay_s=60 * slurm.notice_minutes,
            array_parallelism=self.jobs or cells,
            setup=slurm.setup or None,
            srun_args=["--kill-on-bad-exit=1", f"--cpus-per-task={self.config.hardware.threads}"],
            stderr_to_stdout=True,
            wckey=None,
            additional_parameters={"requeue": True, **slurm.extra},
            **self.asked,
        )
        return executor

    def now(self, job: str) -> Job | None:
        """Returns a job as the queue showed it some moments ago; None where it is there no more."""
        if time.monotonic() - self.looked > LOOKS:
            found = queue()
            if found is not None:  # otherwise what was known before may well be so still
                self.known = found
            self.looked = time.monotonic()
        return self.known.get(job)


def cancel(*jobs: str) -> None:
    if jobs:
        subprocess.run(["scancel", *jobs], check=False, capture_output=True)


class Work:
    """Does a cell, or a rank of it, in a task of SLURM."""

    def __init__(self, folder: str, threads: int, slurm: Settings) -> None:
        self.folder, self.threads, self.slurm = folder, threads, slurm
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> None:
        from submitit import JobEnvironment

        here = JobEnvironment()
        first = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", here.hostname)  # of the machine where srun runs
        port = 20_000 + int(here.raw_job_id) % 40_000  # jobs beside this one have other ids
        meeting = remote.meeting(here.global_rank, here.local_rank, here.num_tasks, first, port)
        self.began, self.before = time.monotonic(), self.state.durable_step
        self.process = remote.start(self.folder, {**environment(self.threads), **meeting})
        if code := wait_for_all([self.process]):
            raise SystemExit(code if code > 0 else 128 - code)

    @property
    def state(self) -> State:
        return State.known(Path(self.folder))

    def checkpoint(self) -> Any:
        """Stops the cell, and returns what its job does when it runs again, for which submitit puts it back into the
        queue; None where that leads nowhere. Called in the first task alone, while that waits for its process."""
        from submitit.helpers import DelayedSubmission

        if self.process is not None:
            heard = time.monotonic()
            remote.ask_to_stop(self.process)
            while not exited(self.process) and time.monotonic() - heard < 60 * self.slurm.notice_minutes - SPARE:
                time.sleep(0.1)
            self.process.kill()
            if self.state.ended:
                return None
            if self.state.durable_step == self.before and heard - self.began > 60 * self.slurm.minutes / 2:
                failed(Path(self.folder), f"no step was done in launch.slurm.minutes ({self.slurm.minutes})")
                return None
        return DelayedSubmission(Work(self.folder, self.threads, self.slurm))


def exited(process: subprocess.Popen[bytes]) -> bool:
    """Returns whether a process has ended, where a signal interrupted who waits for it and holds the lock of that."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return True
