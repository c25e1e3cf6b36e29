"""A training step of a real language model on a CPU, against trl's GRPOTrainer: time, CPU time and peak memory.

    python -m benchmarks.laptop                                     # both types, one and two threads, a step of each
    python -m benchmarks.laptop --dtypes bfloat16 --threads 2 --steps 3
    python -m benchmarks.laptop --task 'lists(shots=0)'             # prompts that have little in common

Both train the same weights, float32 with the computation in either type, on the same problems of the same task: 8 x 8
responses of at most 20 tokens at temperature 1, one update at the same learning rate, the task's own verdicts as
rewards. trl gets our prompts as text, so it renders nothing, and has no reference model, log or checkpoint. It trains
on its responses in four parts, which it needs memory for, and keeps their activations (`gradient_checkpointing` is its
default, and slower). In bfloat16 it has its flag `bf16`.

Each trainer has a process of its own, which a parent asks for one step at a time, by turns. The first one warms up, on
problems without their worked examples, and is not counted. CPU seconds are those of all threads, the operating system's
included: a virtual machine may spend seconds on each GiB that it uses for the first time. Peak memory is that of the
whole process, imports and the loading of the model included (Linux: VmHWM). Responses are drawn, so their tokens
differ; the table shows them.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback

import tasks
from benchmarks.common import demo_trainer, show
from benchmarks.memory import memory_mib
from harness.base import files
from harness.base.devices import processor
from harness.rollout import models
from harness.tokens.metrics import Stopwatch
from harness.verify.pool import VerifierPool
from tasks import Problem

PAGE = Path(__file__).parents[1] / "results/reference/speed/laptop.json"
PROMPTS, GROUP, LONGEST, LR = 8, 8, 20, 1e-5
PARTS = 4  # of trl's responses in an update
COLUMNS = ["", "CPU s", "range", "the system's", "s", "range", "response tokens", "peak, MiB"]


@dataclass(frozen=True)
class Setting:
    """What both trainers are given."""

    model: str
    task: str
    dtype: str
    threads: int
    steps: int  # the first one, which warms up, included

    def __str__(self) -> str:
        return f"{self.model} on {self.task}, {self.dtype}, threads: {self.threads}"


@dataclass(frozen=True)
class Asked:
    """A problem, and the tokens of its prompt."""

    problem: str
    prompt: list[int]


@dataclass(frozen=True)
class Step:
    """A step that was measured."""

    cpu_seconds: float
    system_seconds: float  # of cpu_seconds: those of the operating system
    seconds: float
    tokens: int  # of all responses
    peak_mib: float  # of the process until the end of the step


class Turn:
    """The clock of one step."""

    def __init__(self) -> None:
        self.used, self.start = os.times(), time.perf_counter()

    def end(self, tokens: int) -> Step:
        used, seconds = os.times(), time.perf_counter() - self.start
        system_seconds = used.system - self.used.system
        cpu_seconds = used.user - self.used.user + system_seconds
        return Step(cpu_seconds, system_seconds, seconds, tokens, memory_mib("VmHWM"))


# The two trainers, each in a process of its own


def our_steps(setting: Setting, link: Connection) -> None:
    """Send the problems of all steps, and then train a step for each message."""
    overrides = [
        f"train.prompts={PROMPTS}",
        f"train.group={GROUP}",
        "train.updates=1",
        f"train.lr={LR}",
        "train.warmup_steps=0",
        "train.betas=[0.9,0.999]",
        f"train.dtype={setting.dtype}",
        f"rollout.max_new_tokens={LONGEST}",
        "rollout.engine=embedded",
        "dynamics.every=0",
        f"hardware.threads={setting.threads}",
        "hardware.micro_tokens=16384",
    ]
    with tempfile.TemporaryDirectory() as folder:
        trainer = demo_trainer("grpo", Path(folder), overrides, setting.model, setting.task)
        collector: Any = trainer.collector
        in_turn = collector.problems

        def problems(step: int, places: Sequence[int]) -> list[Problem]:
            found = in_turn(step, places)
            return found if step > 1 else [dataclasses.replace(problem, shots=()) for problem in found]

        collector.problems = problems
        steps = range(1, setting.steps + 1)
        asked = []
        for step in steps:
            for problem in problems(step, range(PROMPTS)):
                asked.append(Asked(problem.id, collector.prompt(problem)))
        link.send(asked)
        for step in steps:
            link.recv()
            turn = Turn()
            record = trainer.train_step(step, Stopwatch())
            link.send(turn.end(int(record["tokens/generated"])))


def peer_steps(setting: Setting, link: Connection) -> None:
    """Receive the problems of all steps, and then train a step of trl's for each message."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(setting.threads)
    folder = models.resolve(setting.model).folder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked: list[Asked] = link.recv()
    task, verifier, drawn = tasks.build_task(setting.task), VerifierPool(), Drawn()
    problems = {problem.id: problem for problem in task.problems("train")}
    rows = []
    for each in asked:
        text = tokenizer.decode(each.prompt)
        assert tokenizer(text)["input_ids"] == each.prompt, "trl would read another prompt"
        rows.append({"prompt": text, "problem": each.problem})

    def rewards(completions: list[str], completion_ids: list[list[int]], problem: list[str], **_: Any) -> list[float]:
        drawn.tokens = sum(map(len, completion_ids))
        pairs = [(problems[name], text) for name, text in zip(problem, completions, strict=True)]
        return [float(verdict == tasks.Verdict.RIGHT) for verdict in task.verdicts(pairs, verifier)]

    with tempfile.TemporaryDirectory() as place:
        arguments = GRPOConfig(
            output_dir=place,
            use_cpu=True,
            bf16=setting.dtype == "bfloat16",
            model_init_kwargs={"dtype": "float32"},
            gradient_checkpointing=False,
            per_device_train_batch_size=PROMPTS * GROUP // PARTS,
            gradient_accumulation_steps=PARTS,
            num_generations=GROUP,
            max_completion_length=LONGEST,
            temperature=1.0,
            learning_rate=LR,
            lr_scheduler_type="constant",
            beta=0.0,
            max_steps=setting.steps,
            shuffle_dataset=False,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        peer = GRPOTrainer(
            model=str(folder),
            reward_funcs=rewards,
            args=arguments,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[Turns(link, drawn)],
        )
        peer.remove_callback(PrinterCallback)
        assert {weight.dtype for weight in peer.model.parameters()} == {torch.float32}
        peer.train()
        assert torch.get_num_threads() == setting.threads


@dataclass
class Drawn:
    """The responses of trl's last step."""

    tokens: int = 0


class Turns(TrainerCallback):
    """Makes trl wait for a message before each step, and sends what the step took."""

    def __init__(self, link: Connection, drawn: Drawn) -> None:
        self.link, self.drawn = link, drawn

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.link.recv()
        self.turn = Turn()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.link.send(self.turn.end(self.drawn.tokens))


# The parent


@contextmanager
def worker(work: Callable[[Setting, Connection], None], setting: Setting) -> Iterator[Connection]:
    """Yield the link to a new process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=quietly, args=(work, setting, theirs))
    process.start()
    theirs.close()  # so that `recv` raises EOFError if the process ends
    try:
        yield ours
    finally:
        ours.close()
        process.join()


def quietly(work: Callable[[Setting, Connection], None], setting: Setting, link: Connection) -> None:
    warnings.filterwarnings("ignore")
    with link:
        work(setting, link)


def measure(setting: Setting) -> dict[str, list[Step]]:
    """Measure both trainers by turns."""
    measured: dict[str, list[Step]] = {"entrobench": [], "trl": []}
    with worker(our_steps, setting) as ours, worker(peer_steps, setting) as peer:
        peer.send(ours.recv())
        for _ in range(setting.steps):
            for link, steps in zip((ours, peer), measured.values(), strict=True):
                link.send("step")
                steps.append(link.recv())
    return {name: steps[1:] for name, steps in measured.items()}


def median(steps: Sequence[Step], key: str) -> float:
    return statistics.median(getattr(step, key) for step in steps)


def row_of(name: str, steps: Sequence[Step]) -> list[str]:
    cells = [name]
    for key in ("cpu_seconds", "seconds"):
        values = [getattr(step, key) for step in steps]
        cells += [f"{median(steps, key):.1f}", f"{min(values):.1f} to {max(values):.1f}"]
        if key == "cpu_seconds":
            cells.append(f"{median(steps, 'system_seconds'):.1f}")
    return [*cells, f"{median(steps, 'tokens'):.0f}", f"{steps[-1].peak_mib:,.0f}"]


def ratios_of(measured: dict[str, list[Step]]) -> dict[str, float]:
    """Return trl's medians and its peak of memory, divided by ours."""
    ours, peer = measured.values()
    ratios = {key: median(peer, key) / median(ours, key) for key in ("cpu_seconds", "seconds")}
    return ratios | {"peak_mib": peer[-1].peak_mib / ours[-1].peak_mib}


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.laptop")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--task", default="lists")
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=1, help="that are counted, after one that warms up")
    parser.add_argument("--json", type=Path, default=PAGE, help="file of all steps")
    given = parser.parse_args(arguments)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as of cells: a thread that waits would count as busy
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # trl would report that it is used
    models.resolve(given.model).folder()  # converted or made here, and in no process that is measured
    records = []
    for dtype in given.dtypes:
        for threads in given.threads:
            setting = Setting(given.model, given.task, dtype, threads, given.steps + 1)
            measured = measure(setting)
            ratios = ratios_of(measured)
            cpu, wall, memory = (f"{ratio:.2f} x" for ratio in ratios.values())
            rows = [row_of(name, steps) for name, steps in measured.items()]
            show(str(setting), COLUMNS, [*rows, ["trl to entrobench", cpu, "", "", wall, "", "", memory]])
            steps_of = {name: [dataclasses.asdict(step) for step in steps] for name, steps in measured.items()}
            records.append({"dtype": dtype, "threads": threads, "steps": steps_of, "trl_to_entrobench": ratios})
    machine = {"processor": processor(), "cores": os.cpu_count()}
    page = {"model": given.model, "task": given.task, "machine": machine, "settings": records}
    files.write_json(given.json, page)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
