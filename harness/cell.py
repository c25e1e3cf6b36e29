"""The process of one cell: build the parts, train, evaluate, and say how it ended."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer
from transformers.models.qwen2 import modeling_qwen2  # noqa: F401  loaded once, in the server that cells fork from

import baselines
import tasks
from harness.base import files, ranks, standing
from harness.base.errors import CellFailure, UserError
from harness.base.processes import ended, python
from harness.composition import Method, components
from harness.config import Config
from harness.record import lease, made, state, sums
from harness.record.log import MetricsLog, collapse
from harness.record.made import Made
from harness.record.spec import CellSpec
from harness.record.state import State
from harness.rollout import choice, engines, models
from harness.rollout.proof import check_weights
from harness.rollout.rendering import instructed, left_out
from harness.rollout.together import led
from harness.train import sources
from harness.train.filter import RESPONSES, Asker, pool
from harness.train.parts import Parts
from harness.train.policy import Critic, Policy, check_vocabulary
from harness.train.weights import opened
from harness.trainer import Trainer
from harness.verify.pool import Verifier

# As the source was when it was imported, once for all cells: what is edited after that does not run in them.
IMPORTED = {cls: made.digest(cls) for cls in (*components(baselines.METHODS).values(), *tasks.TASKS.values())}


def device_of(config: Config) -> tuple[str, torch.dtype]:
    device = config.hardware.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("hardware.device is 'cuda', but torch sees no CUDA device here; allowed: auto, cpu")
    if config.train.dtype == "auto":
        return device, torch.bfloat16 if device == "cuda" else torch.float32
    return device, getattr(torch, config.train.dtype)


def build(spec: CellSpec, folder: Path, verifier: Verifier, say: Callable[[str], None] = print) -> Trainer:
    """Returns the trainer of a cell, with all of its parts."""
    config = spec.config
    device, dtype = device_of(config)
    torch.set_num_threads(config.hardware.threads)
    if device == "cuda":
        torch.cuda.set_per_process_memory_fraction(config.hardware.share)
    method = Method.of(spec.method, baselines.table(config.plugins), config.method_options)
    model = models.resolve(spec.model)
    base = model.folder()
    common = (config.train, config.rollout.temperature, device, dtype, config.hardware)
    policy = Policy(base, *common)
    critic = None
    if "values" in method.needs:
        critic_lr = vars(method.objective)["critic_lr"]  # every objective that needs values has one
        critic = Critic(base, config.train, critic_lr, device, dtype, config.hardware)
    tokenizer = opened(AutoTokenizer, base)
    check_vocabulary(tokenizer, policy.module, base)
    chosen = choice.resolve(config.rollout.engine, device, model.shape())
    engine = engines.build(chosen, base, tokenizer.eos_token_id, device, dtype, config.hardware)
    torch.manual_seed(spec.seed)  # after the engine, since vLLM seeds what all of the process draw from
    task = instructed(tasks.build(spec.task, config.plugins), model.chat)
    if config.train.filter is not None:
        engine.load(policy.module)  # which has not been trained yet
        check_weights(engine, policy.module, dtype, spec.seed)
    most, given = config.verify.max_failures, config.train.filter
    asker = Asker(model.identity(), task, engine, tokenizer, verifier, config.rollout, most, model.chat)
    found = None
    with standing.here.at("filter"), led(asker.verdicts) as ask:
        if ask is not None:
            at_once = ranks.count() * max(RESPONSES // given.n, 1) if given else 0
            found = pool(asker, ask, given, models.default_cache(), at_once, say)
    problems = ranks.of_first(found)
    assert problems is not None
    parts = Parts(
        config=config,
        seed=spec.seed,
        method=method,
        task=task,
        evaluation_tasks=[
            instructed(tasks.build(each, config.plugins), model.chat) for each in config.eval.tasks or [spec.task]
        ],
        pool=problems,
        policy=policy,
        critic=critic,
        reference=Policy(base, *common) if "ref_logp" in method.needs else None,
        engine=engine,
        tokenizer=tokenizer,
        verifier=verifier,
        chat=model.chat,
    )
    return Trainer(parts, folder)


LOOKED_AT = 512  # training prompts; all of a large set would take longer than a cell has to start


def unread(trainer: Trainer, spec: CellSpec) -> str | None:
    """Returns a warning, which the log holds too, where the tokenizer leaves letters out of prompts to train on.

    Some letters may be missed by nobody. But where no letter is left of any prompt, all problems look the same, and
    rewards would teach nothing: that is refused.
    """
    problems = trainer.parts.pool.problems
    prompts = [problem.prompt for problem in problems[:: -(-len(problems) // LOOKED_AT)]]
    some, everything = left_out(trainer.parts.tokenizer, prompts, trainer.parts.chat)
    if everything == len(prompts):
        raise UserError(
            f"the tokenizer of {spec.model} has no token for any letter or digit of {everything} prompts of "
            f"{spec.task}, which would all look the same; train a model that can read them"
        )
    if not some:
        return None
    warning = f"warning: the tokenizer leaves letters out of {some} of {len(prompts)} training prompts"
    if ranks.number() == 0:
        print(warning, flush=True)
    return warning


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
    for task in trainer.parts.evaluation_tasks:
        samples = config.eval.of(task.name).samples
        result = files.read_json(trainer.folder / "evals" / f"{task.name}-{expected[-1]:06d}.json")
        if not result["right"] or {len(row) for row in result["right"]} != {samples}:
            raise CellFailure(f"the last evaluation of {task.name} lacks samples")


LOOK = 0.5  # seconds from one look at whether the launcher is there to the next


class Diary:
    """Writes down how far a cell is while this process, or this rank, works on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.launcher = folder, os.getppid()
        self.started, self.earlier = time.monotonic(), State.known(folder).seconds

    @property
    def seconds(self) -> float:
        """Returns the seconds of work so far, over all lives of the cell."""
        return self.earlier + time.monotonic() - self.started

    @property
    def orphaned(self) -> bool:
        """Returns whether the process that started this one is gone, or the one that had it forked by a server."""
        launcher = multiprocessing.parent_process()
        return os.getppid() != self.launcher or (launcher is not None and not launcher.is_alive())

    def end_with_launcher(self) -> None:
        """Ends this process soon after its launcher, since nobody waits for it any more. What it was at is lost, and
        every file is whole."""

        def watch() -> None:
            while not self.orphaned:
                time.sleep(LOOK)
            print("stopped: the launcher is gone; the next run goes on from here", flush=True)
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()

    def end_when_still(self, room: Path, minutes: float) -> None:
        """Ends this process when no rank has come forward for so long; the log then tells where each thread is."""

        def end(who: str) -> None:
            faulthandler.dump_traceback(2)
            self.failed(f"{who} for {minutes:g} minutes (hardware.stall_minutes)")
            os._exit(1)

        threading.Thread(
            target=standing.here.watch, args=(room, ranks.number(), 60 * minutes, end), daemon=True
        ).start()

    def note(self, **changes: Any) -> None:
        if ranks.number() == 0:
            state.change(self.folder, **changes, seconds=self.seconds)

    def failed(self, reason: str, unless: Sequence[str] = ("done", "failed")) -> None:
        """Notes the reason of the first rank that fails: others then fail for want of it, as all do when stopped.

        Not where somebody else works on the cell by now.
        """
        with lease.briefly(self.folder) as ours:
            if ours and not self.orphaned and State.known(self.folder).state not in unless:
                state.change(self.folder, state="failed", reason=reason, seconds=self.seconds)

    def say(self, text: str) -> None:
        print(text, flush=True)
        self.note(reason=text)


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
            standing.here.kept(room, ranks.number()),
            ending(diary.failed),
        ):
            if minutes is not None:
                diary.end_when_still(room, minutes)
            if ranks.of_first(begin(folder, spec) if ranks.number() == 0 else None):
                run(folder, spec, diary, device)


