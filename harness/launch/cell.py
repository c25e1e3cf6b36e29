"""The process of one cell, in order: main -> (a process for each rank) -> work -> begin, run_cell, finish."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers

import baselines
import tasks
from harness import ranks
from harness.base import identities
from harness.base.errors import CellFailure, UserError
from harness.base.processes import python_command, wait_for_all
from harness.cells import checksums, evaluations, lease, provenance
from harness.cells.checksums import CHECKPOINTS
from harness.cells.log import NO_SIGNAL, MetricsLog, collapse, last_step, silent_end, why_no_signal
from harness.cells.source_digest import harness_digest, source_digest
from harness.cells.spec import CellSpec, changed_parts
from harness.cells.state import State, is_stopped
from harness.config import OWN, Hardware
from harness.launch.machine import check_one_machine
from harness.launch.status_writer import StatusWriter
from harness.methods.composition import method_classes
from harness.rollout import models
from harness.rollout.vllm import VllmEngine
from harness.train import loading  # noqa: F401  before anything else of transformers
from harness.train.checkpoint import Checkpoints, NoneWhole
from harness.train.parts import Parts, begin_cell, build_parts, source_classes, training_device
from harness.train.trainer import Trainer
from harness.verify.pool import VerifierPool

# An annex, imported by the cells that name it alone: the core imports none.
TRL_CELLS = "harness.elsewhere.trl.cell"

# The digests of the code that this process has imported. They are computed at import, once for all cells that are
# forked from here: a file that is edited later does not run in these cells, so the edit must not be in their records.
IMPORTED = {cls: source_digest(cls) for cls in (*method_classes(baselines.METHODS).values(), *tasks.TASKS.values())}
HARNESS = harness_digest()


def main(
    folder: str, gpus: Sequence[str] = (), wait: float | None = None, leaving: threading.Event | None = None
) -> None:
    """Run a cell in this process, with its output in the cell's log.

    The process does the work of the rank in RANK. Without RANK it does all of the work, or starts the ranks. `gpus`:
    the GPUs that it may use; empty for all. `wait`: the seconds to wait for another process that works on the cell;
    None for no limit. `leaving`: set by another thread to stop after the present step.
    """
    place = Path(folder)
    if gpus:
        # Before torch first asks for a device: later changes have no effect on it.
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    write_log(place)
    transformers.utils.logging.disable_progress_bar()
    status = StatusWriter(place)
    status.end_with_launcher()
    with status.ending():
        hardware = CellSpec.read(place).config.hardware
        if "RANK" not in os.environ:
            check_one_machine(hardware)
    if "RANK" in os.environ or hardware.ranks == 1:
        work(place, wait, status, leaving)
    elif wait == 0 and lease.holder(place):
        # As rank 0 would end in `leased`, but without starting all ranks for it.
        sys.exit(lease.BUSY)
    else:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that `divide` deletes its folder
        divide(place, hardware.ranks)


def write_log(place: Path) -> None:
    """Send all output of this process to the cell's log."""
    log = os.open(place / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for stream in (sys.stdout, sys.stderr):  # names may have characters that the locale's encoding lacks
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


# Ranks


def divide(folder: Path, count: int) -> None:
    """Start a process for each rank, and exit with their code. All ranks end if one fails, or if this process ends."""
    # The ranks listen on this machine's own interface alone. They meet through a file, so that no port can clash.
    loopback = next(name for _, name in socket.if_nameindex() if name in ("lo", "lo0"))
    shared = {"WORLD_SIZE": str(count), "GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}
    with tempfile.TemporaryDirectory() as meeting:
        shared["RENDEZVOUS"] = f"{meeting}/ranks"
        processes = []
        for rank in range(count):
            process = subprocess.Popen(
                python_command("from harness.launch import cell", "cell.run_rank()", str(folder)),
                env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,  # closes when this process ends, even if it is killed
                start_new_session=True,  # Ctrl-C is for this process
            )
            processes.append(process)
        failed = wait_for_all(processes)
    if failed < 0:
        os.kill(os.getpid(), -failed)  # end by the same signal as the rank: the launcher reports it by name
    sys.exit(failed)


def run_rank() -> None:
    """Run a rank in this process, and end with the process that started it."""
    leaving = threading.Event()
    ranks.end_with_parent(leaving)
    main(sys.argv[1], leaving=leaving)


# The work


def work(
    folder: Path, wait: float | None = None, status: StatusWriter | None = None, leaving: threading.Event | None = None
) -> None:
    status = status or StatusWriter(folder)
    with status.ending():
        spec = CellSpec.read(folder)
        device, _ = training_device(spec.config)
        hardware = spec.config.hardware
        with (
            ranks.process_group(hardware.world, device, status.failed),
            leased(folder, wait) as lease_dir,
            status.heartbeat.kept(lease_dir, ranks.own_rank()),
            status.ending(),  # inside the lease: only its owner may write errors
        ):
            if hardware.stall_minutes is not None:
                status.end_when_stalled(lease_dir, hardware.stall_minutes)
            if not begin_on_first(folder, spec, status):
                return
            checkpoints = Checkpoints(folder / CHECKPOINTS, spec.id, spec.config.checkpoint.keep)
            # Before anything is built, since a new attempt may have to begin. The result is remembered, so that
            # `Trainer.resume` does not read all files again.
            try:
                checkpoints.newest()
            except NoneWhole:
                begin_on_first(folder, spec, status, lost=True)
            run_cell(folder, spec, status, device, checkpoints, leaving or threading.Event())


@contextmanager
def leased(folder: Path, wait: float | None) -> Iterator[Path]:
    """Take the lease of the cell on rank 0, for all ranks; yield its directory."""
    if ranks.own_rank() == 0:
        with lease.hold(folder, wait) as mine:
            if mine is None:
                print(f"another process works on this cell: {lease.holder(folder)}", flush=True)
                sys.exit(lease.BUSY)
            ranks.of_first(mine)
            yield mine.directory
    else:
        of_first_rank = ranks.of_first(None)
        assert of_first_rank is not None
        with lease.fenced(of_first_rank):
            yield of_first_rank.directory


def begin_on_first(folder: Path, spec: CellSpec, status: StatusWriter, *, lost: bool = False) -> bool:
    """Begin the attempt on rank 0, which alone writes its records; return the result on all ranks."""
    needs_work = ranks.own_rank() == 0 and begin(folder, spec, status, lost=lost)
    return ranks.of_first(needs_work)


def begin(folder: Path, spec: CellSpec, status: StatusWriter, *, lost: bool = False) -> bool:
    """Record the code and the machine of this attempt, and return whether the cell still needs work.

    An attempt that began from another base model, or has `lost` all checkpoints, is deleted first.
    """
    # Finished by another process in the meantime, or stopped by hand.
    if State.read(folder).state == "done" or is_stopped(folder):
        return False
    sources = check_version(spec)
    # Only for a cell with work to do: this may download the model, and results that were moved here count as done even
    # if this machine has another base model.
    base_model = base_model_of(spec, status)
    why = "no checkpoint is whole" if lost else None
    more = {"harness": HARNESS, "rounding": rounding(spec.config.hardware)}
    begin_cell(folder, spec.config, sources, base_model, why, **more)
    return True


def rounding(hardware: Hardware) -> dict[str, str]:
    """Return what decides the order of floating-point sums, apart from the processor and the libraries."""
    values = {"micro_tokens": str(hardware.micro_tokens)}
    if hardware.device == "cpu":
        # By torch, since an environment variable may choose a smaller set than the processor has.
        values |= {"instructions": torch.backends.cpu.get_cpu_capability(), "threads": str(hardware.threads)}
    return values


def check_version(spec: CellSpec) -> dict[str, str]:
    """Refuse code or problems of another version than the cell was planned with; return the digests of the code."""
    # A plugin was imported just now, by `source_classes`.
    sources = {name: IMPORTED.get(cls) or source_digest(cls) for name, cls in source_classes(spec).items()}
    config, task = spec.config, spec.key.task
    evaluated = config.eval.tasks or [task]
    build = partial(tasks.build_task, plugins=config.plugins)
    problems = tasks.problem_digests(task, evaluated, config.eval.split, build)
    edited = changed_parts(spec.identity, {"source": sources, "problems": problems})
    recorded = [spec.identity["task"], *spec.identity["evaluation_tasks"]]
    for name, identity in zip([task, *evaluated], recorded, strict=True):
        # Options are part of the name; what they do not say, such as the rows of a file, may have changed.
        if identity | identities.component_identity(build(name)) != identity:
            edited.append(name)
    if edited:
        names = ", ".join(dict.fromkeys(edited))
        raise UserError(f"{names} was edited while the matrix ran; `entrobench run` plans cells of the new version")
    return sources


def base_model_of(spec: CellSpec, status: StatusWriter) -> str:
    """Return the digest of a cell's base model; make or download the model if it is missing."""
    model = models.resolve(spec.key.model)
    with status.heartbeat.at("loading the model"):
        if identities.key(model.identity()) != identities.key(spec.identity["model"]):
            raise UserError(
                f"the model {spec.key.model} was changed while the matrix ran; `entrobench run` plans cells of the new "
                "one"
            )
        return model.digest(model.folder())


def run_cell(
    folder: Path, spec: CellSpec, status: StatusWriter, device: str, checkpoints: Checkpoints, leaving: threading.Event
) -> None:
    """Train from the last checkpoint to the end, or until the process is asked to stop."""
    with VerifierPool.of(spec.config.verify) as verifier:
        with status.heartbeat.at("loading the model"):
            parts = build_parts(spec, verifier, status.say, status.heartbeat)
            trainer = trainer_of(parts, folder, checkpoints)
        if isinstance(parts.engine, VllmEngine) and ranks.own_rank() == 0:
            provenance.note_runner(folder, parts.engine.runner)
        status.note(reason=None, device=device, where=where(device))
        # SLURM's notice before a job's time is over. Our own launchers block it in ranks, and ask by a byte on stdin.
        signal.signal(signal.SIGUSR2, lambda *_: leaving.set())
        trainer.run(lambda step: status.note(durable_step=step), lambda: leaving.is_set() or is_stopped(folder))
        if trainer.done_steps == trainer.last_step:
            finish(trainer, folder, status)
        else:
            print("stopped on request; the next run continues from here", flush=True)


def trainer_of(parts: Parts, folder: Path, checkpoints: Checkpoints) -> Trainer:
    """Return the trainer that a cell's configuration names: ours, or an annex's that is derived from it."""
    trainer = Trainer if parts.config.train.backend == OWN else import_module(TRL_CELLS).TrlTraining
    return trainer(parts, folder, checkpoints)


def where(device: str) -> list[str]:
    """Return the machine of each rank, with its GPU if it has one."""
    place = socket.gethostname()
    if device == "cuda":
        place += f", GPU {torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
    return ranks.each(place)


def finish(trainer: Any, folder: Path, status: StatusWriter) -> None:
    """Save the trained model, mark the cell done if its records are complete, and delete its last checkpoint."""
    settings = trainer.parts.config.checkpoint
    if settings.save_model:
        with status.heartbeat.at("saving the model"):
            trainer.policy.save(folder / checksums.MODEL, trainer.parts.tokenizer)
    if ranks.own_rank() == 0:
        check_complete(trainer)
        checksums.write_checksums(folder)  # before the state, so that every cell that is done has checksums
        lines = MetricsLog(folder).read()
        collapsed = collapse(lines, trainer.parts.config.stop.entropy_below)
        why = why_no_signal(lines, evaluations.responses_of_step(CellSpec.read(folder)))
        silence = f"{NO_SIGNAL}: {why}" if why else silent_end(lines, trainer.parts.config.stop)
        if silence:
            print(silence, flush=True)
        reason = "; ".join(filter(None, (State.read(folder).reason, silence))) or None
        status.note(state="done", collapsed=collapsed, untrained=why is not None, reason=reason)
    if not settings.keep_last:
        trainer.checkpoints.keep(0)


def check_complete(trainer: Any) -> None:
    """Raise CellFailure if a cell lacks a step, or an answer of its last evaluation."""
    config, lines = trainer.parts.config, MetricsLog(trainer.folder).read()
    last = last_step(lines, config)
    steps = [line["step"] for line in lines]
    if steps != list(range(last + 1)):
        raise CellFailure(f"metrics.jsonl holds {len(steps)} steps where {last + 1} were expected")
    for name in trainer.parts.evaluation_tasks:
        samples = config.eval.of(name).samples
        result = evaluations.read_evaluation(evaluations.evaluation_path(trainer.folder, name, last))
        if {len(row) for row in result["right"]} != {samples}:
            raise CellFailure(f"the last evaluation of {name} lacks samples")


if __name__ == "__main__":
    main(sys.argv[1])
