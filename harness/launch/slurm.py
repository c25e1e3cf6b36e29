"""Cells as jobs of one SLURM array. A job whose time is over or whose machine is lost is queued again.

The array outlives the process that submitted it, unless that process is interrupted: the next `run` finds the jobs in
the queue and takes them over.
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
from typing import Any

from harness.base import files
from harness.base.errors import UserError
from harness.base.processes import wait_for_all
from harness.cells.state import State
from harness.config import Config
from harness.config import Slurm as Settings
from harness.launch.launcher import (
    ask_to_stop,
    check_extra,
    environment,
    mark_failed,
    prepare_cell,
    start_rank,
    torchrun_variables,
)
from harness.matrix import Cell

JOBS = "slurm.json"  # in a matrix's folder: the id of each cell's job, by the cell's id
LOOKS = 2.0  # seconds between two calls of squeue, which loads the controller that all users share
LIVES = 10_000  # jobs of a cell that may run out of time; a job that makes no progress ends the cell earlier
# Seconds for which the queue must have shown a job as over before it counts as over: a job that is being put back into
# the queue is shown so for a moment.
SETTLING = 20.0
SPARE = 30  # seconds before the end of its time in which a job is put back into the queue
OVER = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "REVOKED", "TIMEOUT")


@dataclass(frozen=True)
class Job:
    """A job as squeue shows it."""

    state: str  # in SLURM's words
    reason: str

    def __str__(self) -> str:
        if self.reason in ("", "None"):
            return self.state.lower()
        return f"{self.state.lower()} ({self.reason})"

    @property
    def over(self) -> bool:
        return self.state in OVER


def squeue() -> dict[str, Job] | None:
    """Return this user's jobs by id, including recently ended ones; None if SLURM does not answer."""
    command = ["squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i|%T|%r"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    jobs = (line.split("|") for line in output.splitlines())
    return {job: Job(job_state, reason) for job, job_state, reason in jobs}


def submitted_jobs(config: Config) -> dict[str, str]:
    """Return the id of the job that each cell was last submitted as, by the cell's id."""
    path = config.folder / JOBS
    if not path.exists():
        return {}
    return files.read_json(path)


def queued_cells(config: Config) -> dict[str, Job]:
    """Return the jobs of cells that are in the queue now, by the cell's id."""
    jobs = submitted_jobs(config)
    if not jobs:  # most machines have no queue, and asking it may take a minute
        return {}
    now = squeue() or {}
    return {key: now[job] for key, job in jobs.items() if job in now and not now[job].over}


def private_folder(name: str) -> Path:
    """Return the folder for submissions and for output that precedes a cell's log.

    A job executes the pickle in it, so no other user may write there, even if others may write to the results.
    """
    folder = files.default_cache() / f"slurm-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise UserError(
            f"other users may write to {folder}, and jobs run code from it; remove their permission, or the folder"
        )
    (folder / name).mkdir(exist_ok=True)
    return folder / name


class SlurmCell:
    def __init__(self, cell: Cell, job: str, array: SlurmArray) -> None:
        self.cell, self.job, self.array = cell, job, array
        self.over_since: float | None = None  # when the queue first showed its job as over

    def waits(self) -> bool:
        job = self.array.look(self.job)
        return job is not None and job.state != "RUNNING"

    def code(self) -> int | None:
        job = self.array.look(self.job)
        if job is not None and not job.over:
            self.over_since = None
            return None
        if State.known(self.cell.folder).ended:
            return 0
        self.over_since = self.over_since or time.monotonic()
        if time.monotonic() - self.over_since <= SETTLING:
            return None
        return 1

    def reason(self) -> str:
        job = self.array.look(self.job)
        log = f"{self.array.place / self.job}_0_log.out"
        return f"SLURM ended its job {self.job}: {job or 'reason unknown'}; see {log}"

    def kill(self) -> None:
        cancel_jobs(self.job)