def run(folder: Path, spec: CellSpec, diary: Diary, device: str) -> None:
    with Verifier.of(spec.config.verify) as verifier:
        with standing.here.at("loading the model"):
            trainer = build(spec, folder, verifier, diary.say)
        diary.note(reason=unread(trainer, spec), device=device, where=where(device))
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


@contextmanager
def ending(note: Callable[[str], None]) -> Iterator[None]:
    """Ends this process where something goes wrong, with a reason that is noted before."""
    try:
        yield
    except Exception as error:  # whatever it is, it ends this cell alone
        note(reason := reason_of(error))
        sys.exit(f"failed: {reason}")


def reason_of(error: Exception) -> str:
    """Returns what people are told of an error, and where it came; of one that nobody foresaw the full story goes into
    the log."""
    where = f" (in {standing.here})" if str(standing.here) else ""
    if isinstance(error, CellFailure | UserError):
        return f"{error}{where}"
    traceback.print_exception(error)
    if lacks_memory(error):
        return f"out of memory{where}: {memory_peak()}; {MORE_MEMORY}"
    said = str(error).strip() or "no message"
    return f"{type(error).__name__}: {said.splitlines()[0]}{where}"


MORE_MEMORY = (
    "lower hardware.micro_tokens, set hardware.recompute=true or hardware.offload=true, or give it more hardware.ranks"
)


