"""Cells as jobs of a real SLURM with two simulated machines, and as processes that submitit treats as jobs."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launched import Watcher, lines, planned
from patience import wait_until

from harness import matrix
from harness.base.errors import UserError
from harness.base.terminal import console
from harness.cells.state import State
from harness.commands import status
from harness.launch import cell, launcher, slurm
from harness.launch.slurm import Job, SlurmArray, private_folder
from harness.matrix import Cell
from harness.runs import run_matrix

pytestmark = [pytest.mark.processes, pytest.mark.slow]

NODES = ("one", "two")
CONF = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}
SlurmctldPidFile={folder}/control.pid
SlurmctldLogFile={folder}/control.log
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
KillWait=2
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=1000
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A SLURM of two machines of two cores each, which listen on loopback alone."""
    if not (shutil.which("slurmctld") and shutil.which("slurmd") and os.geteuid() == 0):
        pytest.skip("slurmctld and slurmd, of Debian's packages of these names, are not installed, or not for root")
    folder = tmp_path_factory.mktemp("slurm")
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [server.getsockname()[1] for server in servers]
    given = {"host": socket.gethostname(), "user": "root", "folder": folder, "ports": ports}
    (folder / "slurm.conf").write_text(CONF.format(**given))
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        for command in (["slurmctld", "-D"], *(["slurmd", "-D", "-N", node] for node in NODES)):
            if command[0] == "slurmd":
                (folder / command[-1]).mkdir()
            process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            stack.callback(process.terminate)
        wait_until(lambda: output_of("sinfo", "--noheader", "--format=%D %t") == "2 idle")
        yield


def output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Look often, and keep what is submitted with what else the test leaves."""
    monkeypatch.setattr(slurm, "private_folder", lambda name: tmp_path)
    monkeypatch.setattr(slurm, "LOOKS", 0.2)
    monkeypatch.setattr(slurm, "SETTLING", 5.0)


class Interrupting(Watcher):
    """Does something once, when the cell has got some way."""

    def __init__(self, cell: Cell, act: Any) -> None:
        super().__init__(self.look)
        self.cell, self.act_once, self.acted = cell, act, False

    def look(self, running: list[Cell]) -> None:
        if not self.acted and State.read(self.cell.folder).durable_step >= 2:
            self.acted = True
            self.act_once()


@pytest.mark.parametrize(("sent", "gone"), [(signal.SIGINT, ["7"]), (signal.SIGTERM, []), (signal.SIGHUP, [])])
def test_slurm_array_is_cancelled_by_ctrl_c_only(
    sent: signal.Signals, gone: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal that is closed, or a login node that restarts, leaves it there."""
    cancelled: list[str] = []
    monkeypatch.setattr(slurm, "cancel_jobs", lambda *jobs: cancelled.extend(jobs))
    monkeypatch.setattr(slurm, "squeue", lambda: {"7": Job("RUNNING", "")})
    one = planned(tmp_path)
    array = SlurmArray(one.config, "cpu")
    array.cells = [slurm.SlurmCell(one, "7", array)]
    with pytest.raises(KeyboardInterrupt), array:
        raise KeyboardInterrupt(sent)
    assert cancelled == gone


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("machines", "command"),
    [(2, ["scancel", "--signal=USR2"]), (1, ["scontrol", "requeue"])],
    ids=["time is up", "preempted"],
)
def test_slurm_array_goes_on_from_checkpoints(machines: int, command: list[str], cluster: None, tmp_path: Path) -> None:
    inside = f"unshare --mount env PATH={Path(sys.executable).parent}:/usr/bin:/bin"  # as a container has it
    container = [f"launch.slurm.container='{inside}'"] if machines == 1 else []
    wide = planned(tmp_path, f"hardware.nodes={machines}", "train.steps=8", "checkpoint.every=2", *container)
    array = SlurmArray(wide.config, "cpu")

    def interrupt() -> None:
        [task] = array.cells
        subprocess.run([*command, task.job], check=True)
        wait_until(lambda: str(array.look(task.job)) == "pending (BeginTime)" and task.waits())
        # SLURM would wait for as long as the credential of the first life is good, and counts in seconds: a job that
        # begins in that of the revocation is killed.
        time.sleep(2)
        subprocess.run(["scontrol", "update", f"JobId={task.job}", "StartTime=now"], check=True)

    watcher = Interrupting(wide, interrupt)
    launcher.run_cells([wide], array, watcher, poll=0.05)
    state = State.read(wide.folder)
    assert (state.state, state.where) == ("done", [socket.gethostname()] * machines), state
    stops = (wide.folder / "log.txt").read_text().count("stopped on request; the next run continues from here")
    assert stops == (2 if machines == 2 else 0), "both ranks, once; a job that is killed hears of nothing before"
    assert [*lines(wide.folder)] == [*range(9)]
    scripts = [path.read_text() for path in tmp_path.glob("*submission*.sh")]
    assert [f"{inside} python -u -m submitit" in script for script in scripts] == [bool(container)] * len(scripts) != []


