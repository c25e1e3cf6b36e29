"""The evaluation of a cell on its tasks, whoever trained it: sampled, judged and written to its folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness import ranks
from harness.base import files, seeds
from harness.cells import evaluations
from harness.config import Config
from harness.rollout.protocol import Engine
from harness.rollout.rendering import Chat
from harness.train.evaluate import Sampler, evaluate_task
from harness.train.policy import context_of
from tasks import Task, Verifier

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from harness.train.parts import Parts


@dataclass(frozen=True)
class CellEvaluator:
    """Everything that the evaluation of a cell depends on."""

    folder: Path  # of the cell
    config: Config
    seed: int  # of the cell
    trained_on: str  # the name of its task
    evaluation_tasks: Mapping[str, Task]  # by the names of their evaluations
    engine: Engine  # with the weights that are evaluated
    tokenizer: PreTrainedTokenizerBase
    verifier: Verifier
    chat: Chat
    context: int | None  # tokens of a prompt with its response, at most

    @classmethod
    def of_parts(cls, parts: Parts, folder: Path, engine: Engine) -> CellEvaluator:
        """Return the evaluator of a cell that is being trained."""
        context = None
        if not parts.config.eval.beyond_context:
            context = context_of(parts.policy.module.config)
        return cls(
            folder,
            parts.config,
            parts.seed,
            parts.task.name,
            parts.evaluation_tasks,
            engine,
            parts.tokenizer,
            parts.verifier,
            parts.chat,
            context,
        )

    def evaluate(self, step: int) -> dict[str, float]:
        """Evaluate on all evaluation tasks; rank 0 computes the scores, and each rank samples and judges its share."""
        seed = seeds.derive("evaluate", self.seed, step)
        sampler = Sampler(self.engine, self.tokenizer, seed, self.chat, self.context)
        record: dict[str, float] = {}
        for name, task in self.evaluation_tasks.items():
            with ranks.on_all_ranks(partial(sampler.sample, task, self.verifier)) as sample:
                if sample is not None:  # rank 0; the others get None after their shares of its requests
                    record |= self.scores_of_task(step, name, task, dataclasses.replace(sampler, helped=sample))
        return record

    def scores_of_task(self, step: int, name: str, task: Task, sampler: Sampler) -> dict[str, float]:
        """Evaluate on one task; write its evaluation and its samples, and return its metrics."""
        settings = self.config.eval.of(name)
        result = evaluate_task(
            task,
            sampler,
            self.verifier,
            split=settings.split,
            problems=settings.problems,
            samples=settings.samples,
            temperature=settings.temperature,
            max_new_tokens=self.config.rollout.max_new_tokens,
            max_failures=self.config.verify.max_failures,
        )
        record = {
            "task": name,
            "step": step,
            "problems": result.problems,
            "right": result.right,
            "right_distinct": result.right_distinct,
            "solutions": result.solutions,
            "verdicts": result.verdicts,
            "metrics": result.metrics,
            "flags": task.flags(self.trained_on),
        }
        evaluations.write_evaluation(self.folder, record)
        answers = evaluations.answers_path(evaluations.evaluation_path(self.folder, name, step))
        files.write_lines(answers, result.samples)
        return evaluation_metrics(name, result.metrics)


def evaluation_metrics(name: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of an evaluation task by the names under which a cell logs them."""
    return {f"eval/{name}/{key}": value for key, value in metrics.items()}
