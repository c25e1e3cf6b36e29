r"""Verdicts on responses: a comparison of the last \boxed{} with the gold answer.

Integers, and answers that are spelled alike, are judged in this process. All others go to worker processes
(harness/verify/judge.py): if one hangs, crashes or runs out of memory, it costs one verdict. docs/verification.md
defines which answers count as equal. A task can have judges of its own for such processes (`judged_by`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import select
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from harness.base.errors import CellFailure
from harness.base.processes import python_command
from harness.base.task import Verdict
from harness.config import Verify as Settings
from harness.verify.text import extract, quick_verdict, tidy

log = logging.getLogger(__name__)
FAILURES = (Verdict.TIMEOUT, Verdict.ERROR)  # of the verifier, not of the model
JUDGED = (Verdict.RIGHT, Verdict.WRONG)
FEWEST_FAILURES = 5  # fewer say nothing about their share
MEMORY = 2 << 30  # bytes of address space of a worker
LATEST_START_S = 120.0  # the import of sympy takes about a second, but longer on a busy machine or a network disk
PATIENCE_S = 30.0  # after the time limit, which a worker enforces itself; then the whole worker is replaced
MATHEMATICS = "harness.verify.judge"
LONGEST = 1000  # characters of an answer; the answers of MATH have at most 53


class Worker:
    """A process of a judge, started at its first question."""

    def __init__(self, limit_s: float, judge: str) -> None:
        self.limit_s = limit_s
        self.judge = judge  # a module whose function `main` serves questions, as that of harness/verify/judge.py
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, gold: str, answer: str) -> tuple[Verdict, str]:
        # Output before the question can only be a late message, such as the death of an idle child. A new worker
        # makes sure that it is not read as the reply.
        if self.process is None or self.readable(0.0):
            self.close()
            self.start()
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps([gold, answer]).encode() + b"\n")
            verdict, reason = self.reply(self.limit_s + PATIENCE_S)
        except (BrokenPipeError, EOFError):
            self.close()
            return Verdict.ERROR, "the worker died"
        except TimeoutError:
            self.close()
            return Verdict.TIMEOUT, "the worker did not answer in time"
        return Verdict(verdict), reason

    def start(self) -> None:
        self.process = subprocess.Popen(
            python_command(f"from {self.judge} import main", f"main({self.limit_s!r}, {MEMORY})"),
            bufsize=0,  # poll sees the pipe, not a buffer of Python: an unexpected reply must stay in the pipe
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": "0"},  # sets have the same order in each worker
            start_new_session=True,  # Ctrl-C in the terminal interrupts the caller only; close() ends the group
        )
        try:
            self.reply(LATEST_START_S)  # `ready`, the first line of `serve`
        except (EOFError, TimeoutError) as error:
            self.close()
            raise RuntimeError("a process for verifying answers does not start; its errors are above") from error

    def readable(self, within_s: float) -> bool:
        assert self.process is not None
        assert self.process.stdout is not None
        poll = select.poll()  # select.select rejects file descriptors above 1023
        poll.register(self.process.stdout, select.POLLIN)
        return bool(poll.poll(1000 * within_s))

    def reply(self, within_s: float) -> tuple[str, str]:
        assert self.process is not None
        assert self.process.stdout is not None
        if not self.readable(within_s):
            raise TimeoutError
        line = self.process.stdout.readline()
        if not line:
            raise EOFError
        verdict, reason = json.loads(line)
        return verdict, reason

    def close(self) -> None:
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        self.process = None


class VerifierPool:
    """A pool of workers; a context manager that ends them. A worker starts when the first answer needs it.

    Threads may share a pool. A forked process must make its own, since it has neither the threads nor the workers.
    """

    def __init__(self, workers: int = Settings.workers, limit_s: float = Settings.limit_s) -> None:
        self.size, self.limit_s = workers, limit_s
        self.threads = ThreadPoolExecutor(workers, "verify")
        self.workers: list[Worker] = []
        self.idle_by_judge: dict[str, queue.LifoQueue[Worker]] = {}
        self.lock = threading.Lock()
        self.failed: dict[str, tuple[str, str]] = {}  # the first question of each kind of failure
        self.idle(MATHEMATICS)

    @classmethod
    def of(cls, settings: Settings) -> VerifierPool:
        return cls(settings.workers, settings.limit_s)

    def idle(self, judge: str) -> queue.LifoQueue[Worker]:
        with self.lock:
            if judge not in self.idle_by_judge:
                # Last in, first out: a few answers keep using the workers that have started already.
                waiting: queue.LifoQueue[Worker] = queue.LifoQueue()
                for _ in range(self.size):
                    self.workers.append(Worker(self.limit_s, judge))
                    waiting.put(self.workers[-1])
                self.idle_by_judge[judge] = waiting
            return self.idle_by_judge[judge]

    def judged_by(self, judge: str, questions: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Return the verdicts of another judge, a module's name, on pairs of gold answer and answer."""
        return [verdict for verdict, _ in self.replies(judge, questions)]

    def scored_by(self, judge: str, questions: Sequence[tuple[str, str]]) -> list[tuple[Verdict, float]]:
        """Return the verdicts of another judge with its scores; 0 where an answer has none."""
        replies = self.replies(judge, questions)
        return [(verdict, float(note) if verdict in JUDGED else 0.0) for verdict, note in replies]

    def replies(self, judge: str, questions: Sequence[tuple[str, str]]) -> list[tuple[Verdict, str]]:
        """Return a judge's verdicts and what it notes on each; equal pairs are judged once."""
        distinct = dict.fromkeys(questions)
        replies = self.threads.map(partial(self.judge, judge=judge), distinct)
        by_question = dict(zip(distinct, replies, strict=True))
        return [by_question[question] for question in questions]

    def verdicts(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Judge pairs of gold answer and response; equal pairs are judged once."""
        answered = [(gold, extract(response)) for gold, response in pairs]
        by_key: dict[tuple[str, str | None], Verdict] = {}
        slow: dict[tuple[str, str | None], tuple[str, str]] = {}  # of which a worker has to judge the tidy form
        for gold, answer in dict.fromkeys(answered):
            if answer is None or len(answer) > LONGEST:
                by_key[gold, answer] = Verdict.UNPARSED
                continue
            question = tidy(gold), tidy(answer)
            verdict = quick_verdict(*question)
            if verdict is None:
                slow[gold, answer] = question
            else:
                by_key[gold, answer] = verdict
        judged = self.judged_by(MATHEMATICS, list(slow.values()))
        by_key |= zip(slow, judged, strict=True)
        return [by_key[key] for key in answered]

    def judge(self, pair: tuple[str, str], judge: str) -> tuple[Verdict, str]:
        idle = self.idle(judge)
        worker = idle.get()
        try:
            verdict, note = worker.ask(*pair)
        finally:
            idle.put(worker)
        # The others of a kind are only counted (check_failures), since a judge may fail on all responses.
        if verdict in FAILURES and self.failed.setdefault(note.partition(":")[0], pair) is pair:
            log.warning("%s: %s, on %.200r against %.200r (the first of its kind)", verdict, note, pair[1], pair[0])
        return verdict, note

    def close(self) -> None:
        self.threads.shutdown(cancel_futures=True)
        for worker in self.workers:
            worker.close()

    def __enter__(self) -> VerifierPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# The share of failures


class TooManyFailures(CellFailure):
    """The verifier fails so often that scores would say more about it than about the model."""


def check_failures(verdicts: Iterable[str], threshold: float) -> None:
    """Raise TooManyFailures if timeouts and errors are more than this share of the verdicts."""
    counts = Counter(verdicts)
    total = counts.total()
    failed = sum(counts[verdict] for verdict in FAILURES)
    if failed >= FEWEST_FAILURES and failed > threshold * total:
        raise TooManyFailures(
            f"{failed} of {total} answers ({failed / total:.1%}) could not be verified ({counts[Verdict.TIMEOUT]} "
            f"timeouts, {counts[Verdict.ERROR]} errors); allowed are {threshold:.1%}"
        )
