"""A whole training step against trl's GRPOTrainer, over sizes of models, lengths of responses and vocabularies.

    python -m benchmarks.peers                                  # everything, one and two threads
    python -m benchmarks.peers --parameters 0.2 --lengths 20    # a part of it

Both train the same random weights on the same prompts, in groups of 4, with two updates per rollout batch and random
rewards, so that no response can be skipped. All responses have the same length, and no two are equal. trl recomputes
activations by default (`gradient_checkpointing`), and entrobench does not (`hardware.recompute`): both are shown with
and without. Peak memory is that of the process beyond its memory before the step (Linux: VmHWM).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, PrinterCallback, Qwen2Config, Qwen2ForCausalLM

import tasks
from benchmarks.common import demo_trainer, show
from harness.rollout import models
from harness.tokens.metrics import Stopwatch
from harness.trainer import Trainer

GROUP, UPDATES = 4, 2
# Hidden size, layers and heads by millions of parameters without embeddings.
SHAPES = {0.2: (64, 4, 4), 5.0: (256, 6, 8), 50.0: (640, 10, 10)}
LENGTHS = (20, 256, 1024)
VOCABULARIES = (73, 8_192, 152_064)
# Fewer responses of longer ones, so that a step fits into memory and into a minute: at least one group for each update.
TOKENS = 4096
NEVER = -1  # as the end token: no response ends before it has all its tokens


@dataclass(frozen=True)
class Place:
    """A place of the grid."""

    parameters: float  # millions, without embeddings
    length: int  # tokens of each response
    vocabulary: int

    @property
    def prompts(self) -> int:
        return max(TOKENS // self.length // GROUP, UPDATES) // UPDATES * UPDATES


@dataclass
class Measured:
    """Seconds and peak memory of the steps of one trainer with one setting."""

    seconds: list[float]
    sampling: list[float]
    peak_mib: float = 0.0

    def add(self, seconds: float, sampling: float, peak_mib: float) -> None:
        self.seconds.append(seconds)
        self.sampling.append(sampling)
        self.peak_mib = max(self.peak_mib, peak_mib)


def write_random_model(place: Place, folder: Path) -> None:
    """Save a model with random weights and the tokenizer of the demo's, whose vocabulary may be smaller."""
    hidden, layers, heads = SHAPES[place.parameters]
    tokenizer = AutoTokenizer.from_pretrained(models.resolve("countdown-tiny").folder())
    tokenizer.model_max_length = 2 * max(LENGTHS)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=max(place.vocabulary, len(tokenizer)),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=2 * max(LENGTHS),
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def our_trainer(place: Place, model: Path, folder: Path, recompute: bool) -> Trainer:
    overrides = [
        f"train.prompts={place.prompts}",
        f"train.group={GROUP}",
        f"train.updates={UPDATES}",
        f"rollout.max_new_tokens={place.length}",
        "dynamics.every=0",
        f"hardware.recompute={str(recompute).lower()}",
        f"hardware.threads={torch.get_num_threads()}",
    ]
    trainer = demo_trainer("grpo+random_reward", folder, overrides, str(model))
    trainer.engine.eos = NEVER  # type: ignore[attr-defined]
    return trainer


def our_step(place: Place, model: Path, folder: Path, recompute: bool, steps: int) -> Iterator[tuple[float, float]]:
    """Yield the seconds of each step, and those of sampling."""
    trainer = our_trainer(place, model, folder, recompute)
    for step in range(1, steps + 1):
        watch, start = Stopwatch(), time.perf_counter()
        trainer.train_step(step, watch)
        yield time.perf_counter() - start, watch.seconds["time/rollout_s"]


