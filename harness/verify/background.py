"""Reads and judges responses while others are still being sampled."""

from __future__ import annotations

import bisect
import itertools
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from harness.base.task import Judged, Problem, Task, Verifier, judge_responses

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from harness.batch import Rollout

T = TypeVar("T")

REPLACEMENT = "\ufffd"


class BackgroundJudge(Generic[T]):
    """Judges groups in a thread of its own as they come, in whatever order; use it as a context manager.

    Groups that have come in the meantime are judged together, which keeps the workers busy and judges equal answers
    once.
    """

    def __init__(self, judge: Callable[[dict[int, list[Rollout]]], list[T]]) -> None:
        self.judge = judge  # the groups by their numbers, to what is found of each of their responses
        self.seconds = 0.0  # of judging
        self.thread = ThreadPoolExecutor(1, "judging")
        self.rounds: list[Future[None]] = []
        self.waiting: queue.SimpleQueue[tuple[int, list[Rollout]]] = queue.SimpleQueue()
        self.found: dict[int, list[T]] = {}

    def add(self, number: int, group: list[Rollout]) -> None:
        self.waiting.put((number, group))
        self.rounds.append(self.thread.submit(self.judge_waiting))

    def judge_waiting(self) -> None:
        start = time.perf_counter()
        groups = dict(self.waiting.get() for _ in range(self.waiting.qsize()))
        if groups:  # unless the last round took them all
            each = iter(self.judge(groups))
            self.found |= {number: list(itertools.islice(each, len(group))) for number, group in groups.items()}
        self.seconds += time.perf_counter() - start

    def results(self) -> list[T]:
        """Waits for what is found of all responses, and returns it in the order of the groups' numbers.

        Raises what went wrong in the judging.
        """
        for each in self.rounds:
            each.result()
        return [each for _, found in sorted(self.found.items()) for each in found]

    def __enter__(self) -> BackgroundJudge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.thread.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class JudgedRollout:
    """A response with its text."""

    text: str  # without the end of the sequence
    judged: Judged
    answer_tokens: int  # up to the end of the answer; all where there is none


def judge_rollouts(
    task: Task,
    verifier: Verifier,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    groups: Mapping[int, list[Rollout]],
) -> list[JudgedRollout]:
    """Return each response to some of the problems, by their numbers, with its text and its judgment.

    The text holds every token but the end of the sequence. Other special tokens stay: a policy could fill its responses
    with tokens that leave no text, such as padding. Equal responses to a problem are decoded and judged once: of easy
    problems, most are equal.
    """
    given = [(number, tuple(rollout.response)) for number, group in groups.items() for rollout in group]
    once = list(dict.fromkeys(given))
    whole = tokenizer.batch_decode([response for _, response in once], skip_special_tokens=False)
    texts = [text.removesuffix(tokenizer.eos_token) for text in whole]
    asked = [(problems[number], text) for (number, _), text in zip(once, texts, strict=True)]
    judged = judge_responses(task, verifier, asked)
    found = {}
    for key, text, with_end, each in zip(once, texts, whole, judged, strict=True):
        response = key[1]
        tokens = len(response)
        if each.answer is not None:
            body = response if text == with_end else response[:-1]
            tokens = len(body) - tail_tokens(tokenizer, body, text[each.answer.end :])
        found[key] = JudgedRollout(text, each, tokens)
    return [found[key] for key in given]


def tail_tokens(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], tail: str) -> int:
    """Return the number of tokens that hold nothing but the tail of a text.

    A token with a part of the answer in it belongs to the answer. Tails are short, so the search begins at the end: it
    decodes about as many tokens as there are in the tail, where a list of all tokens' texts would decode each alone.
    """

    def ending(number: int) -> str:
        [text] = tokenizer.batch_decode([tokens[len(tokens) - number :]], skip_special_tokens=False)
        return text

    def width(number: int) -> int:
        # Of a letter that was cut in two, each byte is decoded as a sign of its own: it would look longer than whole.
        return len(ending(number).lstrip(REPLACEMENT))

    if not tail:
        return 0
    most = 1
    while most < len(tokens) and width(most) <= len(tail):
        most *= 2
    number = bisect.bisect_right(range(1, min(most, len(tokens)) + 1), len(tail), key=width)
    while not tail.endswith(ending(number)):  # the last bytes of a letter that belongs to the answer
        number -= 1
    return number
