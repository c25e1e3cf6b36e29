"""Evaluation through lm-eval: its task files and metrics, our engine for the sampling.

What lm-eval sees is an ordinary task (tasks/<name>/<name>.yaml) and an ordinary model; what is kept beside its
metrics is the verdict on every single response, which intervals and comparisons need.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lm_eval.api.task
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate as lm_evaluate
from lm_eval.tasks import TaskManager

import tasks
from harness import seeds
from harness.batch import Rollout
from harness.config import UserError
from harness.rollout import Engine
from tasks import Task, Verdict
from tasks.scoring import metric_list

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FILTER = "all"


@dataclass(frozen=True)
class Evaluation:
    task: str
    problems: list[str]  # ids
    right: list[list[int]]  # problem by sample, 0 or 1
    verdicts: dict[str, int]  # how many of each
    metrics: dict[str, float]
    samples: list[dict[str, Any]]  # problem, prompt, responses, verdicts


def render(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """The tokens that a model is given, in training and in evaluation alike."""
    if getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": prompt}]
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
    return list(tokenizer(prompt)["input_ids"])


class EngineLM(LM):
    """An lm-eval model over an engine: the repeats of a request become the samples of one prompt."""

    def __init__(self, engine: Engine, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        super().__init__()
        self.engine, self.tokenizer, self.seed = engine, tokenizer, seed
        self.groups: dict[str, list[Rollout]] = {}  # by problem

    def generate_until(self, requests: list[Instance]) -> list[str]:
        repeats = Counter(request.doc["id"] for request in requests)
        contexts = {request.doc["id"]: request.args[0] for request in requests}
        settings = requests[0].args[1]
        assert len(set(repeats.values())) == 1, "every problem is asked equally often"
        assert not settings["until"], "the engine stops at the end of a sequence and nowhere else"
        groups = self.engine.generate(
            [render(self.tokenizer, context) for context in contexts.values()],
            repeats[requests[0].doc["id"]],
            seeds=[seeds.derive(self.seed, problem) for problem in contexts],
            temperature=settings["temperature"],
            max_new_tokens=settings["max_gen_toks"],
        )
        self.groups = dict(zip(contexts, groups, strict=True))
        texts = {
            problem: iter(self.tokenizer.batch_decode([r.response for r in group], skip_special_tokens=True))
            for problem, group in self.groups.items()
        }
        return [next(texts[request.doc["id"]]) for request in requests]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise NotImplementedError("an engine samples; it scores no given text")

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError("an engine samples; it scores no given text")


def evaluate(
    task: Task,
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    *,
    split: str,
    problems: int | None,
    samples: int,
    temperature: float,
    max_new_tokens: int,
    seed: int,
) -> Evaluation:
    """`samples` responses to each of the first `problems` problems of a split (None: to all), judged by the task.

    What is drawn for a problem depends on the weights, the problem and the seed alone, so that models which are
    evaluated with the same seed are compared sample by sample.
    """
    available = len(task.problems(split))
    if not 1 <= (problems or available) <= available:
        raise UserError(f"eval.problems is {problems}, but {tasks.spec(task)} has {available} in its {split} split")
    overrides = {
        "test_split": split,
        "repeats": samples,
        "filter_list": [{"name": FILTER, "filter": [{"function": "take_first_k", "k": samples}]}],
        "metric_list": metric_list(samples),
        "generation_kwargs": {
            "until": [],
            "do_sample": temperature > 0,
            "temperature": temperature,
            "max_gen_toks": max_new_tokens,
        },
        "metadata": {"spec": tasks.spec(task), "splits": [split]},
    }
    model = EngineLM(engine, tokenizer, seed)
    with quiet():
        manager = TaskManager(include_path=Path(tasks.__file__).parent / task.name, include_defaults=False)
        loaded = manager.load({"group": "evaluation", "task": [{"task": task.name, **overrides}]})
        result = lm_evaluate(model, {**loaded, "groups": {}}, limit=problems, bootstrap_iters=0, log_samples=True)
    assert result is not None
    rows = sorted(result["samples"][task.name], key=lambda row: row["doc_id"])
    scores = {key: value for key, value in result["results"][task.name].items() if key.endswith(f",{FILTER}")}
    metrics = {key.removesuffix(f",{FILTER}"): value for key, value in scores.items() if "_stderr" not in key}
    return Evaluation(
        task=task.name,
        problems=[row["doc"]["id"] for row in rows],
        right=[[int(verdict == Verdict.RIGHT) for verdict in row["avg"]] for row in rows],
        verdicts=dict(Counter(verdict for row in rows for verdict in row["avg"])),
        metrics=metrics | of_rollouts(list(model.groups.values())),
        samples=[
            {
                "problem": row["doc"]["id"],
                "prompt": row["doc"]["prompt"],
                "responses": row["filtered_resps"][0],
                "verdicts": row["avg"],
            }
            for row in rows
        ],
    )


def of_rollouts(groups: list[list[Rollout]]) -> dict[str, float]:
    rollouts = [rollout for group in groups for rollout in group]
    distinct = [len({tuple(rollout.response) for rollout in group}) / len(group) for group in groups]
    return {
        "truncated": sum(not rollout.finished for rollout in rollouts) / len(rollouts),
        "length": sum(len(rollout.response) for rollout in rollouts) / len(rollouts),
        "distinct": sum(distinct) / len(distinct),
    }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without lm-eval's hint on metadata, which it gives for every dataset made by a function; all else passes."""

    def wanted(record: logging.LogRecord) -> bool:
        return "Custom kwargs can be passed to `--metadata`" not in record.getMessage()

    lm_eval.api.task.eval_logger.addFilter(wanted)
    try:
        yield
    finally:
        lm_eval.api.task.eval_logger.removeFilter(wanted)
