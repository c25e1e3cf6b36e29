"""Evaluation through lm-eval: its task files and metrics, our engine for the sampling.

lm-eval sees an ordinary task (tasks/<name>/<name>.yaml) and an ordinary model. The verdict on every single response is
kept beside its metrics, since intervals and comparisons need it.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import lm_eval.api.task
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate as lm_evaluate
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml  # what is public there builds the task at once

import tasks
from harness.base import files, seeds
from harness.base.errors import UserError
from harness.rollout.protocol import Sampling
from harness.rollout.rendering import PLAIN, Chat, left_out, render
from harness.rollout.together import Work
from harness.verify.failures import check_failures
from tasks import Task, Verdict, Verifier
from tasks.scoring import dataset_of, metric_list, score_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from harness.batch import Rollout

T = TypeVar("T")
Record = dict[str, Any]  # of a problem: its id, the prompt, responses, lengths in tokens, finished, distinct, verdicts

FILTER = "all"


@dataclass(frozen=True)
class Evaluation:
    task: str
    problems: list[str]  # ids
    right: list[list[int]]  # problem by sample, 0 or 1
    verdicts: dict[str, int]  # how many of each
    metrics: dict[str, float]
    samples: list[Record]


def silent(done: int, of: int) -> None:
    """Says nothing, where nobody waits to hear how many problems have been asked."""


@dataclass(frozen=True)
class Sampler:
    """An engine and how it is asked."""

    engine: Sampling  # of this rank
    tokenizer: PreTrainedTokenizerBase
    seed: int
    chat: Chat = PLAIN
    context: int | None = None  # tokens of a prompt with its response, at most
    kept: Path | None = None  # a folder for batches that need not be sampled again
    together: int = 1  # responses of such a batch
    heard: Callable[[int, int], None] = silent
    helped: Work | None = None  # `sample`, done by all ranks; None: by this one alone

    def ask(self, task: str, prompts: Mapping[str, str], n: int, temperature: float, budget: int) -> list[Record]:
        """Returns n responses to the prompt of each problem.

        A batch depends on its problems alone, not on what was kept.
        """
        self.check_room(task, [len(self.rendered(prompt)) for prompt in prompts.values()], budget)
        settings: dict[str, Any] = {"n": n, "temperature": temperature, "budget": budget}
        sample = self.helped or self.sample
        if self.kept is None:
            return sample(list(prompts.items()), **settings)
        records: list[Record] = []
        for path, names in self.batches(list(prompts), n):
            batch = {problem: prompts[problem] for problem in names}
            found = known(path, batch)
            if found is None:
                found = sample(list(batch.items()), **settings)
                files.write_lines(path, found)
            records += found
            self.heard(len(records), len(prompts))
        return records

    def batches(self, of_problems: Sequence[T], n: int) -> Iterator[tuple[Path, Sequence[T]]]:
        """Yields the files that are kept, each with the part that belongs into it."""
        assert self.kept is not None
        together = max(self.together // n, 1)
        for number, start in enumerate(range(0, len(of_problems), together)):
            yield self.kept / f"{number:04d}.jsonl", of_problems[start : start + together]

    def judged(self, records: Sequence[Record], n: int) -> None:
        """Keeps the verdicts with the responses; a file may hold more responses than were asked for this time."""
        for path, part in self.batches(records, n):
            by_problem = {record["problem"]: record for record in part}
            files.write_lines(path, [by_problem.get(kept["problem"], kept) for kept in files.read_lines(path)])

    def rendered(self, prompt: str) -> list[int]:
        return render(self.tokenizer, prompt, self.chat)

    def sample(self, asked: Sequence[tuple[str, str]], *, n: int, temperature: float, budget: int) -> list[Record]:
        """Returns n responses to each problem, given with its prompt."""
        groups = self.engine.generate(
            [self.rendered(prompt) for _, prompt in asked],
            n,
            seeds=[seeds.derive(self.seed, problem) for problem, _ in asked],
            temperature=temperature,
            max_new_tokens=budget,
        )
        return [
            {"problem": problem, "prompt": prompt, **self.answers(group)}
            for (problem, prompt), group in zip(asked, groups, strict=True)
        ]

    def answers(self, group: Sequence[Rollout]) -> Record:
        """Returns what is kept of the responses to one problem. Equal ones are decoded once."""
        responses = [tuple(rollout.response) for rollout in group]
        distinct = list(dict.fromkeys(responses))
        texts = dict(zip(distinct, self.tokenizer.batch_decode(distinct, skip_special_tokens=True), strict=True))
        return {
            "responses": [texts[response] for response in responses],
            "lengths": [len(response) for response in responses],
            "finished": [rollout.finished for rollout in group],
            "distinct": len(distinct),
        }

    def check_room(self, task: str, lengths: Sequence[int], budget: int) -> None:
        if self.context is None or max(lengths) + budget <= self.context:
            return
        number = sum(length + budget > self.context for length in lengths)
        room = self.context - max(lengths)
        raise UserError(
            f"max_new_tokens is {budget}, but with {number} of {len(lengths)} prompts of {task} that exceeds the "
            f"model's max_position_embeddings ({self.context}; the longest prompt has {max(lengths)} tokens); allowed: "
            + (f"up to {room}, or " if room > 0 else "")
            + "eval.beyond_context=true (--beyond-context), where positions go on and answers may get worse"
        )

    def notes(self, prompts: Sequence[str]) -> list[str]:
        """Returns a note for readers if the tokenizer has no token for some characters and just leaves them out."""
        some, _ = left_out(self.tokenizer, prompts, self.chat)
        return [f"the tokenizer leaves letters out of {some} of {len(prompts)} prompts"] if some else []


def known(path: Path, batch: Mapping[str, str]) -> list[Record] | None:
    """Returns the responses that were kept if they are to the same prompts, whatever else was asked; else None."""
    found = {record["problem"]: record for record in files.read_lines(path)} if path.exists() else {}
    prompts = {problem: found[problem]["prompt"] for problem in batch if problem in found}
    return [found[problem] for problem in batch] if prompts == batch else None


class EngineLM(LM):
    """An lm-eval model over an engine: the repeats of a request become the samples of one prompt."""

    def __init__(self, sampler: Sampler) -> None:
        super().__init__()
        self.sampler = sampler
        self.records: dict[str, Record] = {}  # by problem

    def generate_until(self, requests: list[Instance]) -> list[str]:
        repeats = Counter(request.doc["id"] for request in requests)
        prompts = {request.doc["id"]: request.args[0] for request in requests}
        settings = requests[0].args[1]
        assert len(set(repeats.values())) == 1, "every problem is asked equally often"
        assert not settings["until"], "the engine stops at the end of a sequence and nowhere else"
        number, task = repeats[requests[0].doc["id"]], requests[0].task_name
        records = self.sampler.ask(task, prompts, number, settings["temperature"], settings["max_gen_toks"])
        self.records = {record["problem"]: record for record in records}
        texts = {record["problem"]: iter(record["responses"]) for record in records}
        return [next(texts[request.doc["id"]]) for request in requests]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise NotImplementedError("an engine samples; it scores no given text")

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError("an engine samples; it scores no given text")


def evaluate(
    task: Task,
    sampler: Sampler,
    verifier: Verifier,
    *,
    split: str,
    problems: int | None,
    samples: int,
    temperature: float,
    max_new_tokens: int,
    max_failures: float,
) -> Evaluation:
    """Asks for `samples` responses to each of the first `problems` problems of a split (None: all), judged by the task.

    What is drawn for a problem depends on the weights, the problem and the seed alone, so that models which are
    evaluated with the same seed are compared sample by sample.
    """
    available = task.problems(split)
    if not 1 <= (problems or len(available)) <= len(available):
        raise UserError(f"eval.problems is {problems}, but {task.name} has {len(available)} in its {split} split")
    overrides = {
        "custom_dataset": lambda **_: {split: dataset_of(available[:problems])},
        # No partial: lm-eval copies what it is given, and a verifier has processes.
        "process_results": lambda doc, results: score_of(task, verifier, doc, results),
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
    }
    model = EngineLM(sampler)
    with quiet():
        # By its file alone: a name that lm-eval has, too, means ours, and beside a plugin's file may lie anything.
        loaded = TaskManager(include_defaults=False).load({**load_yaml(tasks.file(task)), **overrides})
        result = lm_evaluate(model, {**loaded, "groups": {}}, bootstrap_iters=0, log_samples=True)
    assert result is not None
    rows = sorted(result["samples"][task.name], key=lambda row: row["doc_id"])
    records = [model.records[row["doc"]["id"]] | {"verdicts": row["avg"]} for row in rows]
    if sampler.kept is not None:
        sampler.judged(records, samples)
    check_failures((verdict for record in records for verdict in record["verdicts"]), max_failures)
    scores = {key: value for key, value in result["results"][task.name].items() if key.endswith(f",{FILTER}")}
    metrics = {key.removesuffix(f",{FILTER}"): value for key, value in scores.items() if "_stderr" not in key}
    return Evaluation(
        task=task.name,
        problems=[record["problem"] for record in records],
        right=[[int(verdict == Verdict.RIGHT) for verdict in record["verdicts"]] for record in records],
        verdicts=dict(Counter(verdict for record in records for verdict in record["verdicts"])),
        metrics=metrics | of_tokens(records),
        samples=records,
    )


def of_tokens(records: Sequence[Record]) -> dict[str, float]:
    """Returns the metrics of tokens, which lm-eval cannot tell from the text alone."""
    lengths = [length for record in records for length in record["lengths"]]
    finished = [end for record in records for end in record["finished"]]
    return {
        "truncated": finished.count(False) / len(finished),
        "length": sum(lengths) / len(lengths),
        "distinct": sum(record["distinct"] / len(record["lengths"]) for record in records) / len(records),
    }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences lm-eval's bar over the problems, and its hint on metadata for every dataset made by a function.

    All else passes.
    """

    def wanted(record: logging.LogRecord) -> bool:
        return "Custom kwargs can be passed to `--metadata`" not in record.getMessage()

    bar = lm_eval.api.task.tqdm
    lm_eval.api.task.tqdm = partial(bar, disable=True)
    lm_eval.api.task.eval_logger.addFilter(wanted)
    try:
        yield
    finally:
        lm_eval.api.task.eval_logger.removeFilter(wanted)
        lm_eval.api.task.tqdm = bar
