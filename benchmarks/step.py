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

from benchmarks.common import demo_trainer, show
from harness.rollout import models
from harness.tokens.metrics import Stopwatch
from tasks import Verdict


class Clock(TrainerCallback):
    """A clock of rollout batches: the time at the end of each batch's last update."""

    def __init__(self, updates: int) -> None:
        self.updates, self.marks = updates, []

    def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        if state.global_step % self.updates == 0:
            self.marks.append(time.perf_counter())


def our_seconds(steps: int, folder: Path) -> list[float]:
    """Return the seconds of each step of entrobench's trainer after the first."""
    trainer, seconds = demo_trainer("grpo", folder), []
    for step in range(1, steps + 1):
        start = time.perf_counter()
        trainer.train_step(step, Stopwatch())
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def peer_seconds(steps: int, folder: Path) -> list[float]:
    """Return the seconds of each step of trl's trainer after the first."""
    from trl import GRPOConfig, GRPOTrainer

    trainer = demo_trainer("grpo", folder)
    train = trainer.config.train
    responses = train.prompts * train.group
    tokenizer = AutoTokenizer.from_pretrained(models.resolve("countdown-tiny").folder())
    problems = {problem.prompt: problem for problem in trainer.problems}

    def reward(prompts: list[str], completions: list[str], **_: object) -> list[float]:
        pairs = [(problems[prompt], completion) for prompt, completion in zip(prompts, completions, strict=True)]
        verdicts = trainer.task.verdicts(pairs, trainer.verifier)
        return [float(verdict == Verdict.RIGHT) for verdict in verdicts]

    arguments = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=responses // train.updates,
        steps_per_generation=train.updates,
        num_generations=train.group,
        max_completion_length=trainer.config.rollout.max_new_tokens,
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
        model=trainer.policy.module,
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
        ours, theirs = [], []
        for _ in range(2):  # interleaved, since machines are noisy
            ours += our_seconds(steps, Path(folder))
            theirs += peer_seconds(steps, Path(folder))
    our_median, their_median = statistics.median(ours), statistics.median(theirs)
    rows = [
        ["entrobench", f"{our_median:.2f}", "1.0"],
        ["trl GRPOTrainer", f"{their_median:.2f}", f"{their_median / our_median:.1f}"],
    ]
    show("One training step of the demo, one thread, median", ["trainer", "s", "times ours"], rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