def lacks_memory(error: Exception) -> bool:
    # On a CPU torch raises what it raises for anything.
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def memory_peak() -> str:
    """Returns the most memory that this process had at once."""
    if torch.cuda.is_initialized():
        return f"at most {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB of the GPU were in use"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB
    return f"at most {peak / 2**20:.1f} GiB were in use"


def finish(trainer: Trainer, folder: Path, diary: Diary) -> None:
    """Keeps the trained model, and calls the cell done if all of its work is there."""
    save = trainer.parts.config.checkpoint.save_model
    if save:
        with standing.here.at("saving the model"):
            trainer.policy.save(folder / sums.MODEL, trainer.parts.tokenizer)
    if ranks.number() == 0:
        check_complete(trainer)
        sums.write(folder)
        diary.note(state="done", collapsed=trainer.collapsed)


def divide(folder: Path, count: int) -> None:
    """A process for each rank. They end with this one, and all of them when one fails."""
    loopback = next(name for _, name in socket.if_nameindex() if name in ("lo", "lo0"))
    shared = {"WORLD_SIZE": str(count), "GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}
    with tempfile.TemporaryDirectory() as meeting:
        shared["RENDEZVOUS"] = f"{meeting}/ranks"
        processes = [
            subprocess.Popen(
                python("from harness import cell; cell.rank()", str(folder)),
                env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,  # which closes when this process ends, however it does
                start_new_session=True,  # Ctrl-C is for this process
            )
            for rank in range(count)
        ]
        failed = ended(processes)
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


def begin(place: Path, spec: CellSpec) -> bool:
    """Sets aside what another source has made, and writes down what makes this attempt if it is a new one; returns
    whether something is left to do, as another process may have done it meanwhile."""
    found = sources.components(spec)
    present = {name: IMPORTED.get(cls) or made.digest(cls) for name, cls in found.items()}
    earlier = Made.read(place)
    if earlier is None and State.read(place).state == "done":
        earlier = made.unnoted(place)
    if earlier is not None and (why := made.by_another_source(earlier.sources, present)):
        aside = made.set_aside(place, earlier)
        write_log(place)
        print(f"begins anew: the earlier attempt was {why}; it is kept in {aside}", flush=True)
        earlier = None
    if earlier is None:
        device, _ = device_of(spec.config)
        gpu = torch.cuda.get_device_name() if device == "cuda" else None
        engine = choice.DISTRIBUTIONS if spec.config.rollout.engine == "vllm" else ()
        made.begin(place, present, device, gpu, engine)
    before = State.read(place)
    if before.state == "done":
        return False
    State("running", seconds=before.seconds).write(place)
    return True


def rank() -> None:
    """In the process of a rank that ends with the one that started it."""
    ranks.end_with_parent()
    main(sys.argv[1])


if __name__ == "__main__":
    main(sys.argv[1])
