"""The evaluation of a model on tasks, whoever trained it: sampled by an engine, judged, counted and recorded.

Scores come through lm-eval: it sees an ordinary task (tasks/<name>/<name>.yaml) and an ordinary model. The verdict on
every single response is kept along with its metrics, since intervals and comparisons need it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import lm_eval.api.task
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate as lm_evaluate
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml  # the public functions build the task at once

import tasks
from harness import ranks
from harness.base import files, seeds
from harness.base.errors import UserError
from harness.base.task import Countable, Judged
from harness.base.terminal import without_message
from harness.cells import evaluations
from harness.config import Config, Verify
from harness.ranks import Work
from harness.rollout.protocol import Sampling, no_progress
from harness.rollout.rendering import PLAIN, Chat, render_prompt
from harness.train.base_answers import BaseAnswers
from harness.train.policy import context_of
from harness.verify.background import BackgroundJudge, JudgedRollout, judge_rollouts
from harness.verify.pool import check_failures
from tasks import Problem, Task, Verdict, Verifier
from tasks.scoring import dataset_of, distinct_right, metric_list, scores, solutions

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from harness.methods.batch import Rollout

# The record of a problem: its id, the prompt, responses, lengths in tokens, finished, distinct, verdicts, answers in
# the task's normal form, and whether each response continues after its answer
Record = dict[str, Any]

FILTER = "all"  # the name under which lm-eval reports the metrics over all samples


@dataclass(frozen=True)
class Evaluation:
    """The result of a model on a task."""

    problems: list[str]  # ids
    right: list[list[int]]  # problem by sample, 0 or 1
    right_distinct: list[int]  # distinct right answers found for each problem
    solutions: list[int] | None  # right answers that each problem has; None where the task cannot count them
    verdicts: dict[str, int]  # how many of each
    metrics: dict[str, float]
    samples: list[Record]

    def counts(self) -> dict[str, Any]:
        """Return all but the samples, as records of evaluations hold it."""
        return {name: value for name, value in vars(self).items() if name != "samples"}


@dataclass(frozen=True)
class Evaluator:
    """A model on an engine, with all else that decides its responses and their verdicts."""

    beyond: ClassVar[str] = "eval.beyond_context=true"  # the option that allows responses beyond the context

    engine: Sampling  # of this rank, with the weights that are evaluated
    tokenizer: PreTrainedTokenizerBase
    verifier: Verifier
    chat: Chat = PLAIN
    context: int | None = None  # tokens of a prompt with its response, at most
    max_failures: float = Verify.max_failures  # the largest share of answers on which the verifier may fail

    @classmethod
    def of_config(
        cls, config: Config, engine: Sampling, tokenizer: Any, verifier: Verifier, chat: Chat, model: PreTrainedModel
    ) -> Evaluator:
        context = None if config.eval.beyond_context else context_of(model.config)
        return cls(engine, tokenizer, verifier, chat, context, config.verify.max_failures)

    def rendered(self, problem: Problem) -> list[int]:
        """Return the tokens of a problem's prompt."""
        return render_prompt(self.tokenizer, problem, self.chat)

    def answered(
        self,
        task: Task,
        problems: Sequence[Problem],
        *,
        seed: Sequence[object],
        n: int,
        temperature: float,
        max_new_tokens: int,
    ) -> list[tuple[list[Rollout], list[JudgedRollout]]]:
        """Return n responses to each problem, judged while others are sampled.

        They depend on the weights, the problem and the parts of the seed alone, not on the other problems.
        """
        with BackgroundJudge(partial(judge_rollouts, task, self.verifier, self.tokenizer, problems)) as judging:
            groups = self.engine.generate(
                list(map(self.rendered, problems)),
                n,
                seeds=[seeds.derive(*seed, problem.id) for problem in problems],
                temperature=temperature,
                max_new_tokens=max_new_tokens,
                on_group=judging.add,
            )
            judged = judging.results()
        return list(zip(groups, judged, strict=True))

    def sample(self, task: Task, problems: Sequence[Problem], *, n: int, **settings: Any) -> list[Record]:
        """Return the records of `answered`."""
        answered = self.answered(task, problems, n=n, **settings)
        return [record_of_problem(problem, *of_problem) for problem, of_problem in zip(problems, answered, strict=True)]

    def checked(self, sample: Work, problems: Sequence[Problem], **settings: Any) -> list[Record]:
        """Sample responses; raise TooManyFailures if too many of them could not be verified."""
        records: list[Record] = sample(problems, **settings)
        check_failures(chain.from_iterable(record["verdicts"] for record in records), self.max_failures)
        return records

    def evaluate(
        self,
        task: Task,
        seed: int,
        *,
        split: str,
        problems: int | None,
        samples: int,
        temperature: float,
        max_new_tokens: int,
        kept: BaseAnswers | None = None,
    ) -> Evaluation | None:
        """Evaluate the first `problems` problems of a split (None: all); a collective.

        Every rank samples and judges its share, and rank 0 computes the scores; the others return None. Models that
        are evaluated with the same seed are compared sample by sample. `kept`: the answers are taken from there, or
        sampled and left there.
        """
        available = task.problems(split)
        if not 1 <= (problems or len(available)) <= len(available):
            raise UserError(f"problems is {problems}, but {task.name} has {len(available)} in its {split} split")
        chosen = available[:problems]
        self.check_room(task.name, chosen, max_new_tokens)
        with ranks.on_all_ranks(partial(self.sample, task)) as sample:
            if sample is None:
                return None
            checked = partial(self.checked, sample)
            answers = checked if kept is None else partial(kept.answers, checked)
            model = EngineLM(partial(answers, seed=(seed,)), chosen)
            metrics = metrics_by_lm_eval(model, task, split, samples, temperature, max_new_tokens)
        records = [model.records[problem.id] for problem in chosen]
        counts = [count for problem in chosen if (count := solutions(task, problem)) is not None]
        right, right_distinct, verdicts = [], [], Counter[str]()
        for record in records:
            right.append([int(Verdict(verdict).reward) for verdict in record["verdicts"]])
            right_distinct.append(distinct_right(record["verdicts"], record["answers"]))
            verdicts.update(record["verdicts"])
        return Evaluation(
            problems=[problem.id for problem in chosen],
            right=right,
            right_distinct=right_distinct,
            solutions=counts or None,
            verdicts=dict(verdicts),
            metrics=metrics | token_metrics(records),
            samples=records,
        )

    def check_room(self, task: str, problems: Sequence[Problem], budget: int) -> None:
        """Raise UserError where a prompt with its response may exceed the context of the model."""
        if self.context is None or not problems:
            return
        lengths = [len(self.rendered(problem)) for problem in problems]
        room = self.context - max(lengths)
        if budget <= room:
            return
        number = sum(length + budget > self.context for length in lengths)
        shorter = f"up to {room} or " if room > 0 else ""
        raise UserError(
            f"max_new_tokens is {budget}, but with {number} of {len(lengths)} prompts of {task} that exceeds the "
            f"model's max_position_embeddings ({self.context}; the longest prompt has {max(lengths)} tokens); allowed: "
            f"{shorter}{self.beyond}, where answers may get worse"
        )