def peer_step(place: Place, model: Path, folder: Path, recompute: bool, steps: int) -> Iterator[tuple[float, float]]:
    """Yield the seconds of each rollout batch with its updates in trl, and those of sampling."""
    from trl import GRPOConfig, GRPOTrainer

    prompts = [problem.prompt for problem in tasks.build_task("countdown").problems("train")]
    arguments = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=recompute,
        per_device_train_batch_size=place.prompts * GROUP // UPDATES,
        steps_per_generation=UPDATES,
        num_generations=GROUP,
        max_completion_length=place.length,
        generation_kwargs={"min_new_tokens": place.length},
        learning_rate=7e-4,
        beta=0.0,
        temperature=1.0,
        max_steps=steps * UPDATES,
        loss_type="bnpo",
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    draw = random.Random(0)
    peer = GRPOTrainer(
        model=str(model),
        reward_funcs=lambda completions, **_: [float(draw.random() < 0.5) for _ in completions],
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=AutoTokenizer.from_pretrained(model),
    )
    peer.remove_callback(PrinterCallback)
    marks: list[float] = []
    sampling: list[float] = []
    generate, step = peer._generate, peer.training_step  # of the pinned release

    def timed_generate(*given: Any, **named: Any) -> Any:
        start = time.perf_counter()
        result = generate(*given, **named)
        sampling.append(time.perf_counter() - start)
        return result

    def timed_step(*given: Any, **named: Any) -> Any:
        if peer._step % UPDATES == 0:
            marks.append(time.perf_counter())
        return step(*given, **named)

    peer._generate, peer.training_step = timed_generate, timed_step
    peer.train()
    marks.append(time.perf_counter())
    whole = [after - before for before, after in pairwise(marks)]
    yield from zip(whole, sampling, strict=True)


RIVALS: dict[str, tuple[Callable[..., Iterator[tuple[float, float]]], bool]] = {
    "entrobench": (our_step, False),
    "entrobench, recompute": (our_step, True),
    "trl": (peer_step, True),
    "trl, no recompute": (peer_step, False),
}


def memory_mib(key: str) -> float:
    """Return a size of this process: VmRSS, or VmHWM, its largest since `forget_peak`."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)]
    return int(line.split()[1]) / 1024


def forget_peak() -> float:
    """Begin a new measurement of the peak; return the memory in use."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # else freed memory that the allocator keeps would hide the next peak
    Path("/proc/self/clear_refs").write_text("5")
    return memory_mib("VmRSS")


def measure(place: Place, steps: int, rounds: int) -> dict[str, Measured]:
    """Measure all rivals at a place of the grid by turns; the first step of each turn warms up and is left out."""
    measured = {name: Measured([], []) for name in RIVALS}
    with tempfile.TemporaryDirectory() as name:
        model = Path(name, "model")
        write_random_model(place, model)
        for turn in range(rounds):
            for rival, (run, recompute) in RIVALS.items():
                before = forget_peak()
                # trl prints its warnings about the tiny model.
                with contextlib.redirect_stdout(None):
                    times = list(run(place, model, Path(name, f"{turn} {rival}"), recompute, steps))
                peak = memory_mib("VmHWM") - before
                for seconds, sampling in times[1:]:
                    measured[rival].add(seconds, sampling, peak)
    return measured


def row_of(place: Place, rival: str, of_rival: Measured, ours: Measured) -> list[str]:
    median, our_median = statistics.median(of_rival.seconds), statistics.median(ours.seconds)
    spread = f"{min(of_rival.seconds):.2f} to {max(of_rival.seconds):.2f}"
    sampling = statistics.median(of_rival.sampling)
    return [
        f"{place.parameters:g} M, {place.length}, {place.vocabulary:,}",
        rival,
        f"{median:.2f}",
        spread,
        f"{sampling:.2f}",
        f"{median / our_median:.2f}",
        f"{of_rival.peak_mib:,.0f}",
    ]


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("--parameters", type=float, nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--vocabularies", type=int, nargs="+", default=list(VOCABULARIES))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=2, help="steps of each turn; the first one is not counted")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    columns = ["M, length, vocabulary", "trainer", "s", "range", "sampling, s", "times ours", "peak, MiB"]
    for threads in given.threads:
        torch.set_num_threads(threads)
        for parameters, length, vocabulary in product(given.parameters, given.lengths, given.vocabularies):
            place = Place(parameters, length, vocabulary)
            measured = measure(place, given.steps, given.rounds)
            ours = measured["entrobench"]
            rows = [row_of(place, rival, of_rival, ours) for rival, of_rival in measured.items()]
            load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
            # A table for each place, since the whole grid takes long.
            show(f"One step against trl, threads: {threads}, median (load {load} at the end)", columns, rows)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
