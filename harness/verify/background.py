"""Judging of responses in a thread, while others are still being sampled."""

from __future__ import annotations

import bisect
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from harness.base.task import Judged, Problem, Task, Verifier, judge_responses
from harness.methods.distinct import Distinct

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from harness.methods.batch import Rollout

T = TypeVar("T")

REPLACEMENT = "\ufffd"  # a decoder writes it for each byte of an incomplete character


class BackgroundJudge(Generic[T]):
    """A thread that judges groups of responses in order of arrival; a context manager.

    Groups that arrive while others are judged are judged together, which keeps the verifier's workers busy and judges
    equal answers once.
    """

    def __init__(self, judge: Callable[[dict[int, list[Rollout]]], dict[int, list[T]]]) -> None:
        self.judge = judge  # returns a result for each response of each group
        self.seconds = 0.0  # of judging
        self.thread = ThreadPoolExecutor(1, "judging")
        self.rounds: list[Future[None]] = []
        self.waiting: queue.SimpleQueue[tuple[int, list[Rollout]]] = queue.SimpleQueue()
        self.judged: dict[int, list[T]] = {}

    def add(self, number: int, group: list[Rollout]) -> None:
        self.waiting.put((number, group))
        self.rounds.append(self.thread.submit(self.judge_waiting))

    def judge_waiting(self) -> None:
        start = time.perf_counter()
        groups = dict(self.waiting.get() for _ in range(self.waiting.qsize()))
        if groups:  # one round is submitted per group, so an earlier round may have taken this one's
            self.judged |= self.judge(groups)
        self.seconds += time.perf_counter() - start

    def results(self) -> list[list[T]]:
        """Wait for all groups, and return the results of each in the order of the groups' numbers.

        Raises the exception of the judging, if there was one.
        """
        for judging in self.rounds:
            judging.result()
        return [self.judged[number] for number in sorted(self.judged)]

    def __enter__(self) -> BackgroundJudge:
        return self

    def __exit__(self, *_: object) -> None:
        # If the sampling failed, groups that are not being judged yet are dropped.
        self.thread.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class JudgedRollout:
    """A response with its text, verdict and answer."""

    text: str  # without the end of the sequence
    judged: Judged
    answer_tokens: int  # up to the end of the answer; all tokens if it has no answer


def judge_rollouts(
    task: Task,
    verifier: Verifier,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    groups: Mapping[int, list[Rollout]],
) -> dict[int, list[JudgedRollout]]:
    """Judge the groups of responses to some of the problems, both by the numbers of the problems.

    Equal responses to a problem are decoded and judged once: for easy problems, most are equal.
    """
    by_group: dict[int, Distinct] = {}
    numbers: list[int] = []  # of the problems of all distinct responses
    responses: list[list[int]] = []
    ends: list[int | None] = []  # the end token of each, if it has one
    for number, group in groups.items():
        distinct = by_group[number] = Distinct.of([tuple(rollout.response) for rollout in group])
        numbers += [number] * len(distinct.first)
        for rollout in distinct.once(group):
            responses.append(rollout.response)
            ends.append(rollout.response[-1] if rollout.finished else None)
    # Special tokens other than the end token stay in the text: if they were skipped, a policy could fill its
    # responses with tokens that leave no text, such as padding.
    decoded = tokenizer.batch_decode(responses, skip_special_tokens=False)
    endings = {end: "" if end is None else tokenizer.decode([end]) for end in {*ends}}
    texts = [text.removesuffix(endings[end]) for text, end in zip(decoded, ends, strict=True)]
    pairs = [(problems[number], text) for number, text in zip(numbers, texts, strict=True)]
    judgments = judge_responses(task, verifier, pairs)
    once: list[JudgedRollout] = []
    for judged, response, with_end, text in zip(judgments, responses, decoded, texts, strict=True):
        answer_tokens = len(response)
        if judged.answer is not None:
            body = response if text == with_end else response[:-1]
            answer_tokens = len(body) - tail_tokens(tokenizer, body, text[judged.answer.end :])
        once.append(JudgedRollout(text, judged, answer_tokens))
    in_order = iter(once)
    results = {}
    for number, distinct in by_group.items():
        results[number] = distinct.spread([next(in_order) for _ in distinct.first])
    return results


def tail_tokens(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], tail: str) -> int:
    """Return the number of tokens that contain nothing but the tail of the text.

    A token that also contains a part of the answer belongs to the answer. Tails are short, so the search starts at the
    end: it decodes about as many tokens as the tail has.
    """

    def ending(number: int) -> str:
        [text] = tokenizer.batch_decode([tokens[len(tokens) - number :]], skip_special_tokens=False)
        return text

    def width(number: int) -> int:
        # If the first token starts within a character, each of its bytes is decoded as a replacement character. They
        # would make the ending look longer than its text.
        return len(ending(number).lstrip(REPLACEMENT))

    if not tail:
        return 0
    most = 1
    while most < len(tokens) and width(most) <= len(tail):
        most *= 2
    # An ending grows with its number of tokens, so the longest one within the tail is found by bisection.
    number = bisect.bisect_right(range(1, min(most, len(tokens)) + 1), len(tail), key=width)
    while not tail.endswith(ending(number)):  # the first tokens are bytes of a character that belongs to the answer
        number -= 1
    return number
