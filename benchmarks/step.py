"""One training step against trl's GRPOTrainer: the same model, prompts, group, lengths and updates, one run."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback

from benchmarks.common import show, trainer
from harness.rollout import models
from harness.tokens.metrics import Stopwatch
from tasks import Verdict


class Clock(TrainerCallback):
    """The seconds of each rollout batch: from one pair of updates to the next."""

    def __init__(self, updates: int) -> None:
        self.updates, self.marks = updates, []

    def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        if state.global_step % self.updates == 0:
            self.marks.append(time.perf_counter())


def ours(steps: int, folder: Path) -> list[float]:
    built, seconds = trainer("grpo", folder), []
    for step in range(1, steps + 1):
        start = time.perf_counter()
        built.train_step(step, Stopwatch())
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def theirs(steps: int, folder: Path) -> list[float]:
    from trl import GRPOConfig, GRPOTrainer

    built = trainer("grpo", folder)
    train, size = built.config.train, built.config.train.prompts * built.config.train.group
    tokenizer = AutoTokenizer.from_pretrained(models.resolve("countdown-tiny").folder())
    problems = {problem.prompt: problem for problem in built.problems}

    def reward(prompts: list[str], completions: list[str], **_: object) -> list[float]:
        asked = [problems[prompt] for prompt in prompts]
        verdicts = built.task.verdicts(list(zip(asked, completions, strict=True)), built.verifier)
        return [float(verdict == Verdict.RIGHT) for verdict in verdicts]

    arguments = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=size // train.updates,
        steps_per_generation=train.updates,
        num_generations=train.group,
        max_completion_length=built.config.rollout.max_new_tokens,
        learning_rate=train.lr,
        beta=0.0,
        temperature=1.0,
        max_steps=steps * train.updates,
        loss_type="bnpo",
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    clock = Clock(train.updates)
    peer = GRPOTrainer(
        model=built.policy.module,
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in problems]),
        processing_class=tokenizer,
        callbacks=[clock],
    )
    peer.remove_callback(PrinterCallback)
    peer.train()
    return [after - before for before, after in zip(clock.marks, clock.marks[1:], strict=False)]


def main(steps: int = 6) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        mine, peers = [], []
        for _ in range(2):  # interleaved, since machines are noisy
            mine += ours(steps, Path(folder))
            peers += theirs(steps, Path(folder))
    own, peer = statistics.median(mine), statistics.median(peers)
    rows = [["entrobench", f"{own:.2f}", "1.0"], ["trl GRPOTrainer", f"{peer:.2f}", f"{peer / own:.1f}"]]
    show("One training step of the demo, one thread, median", ["trainer", "s", "times ours"], rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
