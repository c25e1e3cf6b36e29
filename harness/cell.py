"""The process of one cell: own it, build its parts, train, evaluate, and say how it ended."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
import transformers
from transformers.models.qwen2 import modeling_qwen2  # noqa: F401  loaded once, in the server that cells fork from

import baselines
import tasks
from harness.base.errors import CellFailure, UserError
from harness.base.processes import python_command, wait_for_all
from harness.cells import checksums, evaluation_files, heartbeat, lease, provenance
from harness.cells.checkpoint_seal import FOLDER as CHECKPOINTS
from harness.cells.diary import Diary, ending
from harness.cells.log import MetricsLog, collapse
from harness.cells.provenance import Made
from harness.cells.spec import CellSpec
from harness.cells.state import State
from harness.composition import components
from harness.dist import ranks
from harness.rollout import choice, digests, models
from harness.train import sources
from harness.train.checkpoint import Checkpoints, NoneWhole
from harness.train.parts import build, device_of, unread
from harness.trainer import Trainer
from harness.verify.pool import VerifierPool

# As the source was when it was imported, once for all cells: what is edited after that does not run in them.
IMPORTED = {cls: provenance.digest(cls) for cls in (*components(baselines.METHODS).values(), *tasks.TASKS.values())}
HARNESS = provenance.harness_digest()


def check_complete(trainer: Trainer) -> None:
    """Refuses to call a cell done that lacks a step, or an answer of its last evaluation.

    All steps are expected, or those up to the first one whose entropy was below stop.entropy_below, and no other.
    """
    config, lines = trainer.parts.config, MetricsLog(trainer.folder).read()
    collapsed = collapse(lines, config.stop.entropy_below)
    steps = [line["step"] for line in lines]
    expected = list(range((config.train.steps if collapsed is None else collapsed) + 1))
    if steps != expected:
        raise CellFailure(f"metrics.jsonl holds {len(steps)} steps where {len(expected)} were expected")
    for name in trainer.parts.evaluation_tasks:
        samples = config.eval.of(name).samples
        result = evaluation_files.read(evaluation_files.place(trainer.folder, name, expected[-1]))
        if not result["right"] or {len(row) for row in result["right"]} != {samples}:
            raise CellFailure(f"the last evaluation of {name} lacks samples")


def work(folder: Path, wait: float | None = None) -> None:
    """Does all of the cell, or what this rank does of it."""
    diary = Diary(folder)
    with ending(partial(diary.failed, unless=["done"])):
        spec = CellSpec.read(folder)
        device, _ = device_of(spec.config)
        world, minutes = spec.config.hardware.world, spec.config.hardware.stall_minutes
        with (
            ranks.joined(world, device, diary.failed),
            owned(folder, wait) as room,
            heartbeat.here.kept(room, ranks.number()),
            ending(diary.failed),
        ):
            if minutes is not None:
                diary.end_when_still(room, minutes)
            if not ranks.of_first(begin(folder, spec) if ranks.number() == 0 else None):
                return
            checkpoints = Checkpoints(folder / CHECKPOINTS, spec.cell)
            try:
                checkpoints.latest()
            except NoneWhole:
                ranks.of_first(begin(folder, spec, lost=True) if ranks.number() == 0 else None)
            run(folder, spec, diary, device, checkpoints)


def run(folder: Path, spec: CellSpec, diary: Diary, device: str, checkpoints: Checkpoints) -> None:
    with VerifierPool.of(spec.config.verify) as verifier:
        with heartbeat.here.at("loading the model"):
            parts = build(spec, verifier, diary.say)
            trainer = Trainer(parts, folder, checkpoints)
        diary.note(reason=unread(parts, spec), device=device, where=where(device))
        signal.signal(signal.SIGUSR2, lambda *_: ranks.leaving.set())
        trainer.run(lambda step: diary.note(durable_step=step), ranks.leaving.is_set)
        if trainer.done_steps == trainer.last_step:
            finish(trainer, folder, diary)
        else:
            print("stopped, as it was asked to; the next run goes on from here", flush=True)


def where(device: str) -> list[str]:
    """Returns the machine of each rank, and its GPU if it has one."""
    gpu = f", GPU {torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}" if device == "cuda" else ""
    return ranks.each(socket.gethostname() + gpu)


@contextmanager
def owned(folder: Path, wait: float | None) -> Iterator[Path]:
    """Lets the ranks of this cell write into its folder, and nobody else: the first of them holds it for all. Yields
    the folder of the lease."""
    if ranks.number() == 0:
        with lease.held(folder, wait) as mine:
            if mine is None:
                print(f"another process works on this cell: {lease.holder(folder)}", flush=True)
                sys.exit(lease.BUSY)
            ranks.of_first(mine)
            yield mine.room
    else:
        given = ranks.of_first(None)
        assert given is not None
        with lease.fenced(given):
            yield given.room


def finish(trainer: Trainer, folder: Path, diary: Diary) -> None:
    """Keeps the trained model, and calls the cell done if all of its work is there."""
    save = trainer.parts.config.checkpoint.save_model
    if save:
        with heartbeat.here.at("saving the model"):
            trainer.policy.save(folder / checksums.MODEL, trainer.parts.tokenizer)
    if ranks.number() == 0:
        check_complete(trainer)
        checksums.write(folder)
        diary.note(state="done", collapsed=trainer.collapsed)


def divide(folder: Path, count: int) -> None:
    """A process for each rank. They end with this one, and all of them when one fails."""
    loopback = next(name for _, name in socket.if_nameindex() if name in ("lo", "lo0"))
    shared = {"WORLD_SIZE": str(count), "GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}
    with tempfile.TemporaryDirectory() as meeting:
        shared["RENDEZVOUS"] = f"{meeting}/ranks"
        processes = [
            subprocess.Popen(
                python_command("from harness import cell; cell.rank()", str(folder)),
                env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,  # which closes when this process ends, however it does
                start_new_session=True,  # Ctrl-C is for this process
            )
            for rank in range(count)
        ]
        failed = wait_for_all(processes)
    if failed < 0:
        os.kill(os.getpid(), -failed)  # as the rank did, which the launcher knows how to tell
    sys.exit(failed)


def main(folder: str, gpus: Sequence[str] = (), wait: float | None = None) -> None:
    """In a process of its own: everything printed goes to the cell's log. It is the cell, or the rank of it that RANK
    names, or it starts the ranks itself. `gpus`: those that it may use, if not all. `wait`: for so many seconds it
    waits for another process that works on the cell; None for as long as that takes."""
    place = Path(folder)
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    write_log(place)
    transformers.utils.logging.disable_progress_bar()
    diary = Diary(place)
    diary.end_with_launcher()
    with ending(partial(diary.failed, unless=["done"])):
        hardware = CellSpec.read(place).config.hardware
        if "RANK" not in os.environ and hardware.nodes > 1:
            raise UserError(
                f"hardware.nodes is {hardware.nodes}; allowed: 1, since one machine starts this cell (others: "
                "--launcher ray or slurm, or torchrun)"
            )
    if "RANK" in os.environ or hardware.ranks == 1:
        work(place, wait)
    elif wait == 0 and lease.holder(place):
        sys.exit(lease.BUSY)
    else:
        divide(place, hardware.ranks)


def write_log(place: Path) -> None:
    """Sends all that this process prints to the cell's log."""
    log = os.open(place / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for stream in (sys.stdout, sys.stderr):  # names may hold any characters, and the terminal's encoding is not theirs
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def begin(place: Path, spec: CellSpec, *, lost: bool = False) -> bool:
    """Write down what makes this attempt, and return whether something is left to do.

    An attempt of another source, or one that has `lost` all checkpoints, is set aside first. Another process may have
    ended the cell meanwhile.
    """
    found = sources.components(spec)
    present = {name: IMPORTED.get(cls) or provenance.digest(cls) for name, cls in found.items()}
    earlier = Made.read(place)
    if earlier is None and State.read(place).state == "done":
        earlier = provenance.unnoted(place)
    why = "left without a whole checkpoint" if lost else None
    if why is None and earlier is not None:
        why = provenance.by_another_source(earlier.sources, present)
    if why is None and State.read(place).state == "done":
        return False
    base_model = base_model_of(spec)
    if why is None and earlier is not None:
        why = provenance.by_another_base_model(earlier.base_model, base_model)
    if earlier is not None and why is not None:
        aside = provenance.set_aside(place, earlier)
        write_log(place)
        print(f"begins anew: the earlier attempt was {why}; it is kept in {aside}", flush=True)
        earlier = None
    if earlier is None:
        device, _ = device_of(spec.config)
        gpu = torch.cuda.get_device_name() if device == "cuda" else None
        engine = choice.DISTRIBUTIONS if spec.config.rollout.engine == "vllm" else ()
        provenance.begin(place, present, device, gpu, engine, base_model=base_model, harness=HARNESS)
    before = State.read(place)
    State("running", seconds=before.seconds).write(place)
    return True


def base_model_of(spec: CellSpec) -> str:
    """Return the digest of the model that a cell begins from, made or downloaded if it is not here yet."""
    model = models.resolve(spec.model)
    with heartbeat.here.at("loading the model"):
        digest = model.digest(model.folder())
    expected = spec.identity["model"].get("digest", digest)
    if digest != expected:
        raise UserError(
            f"the folder of the model {spec.model} was changed while the matrix ran: its digest is "
            f"{digest[: digests.SHOWN]}, and was {expected[: digests.SHOWN]}; `entrobench run` makes cells of the new "
            "one"
        )
    return digest


def rank() -> None:
    """In the process of a rank that ends with the one that started it."""
    ranks.end_with_parent()
    main(sys.argv[1])


if __name__ == "__main__":
    main(sys.argv[1])