class SlurmArray(contextlib.AbstractContextManager["SlurmArray", None]):
    """The launcher for SLURM: submits cells as one array and watches the queue."""

    def __init__(self, config: Config, device: str, jobs: int | None = None) -> None:
        check_extra("slurm", "submitit")
        if config.hardware.share < 1:
            raise UserError(
                f"hardware.share is {config.hardware.share}; allowed with --launcher slurm: 1, because a job gets "
                "whole GPUs"
            )
        slurm = config.launch.slurm
        if slurm.notice_minutes >= slurm.minutes:
            raise UserError(
                f"launch.slurm.notice_minutes is {slurm.notice_minutes}; allowed: less than minutes ({slurm.minutes})"
            )
        self.config, self.device, self.jobs = config, device, jobs
        self.place = private_folder(config.name)
        self.known: dict[str, Job] = {}
        self.looked = float("-inf")
        self.cells: list[SlurmCell] = []

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # The handler of our command line raises KeyboardInterrupt with the number of the signal, Python's without one.
        if isinstance(error, KeyboardInterrupt) and error.args not in ((), (signal.SIGINT,)):
            return  # the terminal was closed, or the login node restarts: the array keeps running
        running = [cell.job for cell in self.cells if cell.code() is None]
        cancel_jobs(*running)

    def start(self, waiting: Sequence[Cell]) -> list[SlurmCell]:
        """Take over the jobs of an earlier run that are in the queue, and submit the other cells."""
        self.looked = float("-inf")
        jobs: dict[str, str] = {}
        for key, job in submitted_jobs(self.config).items():
            shown = self.look(job)
            if shown is not None and not shown.over:
                jobs[key] = job
        new = [cell for cell in waiting if cell.id not in jobs]
        for cell in new:
            prepare_cell(cell)
        for cell, submission in zip(new, self.submit(new), strict=True):
            jobs[cell.id] = submission.job_id
        # After a kill before this line, the next run submits these cells again; the lease of a cell then lets one of
        # its two jobs work at a time.
        files.write_json(self.config.folder / JOBS, jobs)
        self.looked = float("-inf")
        started = []
        for cell in waiting:
            job = jobs[cell.id]
            self.known[job] = Job("PENDING", "")  # until the next look at the queue
            started.append(SlurmCell(cell, job, self))
        self.cells += started
        return started

    def submit(self, cells: Sequence[Cell]) -> list[Any]:
        """Submit these cells; return submitit's jobs."""
        from submitit.core.utils import FailedJobError

        if not cells:
            return []
        threads = self.config.hardware.threads
        work = [RankWork(str(cell.folder.absolute()), threads, self.config.launch.slurm) for cell in cells]
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit prints the refusal as well as raising it
                jobs: list[Any] = self.executor(len(cells)).submit_array(work)
                return jobs
        except FailedJobError as error:
            refusal = str(error).strip().splitlines()[-1].removeprefix("sbatch: error: ")
            options = ", ".join(f"{key}={value}" for key, value in self.options.items() if value is not None)
            raise UserError(
                f"sbatch refuses the jobs: {refusal}; launch.slurm and hardware request {options}"
            ) from error

    @property
    def options(self) -> dict[str, Any]:
        """The resources of a job, by their names in sbatch."""
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
        """Return submitit's executor for this number of cells."""
        import submitit

        if not shutil.which("sbatch"):
            raise UserError("--launcher slurm submits jobs with sbatch, which is not installed on this machine")
        slurm = self.config.launch.slurm
        inside = {"python": f"{slurm.container} python"} if slurm.container else {}
        executor = submitit.SlurmExecutor(self.place, max_num_timeout=LIVES, **inside)
        executor.update_parameters(
            job_name=f"entrobench-{self.config.name}",
            signal_delay_s=60 * slurm.notice_minutes,
            array_parallelism=self.jobs or cells,
            setup=slurm.setup or None,
            # One rank that fails ends all. Since SLURM 22.05, srun does not take the number of cores from sbatch.
            srun_args=["--kill-on-bad-exit=1", f"--cpus-per-task={self.config.hardware.threads}"],
            stderr_to_stdout=True,
            wckey=None,  # submitit's default is a key of its own, which a cluster may refuse
            # SLURM itself puts a job back into the queue if it is preempted or its machine is lost.
            additional_parameters={"requeue": True, **slurm.extra},
            **self.options,
        )
        return executor

    def look(self, job: str) -> Job | None:
        """Return a job as the queue showed it moments ago; None if the queue no longer has it."""
        if time.monotonic() - self.looked > LOOKS:
            jobs = squeue()
            if jobs is not None:  # without an answer, the last one is still the best guess
                self.known = jobs
            self.looked = time.monotonic()
        return self.known.get(job)


def cancel_jobs(*jobs: str) -> None:
    if jobs:
        subprocess.run(["scancel", *jobs], check=False, capture_output=True)


class RankWork:
    """The work of one rank of a cell, in a task of SLURM."""

    def __init__(self, folder: str, threads: int, slurm: Settings) -> None:
        self.folder, self.threads, self.slurm = folder, threads, slurm
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> None:
        from submitit import JobEnvironment

        task = JobEnvironment()
        address = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", task.hostname)  # the machine on which srun runs
        port = 20_000 + int(task.raw_job_id) % 40_000  # other jobs on this machine have other ids
        meeting = torchrun_variables(task.global_rank, task.local_rank, task.num_tasks, address, port)
        self.began, self.step_before = time.monotonic(), self.state.durable_step
        self.process = start_rank(self.folder, environment(self.threads) | meeting)
        if code := wait_for_all([self.process]):
            # As a shell reports a process that ended by a signal: 128 and the signal's number.
            raise SystemExit(code if code > 0 else 128 - code)

    @property
    def state(self) -> State:
        return State.known(Path(self.folder))

    def checkpoint(self) -> Any:
        """Stop the cell and return the work of its next life; None if another life would not help.

        submitit calls this in the first task only, from its signal handler, while `__call__` waits for the process. If
        it gets work, it puts the job back into the queue.
        """
        from submitit.helpers import DelayedSubmission

        if self.process is not None:
            noticed = time.monotonic()
            ask_to_stop(self.process)
            limit = 60 * self.slurm.notice_minutes - SPARE
            while not process_exited(self.process) and time.monotonic() - noticed < limit:
                time.sleep(0.1)
            self.process.kill()
            if self.state.ended:
                return None
            # A life that was cut short by preemption may make no progress; one of at least half its time must.
            long_life = noticed - self.began > 60 * self.slurm.minutes / 2
            if self.state.durable_step == self.step_before and long_life:
                reason = f"no step was completed in launch.slurm.minutes ({self.slurm.minutes})"
                mark_failed(Path(self.folder), reason)
                return None
        return DelayedSubmission(RankWork(self.folder, self.threads, self.slurm))


def process_exited(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended, without Popen's lock.

    In a signal handler that lock may be held by the interrupted call of `wait`, for which this one would wait forever.
    """
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return True
