"""A whole training step against trl's GRPOTrainer, over sizes of models, lengths of responses and vocabularies.

    python -m benchmarks.peers                                  # one axis at a time, one and two threads
    python -m benchmarks.peers --all --threads 1                # the whole grid
    python -m benchmarks.peers --all --parameters 0.2 --lengths 20

Both train the same random weights on the same prompts, with two updates per rollout batch and random rewards. All
responses have the same length, no two are equal, and entrobench also trains on those without an advantage, as trl does.
trl recomputes activations by default (`gradient_checkpointing`), and entrobench does not (`hardware.recompute`): both
are shown with and without. Peak memory is that of the process beyond its memory before the step (Linux: VmHWM).

Most of a step is matrix products, which every trainer needs. Their time alone is shown for each place: two operations
per weight and token for sampling and for the statistics each, and six for an update, at the rate of a product of the
model's own shape on this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, PrinterCallback, Qwen2Config, Qwen2ForCausalLM

import tasks
from benchmarks.common import demo_trainer, show
from benchmarks.memory import forget_peak, memory_mib
from harness.rollout import models
from harness.rollout.embedded import EmbeddedEngine
from harness.tokens.metrics import Stopwatch
from harness.train.trainer import Trainer

UPDATES = 2
# Hidden size, layers and heads by millions of parameters without embeddings.
SHAPES = {0.2: (64, 4, 4), 5.0: (256, 6, 8), 50.0: (640, 10, 10)}
LENGTHS = (20, 256, 1024)
VOCABULARIES = (73, 8_192, 152_064)
CENTER = (5.0, 256, 8_192)
LARGE = 8e6  # weights, head included; from here on a step has fewer tokens, so that it takes seconds
TOKENS, TOKENS_OF_LARGE = 2048, 512
SLOW = 1.0  # seconds of matrix products; one step alone is measured where they take longer, and no step to warm up
TOO_SLOW = 60.0  # seconds of matrix products, from which on a place is left out
NEVER = -1  # as the end token: no response ends before it has all its tokens


@dataclass(frozen=True)
class Place:
    """A place of the grid."""

    parameters: float  # millions, without embeddings
    length: int  # tokens of each response
    vocabulary: int

    def __str__(self) -> str:
        responses = f"{self.responses} responses of {self.length} tokens"
        return f"{self.parameters:g} M parameters, {responses}, vocabulary of {self.vocabulary:,}"

    @property
    def weights(self) -> float:
        """The number of weights that each token is multiplied with, head included."""
        hidden, layers, _ = SHAPES[self.parameters]
        return layers * (4 * hidden**2 + 3 * hidden * 4 * hidden) + hidden * self.vocabulary

    @property
    def responses(self) -> int:
        """The responses of a step: fewer of longer ones, but at least one group of two for each update."""
        tokens = TOKENS_OF_LARGE if self.weights > LARGE else TOKENS
        return max(tokens // self.length, 2 * UPDATES) // 8 * 8 or 2 * UPDATES

    @property
    def group(self) -> int:
        return min(4, self.responses // UPDATES)

    @property
    def prompts(self) -> int:
        return self.responses // self.group

    def products_alone(self) -> float:
        """Return the seconds of the matrix products of a step, at the rate of one product measured now."""
        hidden, _, _ = SHAPES[self.parameters]
        rows = self.responses * self.length // UPDATES
        x, weight = torch.randn(rows, hidden), torch.randn(hidden, 4 * hidden)
        x @ weight
        start, repeats = time.perf_counter(), 0
        while time.perf_counter() - start < 0.5:
            x @ weight
            repeats += 1
        rate = repeats * 2 * x.numel() * 4 * hidden / (time.perf_counter() - start)
        return (2 + 2 + 6) * self.weights * self.responses * self.length / rate


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
        f"train.group={place.group}",
        f"train.updates={UPDATES}",
        f"rollout.max_new_tokens={place.length}",
        "dynamics.every=0",
        f"hardware.recompute={str(recompute).lower()}",
        f"hardware.threads={torch.get_num_threads()}",
    ]
    trainer = demo_trainer("grpo+random_reward", folder, overrides, str(model))
    assert isinstance(trainer.engine, EmbeddedEngine)
    trainer.engine.ends = (NEVER,)
    # Otherwise responses of groups with equal rewards, whose number is random, would be left out.
    object.__setattr__(trainer.method, "contributing", lambda minibatch, signal: minibatch)
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

    from benchmarks.door import step_times

    prompts = [problem.prompt for problem in tasks.build_task("countdown").problems("train")]
    arguments = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=recompute,
        per_device_train_batch_size=place.responses // UPDATES,
        steps_per_generation=UPDATES,
        num_generations=place.group,
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
    sampling: list[float] = []
    generate = peer._generate  # of the pinned release

    def timed_generate(*given: Any, **named: Any) -> Any:
        start = time.perf_counter()
        result = generate(*given, **named)
        sampling.append(time.perf_counter() - start)
        return result

    peer._generate = timed_generate
    yield from zip(step_times(peer, UPDATES), sampling, strict=True)


RIVALS: dict[str, tuple[Callable[..., Iterator[tuple[float, float]]], bool]] = {
    "entrobench": (our_step, False),
    "entrobench, recompute": (our_step, True),
    "trl": (peer_step, True),
    "trl, no recompute": (peer_step, False),
}


def measure(place: Place, steps: int, rounds: int) -> dict[str, Measured]:
    """Measure all rivals at a place of the grid by turns; the first step of each turn warms up and is left out."""
    warm_up = 1
    if place.products_alone() > SLOW:
        warm_up, steps, rounds = 0, 1, 1
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
                for seconds, sampling in times[warm_up:]:
                    measured[rival].add(seconds, sampling, peak)
    return measured


def row_of(of_rival: Measured) -> list[str]:
    """Return seconds of a step with their range, those of sampling and of training, and the peak of memory."""
    seconds, sampling = statistics.median(of_rival.seconds), statistics.median(of_rival.sampling)
    spread = f"{min(of_rival.seconds):.2f} to {max(of_rival.seconds):.2f}" if len(of_rival.seconds) > 1 else ""
    return [f"{seconds:.2f}", spread, f"{sampling:.2f}", f"{seconds - sampling:.2f}", f"{of_rival.peak_mib:,.0f}"]


def places_of(given: argparse.Namespace) -> list[Place]:
    """Return the whole grid, or the places that differ from its center in one axis at most."""
    grid = product(given.parameters, given.lengths, given.vocabularies)
    places = []
    for axes in grid:
        differences = sum(axis != center for axis, center in zip(axes, CENTER, strict=True))
        if given.all or differences <= 1:
            places.append(Place(*axes))
    return places


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("--all", action="store_true", help="the whole grid, which takes half an hour with each thread")
    parser.add_argument("--parameters", type=float, nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--vocabularies", type=int, nargs="+", default=list(VOCABULARIES))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=2, help="steps of each turn; the first one is not counted")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    columns = ["trainer", "s", "range", "sampling, s", "training, s", "peak, MiB"]
    for threads in given.threads:
        torch.set_num_threads(threads)
        for place in places_of(given):
            floor = place.products_alone()
            if floor > TOO_SLOW:
                print(f"{place} is left out: its matrix products alone take {floor:.0f} s\n")
                continue
            measured = measure(place, given.steps, given.rounds)
            rows = [[rival, *row_of(of_rival)] for rival, of_rival in measured.items()]
            # A table for each place, since the whole grid takes long.
            title = f"{place}, threads: {threads}; matrix products alone {floor:.2f} s"
            show(title, columns, rows)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