def evaluate_cell(
    evaluator: Evaluator,
    folder: Path,
    config: Config,
    evaluated: Mapping[str, Task],
    *,
    seed: int,
    trained_on: str,
    step: int,
    on_progress: Callable[[], None] = no_progress,
) -> dict[str, float]:
    """Evaluate a cell after a step on tasks by the names of their evaluations; a collective.

    Its folder gets the evaluations and the answers. Only rank 0 returns the metrics. Before training, at step 0, cells
    share their answers; `on_progress` is called while another one samples them.
    """
    logged: dict[str, float] = {}
    for name, task in evaluated.items():
        settings = config.eval.of(name)
        kept = None
        if step == 0:
            kept = BaseAnswers.of_cell(folder, config, task, evaluator.rendered, evaluator.chat, on_progress)
        result = evaluator.evaluate(
            task,
            seeds.derive("evaluate", seed, step),
            split=settings.split,
            problems=settings.problems,
            samples=settings.samples,
            temperature=settings.temperature,
            max_new_tokens=config.rollout.max_new_tokens,
            kept=kept,
        )
        if result is not None:
            record = {"task": name, "step": step, **result.counts(), "flags": task.flags(trained_on)}
            evaluations.write_evaluation(folder, record)
            answers = evaluations.answers_path(evaluations.evaluation_path(folder, name, step))
            files.write_lines(answers, result.samples)
            logged |= evaluations.named_metrics(record)
    return logged


