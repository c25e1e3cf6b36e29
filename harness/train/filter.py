"""The difficulty filter: problems with short enough prompts that the model before training solves sometimes.

The number of right responses to each problem is measured once for all cells: counts are cached by the model, the
problems as the model sees them, the sampling, and the code of the task. The bounds are applied to cached counts.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any

from harness import ranks
from harness.base import files, identities, locks
from harness.base.errors import Damaged, UserError
from harness.base.task import Problem, Task, Verdict
from harness.cells.source_digest import source_digest
from harness.config import Config
from harness.methods.batch import Rollout
from harness.ranks import Work
from harness.rollout.protocol import no_progress
from harness.train.evaluate import Evaluator
from harness.verify.pool import check_failures

VERSION = 1  # of the measurement of counts: raising it measures all again

# Responses requested from each rank at a time: several engine batches, so that the engine stays full. A killed process
# loses no more than these.
RESPONSES = 4096

Say = Callable[[str], None]


@dataclass(frozen=True)
class TrainingPool:
    """The problems that a cell trains on, and the numbers of their selection."""

    problems: list[Problem]
    record: dict[str, float]  # logged before the first step
    base_right: dict[str, float] | None = None  # by a problem's id, the share of right responses; None: no filter
    easy: Sequence[Problem] = ()  # left out as too easy


@dataclass(frozen=True)
class Asker:
    """The model before training, with the settings of its sampling."""

    model: dict[str, Any]  # its identity
    task: Task
    evaluator: Evaluator  # on an engine with the model's weights
    config: Config
    on_progress: Callable[[], None] = no_progress  # called while another process measures the same counts

    def identity(self, prompts: Mapping[Problem, list[int]], n: int) -> dict[str, Any]:
        """Return everything that determines the responses."""
        as_seen = [[problem.id, prompt, problem.answer] for problem, prompt in prompts.items()]
        rollout = self.config.rollout
        return {
            "version": VERSION,
            "model": self.model,
            "task": identities.component_identity(self.task),
            "problems": identities.hash_of(as_seen),
            "engine": rollout.engine,  # engines draw different responses by the same seed
            "sampling": [n, rollout.temperature, rollout.max_new_tokens],
        }

    def verdicts(self, problems: Sequence[Problem], *, n: int, key: str) -> list[list[Verdict]]:
        """Return the verdicts on n responses to each problem."""
        records = self.evaluator.sample(
            self.task,
            problems,
            seed=("filter", key),
            n=n,
            temperature=self.config.rollout.temperature,
            max_new_tokens=self.config.rollout.max_new_tokens,
        )
        return [record["verdicts"] for record in records]

    def responses_if_right(self, problems: Sequence[Problem], *, seed: int) -> list[Rollout | None]:
        """Return a response to each problem, or None where it is not right."""
        answered = self.evaluator.answered(
            self.task,
            problems,
            seed=("base responses", seed),
            n=1,
            temperature=self.config.rollout.temperature,
            max_new_tokens=self.config.rollout.max_new_tokens,
        )
        check_failures([result.judged.verdict for _, (result,) in answered], self.evaluator.max_failures)
        return [rollout if result.judged.verdict == Verdict.RIGHT else None for (rollout,), (result,) in answered]


def training_pool(asker: Asker, ask: Work, say: Say) -> TrainingPool:
    """Return the training problems that are not too long and, with a filter, neither too hard nor too easy.

    `ask`: the asker's `verdicts` on all ranks.
    """
    given, rollout = asker.config.train.filter, asker.config.rollout
    problems, longest = asker.task.problems("train"), rollout.max_prompt_tokens
    record, easy, base_right = {"given": len(problems)}, list[Problem](), None
    if given is not None or longest is not None:  # otherwise no prompt needs to be rendered
        prompts = {problem: asker.evaluator.rendered(problem) for problem in problems}
    if longest is not None:
        problems = [problem for problem in problems if len(prompts[problem]) <= longest]
        record["too_long"] = len(prompts) - len(problems)
    asker.evaluator.check_room(asker.task.name, problems, rollout.max_new_tokens)
    if given is not None:
        counts = measured_counts(asker, {problem: prompts[problem] for problem in problems}, given.n, ask, say)
        fewest, most = given.bounds()
        record["too_hard"] = sum(counts[problem.id] < fewest for problem in problems)
        easy = [problem for problem in problems if counts[problem.id] > most]
        record["too_easy"] = len(easy)
        problems = [problem for problem in problems if fewest <= counts[problem.id] <= most]
        base_right = {problem.id: counts[problem.id] / given.n for problem in problems}
    record["kept"] = len(problems)
    summary = ", ".join(f"{number:,} {what.replace('_', ' ')}" for what, number in record.items())
    if not problems:
        raise UserError(
            f"no problem of {asker.task.name} is left to train on ({summary}); allowed: a wider train.filter or a "
            "larger rollout.max_prompt_tokens"
        )
    say(f"training problems: {summary}")
    logged = {f"problems/{what}": float(number) for what, number in record.items()}
    return TrainingPool(problems, logged, base_right, easy)


def measured_counts(asker: Asker, prompts: Mapping[Problem, list[int]], n: int, ask: Work, say: Say) -> dict[str, int]:
    """Return the number of right responses among n to each problem, by its id: the cached counts, or new ones.

    They are written batch by batch, so that a killed process loses one batch. The first process measures; others wait.
    """
    assert len({problem.id for problem in prompts}) == len(prompts)
    identity, settings = asker.identity(prompts, n), asker.config
    # The seeds of responses, which `key` decides, stay the same when the code that judges them is corrected.
    key = identities.key(identity)
    computed = {"dtype": settings.train.dtype, "limit_s": settings.verify.limit_s}
    judged = {**identity, "source": source_digest(type(asker.task)), **computed}
    path = files.default_cache() / "filters" / f"{asker.task.name}-{identities.key(judged)}.json"
    counts = cached_counts(path)
    if len(counts) == len(prompts):  # all of them: the name of the file has the hash of the problems
        return counts
    files.make_cache_folder(path.parent)
    say_once = functools.cache(say)

    def waiting() -> None:
        say_once("waiting for another process, which measures the difficulty of the same problems")
        asker.on_progress()

    with locks.held(path.with_suffix(".lock"), waiting):
        counts = cached_counts(path)  # again: another process may have measured them in the meantime
        todo = [problem for problem in prompts if problem.id not in counts]
        at_once = ranks.count() * max(RESPONSES // n, 1)
        started = time.monotonic()
        for start in range(0, len(todo), at_once):
            batch = todo[start : start + at_once]
            rows: list[list[Verdict]] = ask(batch, n=n, key=key)
            check_failures(chain.from_iterable(rows), asker.evaluator.max_failures)
            for problem, row in zip(batch, rows, strict=True):
                counts[problem.id] = row.count(Verdict.RIGHT)
            files.write_json(path, {"identity": judged, "right": counts})
            done = start + len(batch)
            left = (time.monotonic() - started) / done * (len(todo) - done)
            say(f"difficulty filter: {len(counts):,} of {len(prompts):,} problems asked, {ceil(left / 60)} min left")
    return counts


def cached_counts(path: Path) -> dict[str, int]:
    """Return the counts in a file; none if it cannot be read, so that they are measured again."""
    try:
        return dict(files.read_json(path)["right"])
    except (FileNotFoundError, NotADirectoryError, Damaged):
        return {}
