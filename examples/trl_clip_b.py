"""Clip_B in TRL, on puzzles and a tiny model that are made here: python examples/trl_clip_b.py [steps]

It takes a minute on a CPU. `accelerate launch examples/trl_clip_b.py` runs it on several processes.
"""

import sys

from datasets import Dataset
from trl import GRPOConfig

from entrobench.trl import EntrobenchTrainer
from harness.rollout import models
from tasks.countdown import Countdown

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
task = Countdown()
problems = {problem.prompt: problem for problem in task.problems("train")}


def right(prompts, completions, **_):
    return [task.verdict(problems[prompt], text).reward for prompt, text in zip(prompts, completions, strict=True)]


trainer = EntrobenchTrainer(
    method="clip_b(share=0.02)",
    model=str(models.resolve("countdown-tiny").folder()),  # or the name of any model of Hugging Face's hub
    reward_funcs=right,
    args=GRPOConfig(
        output_dir="trl_clip_b",
        max_steps=steps,
        learning_rate=3e-4,
        num_generations=8,
        per_device_train_batch_size=32,
        steps_per_generation=2,  # two updates on each rollout batch
        max_completion_length=24,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        bf16=False,
    ),
    train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in problems]),
)
trainer.train()
