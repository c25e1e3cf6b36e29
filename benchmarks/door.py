"""EntrobenchTrainer against TRL's own GRPOTrainer: seconds and peak memory of a step at a large vocabulary.

    python -m benchmarks.door                                       # a vocabulary of 152,064
    python -m benchmarks.door --vocabulary 8192 --hidden 64 --length 32 --rounds 1

Both train the same random weights with the same settings on the same fixed responses, so that the time is that of
scores, losses, gradients and the optimizer. They take turns; the first step of each turn warms up and is left out. Both
score the policy before the updates only if a rollout batch has more than one update (`--updates`). Peak memory is that
of the process beyond its memory before the trainer was built (Linux: VmHWM).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer  # here, so that no trainer's memory includes the modules

from benchmarks.memory import forget_peak, memory_mib
from entrobench.trl import EntrobenchTrainer

GROUP = 4
PEER = "TRL"
METHODS = ("grpo", "clip_b")
WORDS = 16  # of the tokenizer: the responses are given as tokens, and no text is ever read


@dataclass(frozen=True)
class DoorSize:
    """The size of the model and of a rollout batch."""

    vocabulary: int
    hidden: int
    layers: int
    prompt: int  # tokens
    length: int  # tokens of each response
    responses: int
    updates: int


@dataclass
class DoorTimes:
    """The steps of one trainer."""

    seconds: list[float] = field(default_factory=list)
    peaks_mib: list[float] = field(default_factory=list)  # of each turn

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def peak_mib(self) -> float:
        """The median: in the first turn the process allocates much that it keeps."""
        return statistics.median(self.peaks_mib)


def random_model(size: DoorSize) -> Qwen2ForCausalLM:
    """Return a model with random weights, the same at each call."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=size.vocabulary,
            hidden_size=size.hidden,
            intermediate_size=4 * size.hidden,
            num_hidden_layers=size.layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=size.prompt + size.length,
            tie_word_embeddings=True,
        )
    )


def word_tokenizer() -> PreTrainedTokenizerFast:
    words = {str(number): number for number in range(WORDS)}
    core = Tokenizer(WordLevel(words, unk_token="0"))
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="0", pad_token="1")


def fixed_responses(size: DoorSize) -> list[list[int]]:
    """Return the responses of every step: all of the same length, no two equal."""
    draw = random.Random(0)
    responses = []
    for _ in range(size.responses):
        responses.append([draw.randrange(2, size.vocabulary) for _ in range(size.length)])
    return responses


def built_trainer(name: str, size: DoorSize, folder: Path, steps: int) -> Any:
    """Return TRL's trainer, or EntrobenchTrainer with a method."""
    responses = fixed_responses(size)
    arguments = GRPOConfig(
        output_dir=str(folder),
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        per_device_train_batch_size=size.responses // size.updates,
        steps_per_generation=size.updates,
        num_generations=GROUP,
        max_completion_length=size.length,
        learning_rate=1e-6,
        max_steps=steps * size.updates,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    kind: Any = GRPOTrainer
    named: dict[str, Any] = {}
    if name != PEER:
        kind, named = EntrobenchTrainer, {"method": name}
    trainer = kind(
        model=random_model(size),
        reward_funcs=lambda completions, **_: [float(row % 2) for row in range(len(completions))],
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": str(row)} for row in range(size.responses)]),
        processing_class=word_tokenizer(),
        rollout_func=lambda prompts, trainer: {
            "prompt_ids": [[2] * size.prompt for _ in prompts],
            "completion_ids": responses,
            "logprobs": [[0.0] * size.length for _ in prompts],
        },
        **named,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def step_times(trainer: Any, updates: int) -> list[float]:
    """Train, and return the seconds of each rollout batch with its updates."""
    marks: list[float] = []
    step = trainer.training_step

    def marked(*given: Any, **named: Any) -> Any:
        if trainer._step % updates == 0:
            marks.append(time.perf_counter())
        return step(*given, **named)

    trainer.training_step = marked
    trainer.train()
    marks.append(time.perf_counter())
    return [after - before for before, after in pairwise(marks)]


def measure_door(size: DoorSize, steps: int, rounds: int) -> dict[str, DoorTimes]:
    """Measure all trainers by turns."""
    measured = {name: DoorTimes() for name in (PEER, *METHODS)}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name, times in measured.items():
                before = forget_peak()
                with contextlib.redirect_stdout(io.StringIO()):  # TRL prints about the tiny model
                    seconds = step_times(built_trainer(name, size, Path(folder), steps), size.updates)
                times.seconds += seconds[1:]
                times.peaks_mib.append(memory_mib("VmHWM") - before)
    return measured


def markdown_rows(measured: dict[str, DoorTimes]) -> list[str]:
    """Return the lines of the table."""
    peer = measured[PEER]
    lines = ["| trainer | s per step, median | range | times TRL's | peak, MiB | times TRL's |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for name, times in measured.items():
        spread = f"{min(times.seconds):.2f} to {max(times.seconds):.2f}"
        ratio, memory = times.median / peer.median, times.peak_mib / peer.peak_mib
        label = name if name == PEER else f"EntrobenchTrainer, {name}"
        lines.append(
            f"| {label} | {times.median:.2f} | {spread} | {ratio:.2f} | {times.peak_mib:,.0f} | {memory:.2f} |"
        )
    return lines


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.door")
    parser.add_argument("--vocabulary", type=int, default=152_064)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--length", type=int, default=128, help="tokens of a response")
    parser.add_argument("--responses", type=int, default=8, help="of a rollout batch")
    parser.add_argument("--updates", type=int, nargs="+", default=[1, 2], help="optimizer steps on a rollout batch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="steps of each turn; the first one is not counted")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(given.threads)
    shape = (given.vocabulary, given.hidden, given.layers, given.prompt, given.length, given.responses)
    for updates in given.updates:
        measured = measure_door(DoorSize(*shape, updates), given.steps, given.rounds)
        load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
        print(
            f"Vocabulary {given.vocabulary:,}, hidden {given.hidden}, {given.responses} responses of {given.length} "
            f"tokens after prompts of {given.prompt}, updates: {updates}, threads: {given.threads} (load {load})\n"
        )
        print("\n".join(markdown_rows(measured)), end="\n\n")


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