@pytest.mark.slurm
def test_slurm_array_finds_queued_jobs(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = planned(tmp_path, "launch.slurm.extra={hold: true}", "methods=[grpo,clip_b]", "seeds=[0]").config
    cells = matrix.cells(settings)
    first, second = SlurmArray(settings, "cpu"), SlurmArray(settings, "cpu")
    with second:
        tasks = first.start(cells)
        array, _, _ = tasks[0].job.partition("_")
        assert [task.job for task in tasks] == [f"{array}_0", f"{array}_1"], "one array"
        assert [str(first.look(task.job)) for task in tasks] == ["pending (JobHeldUser)"] * 2
        assert all(task.waits() for task in tasks)
        assert [task.code() for task in tasks] == [None, None]
        assert [task.job for task in second.start(cells)] == [task.job for task in tasks], "not submitted again"
        monkeypatch.setattr(status, "config_of_arguments", lambda given: settings)
        with console.capture() as shown:
            status.call(argparse.Namespace())
        assert shown.get().count("SLURM: pending (JobHeldUser)") == 2
    wait_until(lambda: all(task.code() is not None for task in tasks))  # leaving removes them from the queue
    assert slurm.queued_cells(settings) == {}
    assert [State.read(each.folder) for each in cells] == [State(), State()]


@pytest.mark.slurm
def test_slurm_array_with_a_missing_partition(cluster: None, tmp_path: Path) -> None:
    lost = planned(tmp_path, "launch.slurm.partition=nowhere")
    with pytest.raises(UserError) as error, SlurmArray(lost.config, "cpu") as array:
        array.start([lost])
    said = str(error.value)
    assert said.startswith("sbatch refuses the jobs: ")
    assert "nvalid partition name specified; launch.slurm and hardware request partition=nowhere, time=240" in said


@pytest.mark.slurm
def test_slurm_array_with_a_job_that_breaks(cluster: None, tmp_path: Path) -> None:
    broken = planned(tmp_path, "launch.slurm.setup=['echo no such module >&2; exit 3']")
    launcher.run_cells([broken], SlurmArray(broken.config, "cpu"), Watcher(), poll=0.05)
    state = State.read(broken.folder)
    assert state.state == "failed"
    assert state.reason is not None
    said, _, place = state.reason.partition("; see ")
    assert "failed (NonZeroExitCode)" in said
    assert "no such module" in Path(place).read_text()


class Jobs:
    """Processes of this machine in the place of SLURM, as submitit has them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.jobs: list[Any] = []
        patch.setattr(SlurmArray, "executor", lambda array, cells: self.executor(array))
        patch.setattr(slurm, "squeue", self.queue)
        patch.setattr(slurm, "cancel_jobs", lambda *jobs: None)

    def executor(self, array: SlurmArray) -> Any:
        import submitit

        given = submitit.LocalExecutor(array.place, max_num_timeout=slurm.LIVES)
        given.update_parameters(timeout_min=60)
        submit = given.submit_array

        def submitted(work: Any) -> Any:
            jobs = submit(work)
            self.jobs += jobs
            return jobs

        given.submit_array = submitted
        return given

    def out_of_time(self) -> None:
        """Tells the task of the first job, which is the child of the process that submitit calls the job."""
        process = self.jobs[0].job_id
        [task] = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        os.kill(int(task), signal.SIGUSR2)

    def queue(self) -> dict[str, Job]:
        return {job.job_id: Job("COMPLETED" if job.done() else "RUNNING", "None") for job in self.jobs}


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    pytest.importorskip("submitit", reason="the extra slurm is not installed")
    return Jobs(monkeypatch)


@pytest.mark.long
def test_slurm_array_out_of_time(local: Jobs, tmp_path: Path) -> None:
    steps = ("train.steps=8", "checkpoint.every=2")
    there = planned(tmp_path / "there", *steps)
    watcher = Interrupting(there, local.out_of_time)
    launcher.run_cells([there], SlurmArray(there.config, "cpu"), watcher, poll=0.05)
    assert State.read(there.folder).state == "done"
    assert (there.folder / "log.txt").read_text().count("stopped on request") == 1
    here = planned(tmp_path / "here", *steps)
    here.spec.write(here.folder)
    cell.work(here.folder)  # without a break
    assert lines(there.folder) == lines(here.folder)


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("launch.slurm.notice_minutes=240", "launch.slurm.notice_minutes is 240; allowed: less than minutes (240)"),
        ("hardware.share=0.5", "hardware.share is 0.5; allowed with --launcher slurm: 1, because a job gets"),
    ],
)
def test_run_matrix_refuses_settings_before_it_writes(override: str, why: str, tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="the extra slurm is not installed")
    with pytest.raises(UserError, match=re.escape(why)):
        run_matrix(planned(tmp_path, override).config, where="slurm")
    assert not any(tmp_path.iterdir())


def test_slurm_array_keeps_its_files_private(local: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a pickle lie among the results, which others may have the right to write to."""
    monkeypatch.setattr(slurm, "private_folder", private_folder)
    monkeypatch.setenv("ENTROBENCH_CACHE", str(tmp_path / "cache"))
    one = planned(tmp_path / "results")
    array = SlurmArray(one.config, "cpu")
    [task] = array.start([one])
    local.jobs[0].cancel()
    folder = tmp_path / "cache" / f"slurm-{os.getuid()}"
    assert folder.stat().st_mode & 0o077 == 0
    assert [path.parent.parent for path in tmp_path.rglob("*.pkl")] == [folder]
    assert slurm.submitted_jobs(one.config) == {one.id: task.job}
    folder.chmod(0o770)
    with pytest.raises(UserError, match=f"other users may write to {folder}"):
        SlurmArray(one.config, "cpu")


def test_slurm_array_without_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="the extra slurm is not installed")
    monkeypatch.setenv("PATH", str(tmp_path))
    alone = planned(tmp_path)
    with pytest.raises(UserError, match="sbatch, which is not installed"), SlurmArray(alone.config, "cpu") as array:
        array.start([alone])


def test_slurm_array_without_submitit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match="needs the extra slurm"):
        SlurmArray(planned(tmp_path).config, "cpu")