def record_of_problem(problem: Problem, group: Sequence[Rollout], results: Sequence[JudgedRollout]) -> Record:
    shots = {"shots": list(map(list, problem.shots))} if problem.shots else {}
    return {
        "problem": problem.id,
        "prompt": problem.prompt,
        **shots,
        "responses": [result.text for result in results],
        "lengths": [len(rollout.response) for rollout in group],
        "finished": [rollout.finished for rollout in group],
        "distinct": len({tuple(rollout.response) for rollout in group}),
        **record_of_judging([result.judged for result in results]),
    }


def record_of_judging(responses: Sequence[Judged]) -> Record:
    """Return the part of a record that depends on the rules of judging."""
    return {
        "verdicts": [response.verdict for response in responses],
        "answers": [response.text for response in responses],
        "goes_on": [response.goes_on for response in responses],
    }


# lm-eval


class EngineLM(LM):
    """An lm-eval model over an engine: the repeats of a request become the samples of one prompt."""

    def __init__(self, sample: Callable[..., list[Record]], problems: Sequence[Problem]) -> None:
        super().__init__()
        self.sample = sample
        self.problems = {problem.id: problem for problem in problems}
        self.records: dict[str, Record] = {}  # by problem

    def generate_until(self, requests: list[Instance]) -> list[str]:
        assert all(request.args[0] == request.doc["prompt"] for request in requests), "a prompt is the problem's"
        repeats = Counter(request.doc["id"] for request in requests)
        settings = requests[0].args[1]
        assert len(set(repeats.values())) == 1, "every problem has the same number of samples"
        assert not settings["until"], "the engine stops at the end of a sequence and nowhere else"
        records = self.sample(
            [self.problems[name] for name in repeats],
            n=repeats[requests[0].doc["id"]],
            temperature=settings["temperature"],
            max_new_tokens=settings["max_gen_toks"],
        )
        self.records = {record["problem"]: record for record in records}
        # lm-eval repeats a request for each sample. The repeats take the responses to their problem one by one.
        texts = {name: iter(record["responses"]) for name, record in self.records.items()}
        return [next(texts[request.doc["id"]]) for request in requests]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise NotImplementedError("an engine samples; it scores no given text")

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError("an engine samples; it scores no given text")


def metrics_by_lm_eval(
    model: EngineLM, task: Task, split: str, samples: int, temperature: float, max_new_tokens: int
) -> dict[str, float]:
    """Sample responses to the model's problems through lm-eval, and return the metrics that follow from their texts."""

    # Not a partial: lm-eval deep-copies its arguments, which a verifier with its processes does not allow.
    def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, Any]:
        problem, record = model.problems[doc["id"]], model.records[doc["id"]]
        kept = (record["responses"], record["verdicts"], record["answers"], record["goes_on"])
        return scores(*kept, solutions(task, problem))

    overrides = {
        "custom_dataset": lambda **_: {split: dataset_of([*model.problems.values()])},
        "process_results": process_results,
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
        result = lm_evaluate(model, {**loaded, "groups": {}}, bootstrap_iters=0, log_samples=False)
    assert result is not None
    named, end = result["results"][task.name].items(), f",{FILTER}"
    return {key.removesuffix(end): value for key, value in named if key.endswith(end) and "_stderr" not in key}


def token_metrics(records: Sequence[Record]) -> dict[str, float]:
    """Return the metrics of tokens, which lm-eval cannot compute from the text."""
    lengths = [length for record in records for length in record["lengths"]]
    finished = [is_finished for record in records for is_finished in record["finished"]]
    distinct = [record["distinct"] / len(record["lengths"]) for record in records]
    return {
        "truncated": finished.count(False) / len(finished),
        "length": sum(lengths) / len(lengths),
        "distinct": sum(distinct) / len(records),
    }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence lm-eval's bar over the problems, and its hint about metadata for datasets made by a function."""
    bar = lm_eval.api.task.tqdm
    lm_eval.api.task.tqdm = partial(bar, disable=True)
    try:
        with without_message(lm_eval.api.task.eval_logger, "Custom kwargs can be passed to `--metadata`"):
            yield
    finally:
        lm_eval.api.task.tqdm = bar
