"""Evaluation through lm-eval: its task files and metrics, with samples from our engines.

lm-eval sees an ordinary task (tasks/<name>/<name>.yaml) and an ordinary model. The verdict on every single response is
kept along with its metrics, since intervals and comparisons need it.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import lm_eval.api.task
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate as lm_evaluate
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml  # the public functions build the task at once

import tasks
from harness.base import files, seeds
from harness.base.errors import Damaged, UserError
from harness.base.task import Countable, Judged
from harness.ranks import Work
from harness.rollout.protocol import Sampling
from harness.rollout.rendering import PLAIN, Chat, count_unread, render_prompt
from harness.verify.background import BackgroundJudge, JudgedRollout, judge_rollouts
from harness.verify.pool import check_failures
from tasks import Problem, Task, Verdict, Verifier
from tasks.scoring import dataset_of, distinct_right, judged, metric_list, scores, solutions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from harness.methods.batch import Rollout

T = TypeVar("T")
# The record of a problem: its id, the prompt, responses, lengths in tokens, finished, distinct, verdicts, answers in
# the task's normal form, and whether each response continues after its answer
Record = dict[str, Any]

FILTER = "all"  # the name under which lm-eval reports the metrics over all samples


@dataclass(frozen=True)
class EvaluationResult:
    task: str
    problems: list[str]  # ids
    right: list[list[int]]  # problem by sample, 0 or 1
    right_distinct: list[int]  # distinct right answers found for each problem
    solutions: list[int] | None  # right answers that each problem has; None where the task cannot count them
    verdicts: dict[str, int]  # how many of each
    metrics: dict[str, float]
    samples: list[Record]


def ignore_progress(done: int, of: int) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class Sampler:
    """An engine with the settings of an evaluation."""

    engine: Sampling  # of this rank
    tokenizer: PreTrainedTokenizerBase
    seed: int
    chat: Chat = PLAIN
    context: int | None = None  # tokens of a prompt with its response, at most
    kept: Path | None = None  # a folder for batches that need not be sampled again
    together: int = 1  # responses of such a batch
    heard: Callable[[int, int], None] = ignore_progress
    helped: Work | None = None  # `sample`, done by all ranks; None: by this one alone

    def ask(
        self, task: Task, verifier: Verifier, problems: Sequence[Problem], n: int, temperature: float, budget: int
    ) -> list[Record]:
        """Return n judged responses to each problem, sampled or read from kept batches.

        The division into batches depends on the problems alone, so that kept ones are found again.
        """
        lengths = [len(self.rendered(problem)) for problem in problems]
        self.check_room(task.name, lengths, budget)
        settings: dict[str, Any] = {"n": n, "temperature": temperature, "budget": budget}
        sample = self.helped or partial(self.sample, task, verifier)
        if self.kept is None:
            return sample(problems, **settings)
        records: list[Record] = []
        for path, batch in self.batches(problems, n):
            of_batch = known_records(path, batch)
            if of_batch is None:
                of_batch = sample(batch, **settings)
                files.write_lines(path, of_batch)
            else:  # the rules of judging may have changed since
                for problem, record in zip(batch, of_batch, strict=True):
                    record |= of_judged(judged(task, verifier, problem, record["responses"]))
                rejudge(path, of_batch)
            records += of_batch
            self.heard(len(records), len(problems))
        return records

    def batches(self, of_problems: Sequence[T], n: int) -> Iterator[tuple[Path, Sequence[T]]]:
        """Yield the file of each batch, with its problems."""
        assert self.kept is not None
        together = max(self.together // n, 1)
        for number, start in enumerate(range(0, len(of_problems), together)):
            yield self.kept / f"{number:04d}.jsonl", of_problems[start : start + together]

    def rendered(self, problem: Problem) -> list[int]:
        return render_prompt(self.tokenizer, problem, self.chat)

    def sample(
        self,
        task: Task,
        verifier: Verifier,
        problems: Sequence[Problem],
        *,
        n: int,
        temperature: float,
        budget: int,
    ) -> list[Record]:
        """Return n responses to each problem, judged while others are sampled."""
        with BackgroundJudge(partial(judge_rollouts, task, verifier, self.tokenizer, problems)) as reading:
            prompts, seeds_of_problems = [], []
            for problem in problems:
                prompts.append(self.rendered(problem))
                seeds_of_problems.append(seeds.derive(self.seed, problem.id))
            groups = self.engine.generate(
                prompts,
                n,
                seeds=seeds_of_problems,
                temperature=temperature,
                max_new_tokens=budget,
                on_group=reading.add,
            )
            results = iter(reading.results())
        records = []
        for problem, group in zip(problems, groups, strict=True):
            records.append(self.record(problem, group, list(islice(results, n))))
        return records

    def record(self, problem: Problem, group: Sequence[Rollout], results: Sequence[JudgedRollout]) -> Record:
        """Return the record of the responses to one problem."""
        texts, lengths, finished, distinct, judged_group = [], [], [], set(), []
        for rollout, result in zip(group, results, strict=True):
            texts.append(result.text)
            lengths.append(len(rollout.response))
            finished.append(rollout.finished)
            distinct.add(result.copy_of)
            judged_group.append(result.judged)
        return {
            "problem": problem.id,
            **as_asked(problem),
            "responses": texts,
            "lengths": lengths,
            "finished": finished,
            "distinct": len(distinct),
            **of_judged(judged_group),
        }

    def check_room(self, task: str, lengths: Sequence[int], budget: int) -> None:
        """Raise UserError where a prompt with its response may exceed the context of the model."""
        if self.context is None or max(lengths) + budget <= self.context:
            return
        number = sum(length + budget > self.context for length in lengths)
        room = self.context - max(lengths)
        shorter = f"up to {room}, or " if room > 0 else ""
        raise UserError(
            f"max_new_tokens is {budget}, but with {number} of {len(lengths)} prompts of {task} that exceeds the "
            f"model's max_position_embeddings ({self.context}; the longest prompt has {max(lengths)} tokens); allowed: "
            f"{shorter}eval.beyond_context=true (--beyond-context), where positions go on and answers may get worse"
        )

    def notes(self, prompts: Sequence[str]) -> list[str]:
        """Return a note for readers if the tokenizer leaves out characters that it has no token for."""
        some, _ = count_unread(self.tokenizer, prompts, self.chat)
        return [f"the tokenizer leaves letters out of {some} of {len(prompts)} prompts"] if some else []


def as_asked(problem: Problem) -> Record:
    """Return the part of a record that says what the model was asked."""
    shots = {"shots": [list(shot) for shot in problem.shots]} if problem.shots else {}
    return {"prompt": problem.prompt, **shots}


def of_judged(responses: Sequence[Judged]) -> Record:
    """Return the part of a record that depends on the rules of judging."""
    verdicts, answers, goes_on = [], [], []
    for response in responses:
        verdicts.append(response.verdict)
        answers.append(response.text)
        goes_on.append(response.goes_on)
    return {"verdicts": verdicts, "answers": answers, "goes_on": goes_on}


def known_records(path: Path, batch: Sequence[Problem]) -> list[Record] | None:
    """Return the kept records of a batch; None unless there is one for each problem, with the same prompt and shots."""
    if not path.exists():
        return None
    try:
        records = files.read_lines(path)
    except Damaged as damage:
        raise UserError(f"{damage}; remove this file, and the same command asks for its responses again") from damage
    by_problem = {record["problem"]: record for record in records}
    of_batch = []
    for problem in batch:
        record = by_problem.get(problem.id)
        if record is None or as_asked(problem) != {key: record[key] for key in ("prompt", "shots") if key in record}:
            return None
        of_batch.append(record)
    return of_batch


def rejudge(path: Path, records: Sequence[Record]) -> None:
    """Write new verdicts into a kept file, which may hold more problems than this evaluation has."""
    by_problem = {record["problem"]: record for record in records}
    lines = []
    for kept in files.read_lines(path):
        lines.append(by_problem.get(kept["problem"], kept))
    files.write_lines(path, lines)


class EngineLM(LM):
    """An lm-eval model over an engine: the repeats of a request become the samples of one prompt."""

    def __init__(self, sampler: Sampler, task: Task, verifier: Verifier, problems: Sequence[Problem]) -> None:
        super().__init__()
        self.sampler, self.task, self.verifier = sampler, task, verifier
        self.problems = {problem.id: problem for problem in problems}
        self.records: dict[str, Record] = {}  # by problem

    def generate_until(self, requests: list[Instance]) -> list[str]:
        repeats = Counter[str]()
        problems: dict[str, Problem] = {}
        for request in requests:
            assert request.args[0] == request.doc["prompt"], "a prompt is the problem's"
            problem = self.problems[request.doc["id"]]
            repeats[problem.id] += 1
            problems[problem.id] = problem
        settings = requests[0].args[1]
        assert len(set(repeats.values())) == 1, "every problem has the same number of samples"
        assert not settings["until"], "the engine stops at the end of a sequence and nowhere else"
        samples = repeats[requests[0].doc["id"]]
        temperature, budget = settings["temperature"], settings["max_gen_toks"]
        records = self.sampler.ask(self.task, self.verifier, list(problems.values()), samples, temperature, budget)
        # lm-eval repeats a request for each sample. The repeats take the responses to their problem one by one.
        self.records, texts = {}, {}
        for record in records:
            self.records[record["problem"]] = record
            texts[record["problem"]] = iter(record["responses"])
        return [next(texts[request.doc["id"]]) for request in requests]

    def scores(self, problem: str) -> dict[str, Any]:
        """Return the metrics of one problem, given by its id."""
        record = self.records[problem]
        kept = (record["responses"], record["verdicts"], record["answers"], record["goes_on"])
        return scores(*kept, solutions(self.task, self.problems[problem]))

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise NotImplementedError("an engine samples; it scores no given text")

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError("an engine samples; it scores no given text")


def evaluate_task(
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
) -> EvaluationResult:
    """Sample responses to the first `problems` problems of a split (None: all); return their verdicts and metrics.

    The samples of a problem depend on the weights, the problem and the seed alone, so that models that are evaluated
    with the same seed are compared sample by sample.
    """
    available = task.problems(split)
    if not 1 <= (problems or len(available)) <= len(available):
        raise UserError(f"eval.problems is {problems}, but {task.name} has {len(available)} in its {split} split")
    model = EngineLM(sampler, task, verifier, available[:problems])
    overrides = {
        "custom_dataset": lambda **_: {split: dataset_of(available[:problems])},
        # Not a partial: lm-eval deep-copies its arguments, which a verifier with its processes does not allow.
        "process_results": lambda doc, results: model.scores(doc["id"]),
        "test_split": split,
        "fewshot_split": None,  # a prompt is rendered here with the shots of its problem
        "num_fewshot": 0,
        "repeats": samples,
        "filter_list": [{"name": FILTER, "filter": [{"function": "take_first_k", "k": samples}]}],
        "metric_list": metric_list(samples, countable=isinstance(task, Countable)),
        "generation_kwargs": {
            "until": [],
            "do_sample": temperature > 0,
            "temperature": temperature,
            "max_gen_toks": max_new_tokens,
        },
    }
    with quiet():
        # By its file alone: lm-eval may have a task of the same name, and would read all files in a plugin's folder.
        loaded = TaskManager(include_defaults=False).load({**load_yaml(tasks.lm_eval_file(task)), **overrides})
        # Without its bootstrap: intervals are computed from the verdicts, over seeds and problems.
        result = lm_evaluate(model, {**loaded, "groups": {}}, bootstrap_iters=0, log_samples=True)
    assert result is not None
    rows = sorted(result["samples"][task.name], key=lambda row: row["doc_id"])
    problem_ids, records, counts = [], [], []
    right, right_distinct, verdicts = [], [], Counter[str]()
    for row in rows:
        record = model.records[row["doc"]["id"]]
        problem_ids.append(record["problem"])
        records.append(record)
        count = solutions(task, model.problems[row["doc"]["id"]])
        if count is not None:
            counts.append(count)
        right.append([int(Verdict(verdict).reward) for verdict in record["verdicts"]])
        right_distinct.append(distinct_right(record["verdicts"], record["answers"]))
        verdicts.update(record["verdicts"])
    check_failures(verdicts.elements(), max_failures)
    metrics = {}
    for key, value in result["results"][task.name].items():
        if key.endswith(f",{FILTER}") and "_stderr" not in key:
            metrics[key.removesuffix(f",{FILTER}")] = value
    return EvaluationResult(
        task=task.name,
        problems=problem_ids,
        right=right,
        right_distinct=right_distinct,
        solutions=counts or None,
        verdicts=dict(verdicts),
        metrics=metrics | of_tokens(records),
        samples=records,
    )


def of_tokens(records: Sequence[Record]) -> dict[str, float]:
    """Return the metrics of tokens, which lm-eval cannot compute from the text."""
    lengths: list[int] = []
    finished: list[bool] = []
    distinct: list[float] = []
    for record in records:
        lengths += record["lengths"]
        finished += record["finished"]
        distinct.append(record["distinct"] / len(record["lengths"]))
    return {
        "truncated": finished.count(False) / len(finished),
        "length": sum(lengths) / len(lengths),
        "distinct": sum(distinct) / len(records),
    }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence lm-eval's bar over the problems, and its hint about metadata for datasets made by a function."""

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
