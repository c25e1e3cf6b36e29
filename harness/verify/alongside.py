"""Judges responses while others are still being sampled."""

from __future__ import annotations

import itertools
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING

from harness.base.task import Problem, Task, Verdict, Verifier

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from harness.batch import Rollout


class Alongside:
    """Judges groups in a thread of its own as they come, in whatever order; use it as a context manager.

    Groups that have come in the meantime are judged together, which keeps the workers busy and judges equal answers
    once.
    """

    def __init__(self, judge: Callable[[dict[int, list[Rollout]]], list[Verdict]]) -> None:
        self.judge = judge  # the groups by their numbers, to the verdicts on all their responses
        self.seconds = 0.0  # of judging
        self.thread = ThreadPoolExecutor(1, "judging")
        self.rounds: list[Future[None]] = []
        self.waiting: queue.SimpleQueue[tuple[int, list[Rollout]]] = queue.SimpleQueue()
        self.found: dict[int, list[Verdict]] = {}

    def add(self, number: int, group: list[Rollout]) -> None:
        self.waiting.put((number, group))
        self.rounds.append(self.thread.submit(self.judge_waiting))

    def judge_waiting(self) -> None:
        start = time.perf_counter()
        groups = dict(self.waiting.get() for _ in range(self.waiting.qsize()))
        if groups:  # unless the last round took them all
            verdicts = iter(self.judge(groups))
            self.found |= {number: list(itertools.islice(verdicts, len(group))) for number, group in groups.items()}
        self.seconds += time.perf_counter() - start

    def verdicts(self) -> list[Verdict]:
        """Waits for the verdicts on all responses and returns them in the order of the groups' numbers.

        Raises what went wrong in the judging.
        """
        for each in self.rounds:
            each.result()
        return [verdict for _, verdicts in sorted(self.found.items()) for verdict in verdicts]

    def __enter__(self) -> Alongside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.thread.shutdown(cancel_futures=True)


def judge(
    task: Task,
    verifier: Verifier,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    groups: Mapping[int, list[Rollout]],
) -> list[Verdict]:
    """Returns the verdicts on the responses to some of the problems, by their numbers."""
    texts = tokenizer.batch_decode([r.response for g in groups.values() for r in g], skip_special_tokens=True)
    asked = [problems[number] for number, group in groups.items() for _ in group]
    return task.verdicts(list(zip(asked, texts, strict=True)), verifier)
