"""The problems that a cell trains on: those whose prompts are short enough and which the model solves sometimes.

How often the model before training solves a problem is measured once for everyone: the counts are kept in the cache by
the model, the problems as the model sees them, and the sampling. The bounds choose among them afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import Timeout

from harness.base import files, identities, seeds
from harness.base.errors import Damaged, UserError
from harness.base.locks import lock
from harness.base.task import Problem, Task, Verdict, Verifier
from harness.config import Filter, RolloutConfig
from harness.dist.together import Work
from harness.rollout.rendering import PLAIN, Chat, render_prompt
from harness.verify.background import BackgroundJudge, judge_rollouts
from harness.verify.pool import check_failures

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from harness.rollout.protocol import Sampling

VERSION = 1  # of how pass rates are measured: another one measures again

# Responses that each rank is asked for at a time: so many times what its engine samples at once that few of its places
# are empty while the last ones end. A process that is killed loses no more.
RESPONSES = 4096

Say = Callable[[str], None]


@dataclass(frozen=True)
class Pool:
    """The problems that a cell trains on, and how they came about."""

    problems: list[Problem]
    record: dict[str, float]  # logged before the first step


@dataclass(frozen=True)
class Asker:
    """The model before training, and how it is asked."""

    model: dict[str, Any]  # its identity
    task: Task
    engine: Sampling  # of this rank, with the model's weights
    tokenizer: PreTrainedTokenizerBase
    verifier: Verifier
    rollout: RolloutConfig
    max_failures: float  # share of answers that the verifier may fail on
    chat: Chat = PLAIN

    def prompt(self, problem: Problem) -> list[int]:
        return render_prompt(self.tokenizer, problem.prompt, self.chat)

    def identity(self, prompts: Mapping[Problem, list[int]], n: int) -> dict[str, Any]:
        """Returns all that decides how often a problem is solved."""
        seen = [[problem.id, prompt, problem.answer] for problem, prompt in prompts.items()]
        return {
            "version": VERSION,
            "model": self.model,
            "task": identities.of(self.task),
            "problems": identities.digest(seen),
            "engine": self.rollout.engine,  # which draws the responses
            "sampling": [n, self.rollout.temperature, self.rollout.max_new_tokens],
        }

    def verdicts(self, problems: Sequence[Problem], *, n: int, key: str) -> list[list[Verdict]]:
        """Judges n responses to each problem while others are sampled; the same whatever else is asked beside it."""
        with BackgroundJudge(partial(judge_rollouts, self.task, self.verifier, self.tokenizer, problems)) as judging:
            self.engine.generate(
                [self.prompt(problem) for problem in problems],
                n,
                seeds=[seeds.derive("filter", key, problem.id) for problem in problems],
                temperature=self.rollout.temperature,
                max_new_tokens=self.rollout.max_new_tokens,
                on_group=judging.add,
            )
            found = [each.judged.verdict for each in judging.results()]
        return [found[start : start + n] for start in range(0, len(found), n)]


def pool(asker: Asker, ask: Work, given: Filter | None, cache: Path, at_once: int, say: Say) -> Pool:
    """Returns the training problems that are not too long and, where a filter is given, neither too hard nor too easy.

    Problems whose counts are not in the cache are asked `at_once` at a time, by the asker's `verdicts` of all ranks.
    """
    problems, longest = asker.task.problems("train"), asker.rollout.max_prompt_tokens
    record = {"given": len(problems)}
    if given is not None or longest is not None:
        prompts = {problem: asker.prompt(problem) for problem in problems}
    if longest is not None:
        problems = [problem for problem in problems if len(prompts[problem]) <= longest]
        record["too_long"] = len(prompts) - len(problems)
    if given is not None:
        prompts = {problem: prompts[problem] for problem in problems}
        identity = asker.identity(prompts, given.n)
        key = identities.key(identity)

        def right(batch: Sequence[Problem]) -> list[int]:
            found: list[list[Verdict]] = ask(batch, n=given.n, key=key)
            check_failures((verdict for row in found for verdict in row), asker.max_failures)
            return [row.count(Verdict.RIGHT) for row in found]

        path = cache / "filters" / f"{asker.task.name}-{key}.json"
        found = measured(path, identity, problems, right, at_once, say)
        fewest, most = given.bounds()
        record["too_hard"] = sum(found[problem.id] < fewest for problem in problems)
        record["too_easy"] = sum(found[problem.id] > most for problem in problems)
        problems = [problem for problem in problems if fewest <= found[problem.id] <= most]
    record["kept"] = len(problems)
    summary = ", ".join(f"{number:,} {what.replace('_', ' ')}" for what, number in record.items())
    if not problems:
        raise UserError(
            f"no problem of {asker.task.name} is left to train on ({summary}); allowed: a wider train.filter or a "
            "larger rollout.max_prompt_tokens"
        )
    say(f"training problems: {summary}")
    return Pool(problems, {f"problems/{what}": float(number) for what, number in record.items()})


def measured(
    path: Path,
    identity: dict[str, Any],
    problems: Sequence[Problem],
    right: Callable[[Sequence[Problem]], list[int]],
    at_once: int,
    say: Say,
) -> dict[str, int]:
    """Counts how many responses to each problem, by its id, are right.

    The counts are kept batch by batch, so that a killed process costs one batch. Whoever comes first counts; others
    wait.
    """
    assert len({problem.id for problem in problems}) == len(problems)
    found = counts(path)
    if len(found) == len(problems):
        return found
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the cache {path.parent} cannot be written ({error.strerror}); set ENTROBENCH_CACHE"
        ) from error
    with exclusive(path.with_suffix(".lock"), say):
        found = counts(path)
        todo = [problem for problem in problems if problem.id not in found]
        started = time.monotonic()
        for start in range(0, len(todo), at_once):
            batch = todo[start : start + at_once]
            found |= dict(zip((problem.id for problem in batch), right(batch), strict=True))
            files.write_json(path, {"identity": identity, "right": found})
            done = start + len(batch)
            left = (time.monotonic() - started) / done * (len(todo) - done)
            say(f"difficulty filter: {len(found):,} of {len(problems):,} problems asked, {ceil(left / 60)} min left")
    return found


def counts(path: Path) -> dict[str, int]:
    """Returns what was counted before; nothing where that cannot be read, so that it is counted again."""
    try:
        return dict(files.read_json(path)["right"])
    except (FileNotFoundError, NotADirectoryError, Damaged):
        return {}


@contextmanager
def exclusive(path: Path, say: Say) -> Iterator[None]:
    held = lock(path)
    try:
        held.acquire(timeout=0)
    except Timeout:
        say("waiting for another process, which measures the difficulty of the same problems")
        held.acquire()
    try:
        yield
    finally:
        held.release()
