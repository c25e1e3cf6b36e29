r"""Verdicts on answers: what stands in the last \boxed{} of a response against the gold answer.

Integers, and answers that are written alike, are judged here and now. All others go to worker processes
(harness/verify/judge.py), each of which may hang, crash or run out of memory at the cost of one verdict.
docs/verification.md says what counts as equal.
"""
# ruff: noqa: RUF001  letters that look like others are what it reads

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import logging
import os
import queue
import re
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from harness.base.task import Verdict
from harness.config import Verify as Settings

if TYPE_CHECKING:
    from harness.batch import Rollout

log = logging.getLogger(__name__)

FAILURES = (Verdict.TIMEOUT, Verdict.ERROR)
FEWEST = 5  # failures; fewer say nothing about their share
MEMORY = 2 << 30  # bytes of address space of a worker
LATEST_START_S = 120.0
PATIENCE_S = 30.0  # beyond the limit, which a worker enforces by itself: after that, all of the worker is replaced
LONGEST = 1000  # characters of an answer; those of MATH have up to 53
DEEPEST = 10  # nested brackets; the parser of LaTeX takes seconds for twice as many


# Failures


class TooManyFailures(RuntimeError):
    """The verifier fails so often that scores would say more about it than about the model."""


def check_failures(verdicts: Iterable[str], threshold: float) -> None:
    """Raise where timeouts and errors are more than this share of the verdicts."""
    counts = Counter(verdicts)
    total, failed = counts.total(), sum(counts[verdict] for verdict in FAILURES)
    if failed >= FEWEST and failed > threshold * total:
        raise TooManyFailures(
            f"{failed} of {total} answers ({failed / total:.1%}) could not be verified ({counts[Verdict.TIMEOUT]} "
            f"timeouts, {counts[Verdict.ERROR]} errors); allowed are {threshold:.1%}"
        )


# What is in the box

BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])")
BOX_OR_BRACE = re.compile(rf"{BOX.pattern}\s{{0,9}}(\{{?)|\\.|[{{}}]", re.DOTALL)
BARE = re.compile(r"[^\s$]*")


def extract(response: str) -> str | None:
    r"""What stands in the last box, or in the outermost box around it; None where that is missing, empty or cut off.

    A box without braces, as in `\boxed 5`, holds all up to the next space.
    """
    first = BOX.search(response)
    opened: list[int | None] = []  # for each open brace: where the content of its box begins; None if it is no box's
    last, braced = 0, True
    start, end = -1, -1
    for match in BOX_OR_BRACE.finditer(response, first.start() if first else len(response)):
        token = match.group()
        if token == "{":
            opened.append(None)
        elif token == "}":
            begun = opened.pop() if opened else None
            if begun is not None:
                start, end = begun, match.start()
        elif match.group(1) is not None:
            last, braced = match.end(), bool(match.group(1))
            if braced:
                opened.append(last)
    if end < last and not braced:
        bare = BARE.search(response, last)
        assert bare is not None  # it matches anything
        start, end = bare.span()
    return response[start:end].strip() or None if end >= last else None


# One way to write it

PLAIN = str.maketrans(
    {
        **dict.fromkeys("−–﹣－", "-"),
        **dict.fromkeys("\t\n\r\f\u00a0\u2002\u2003\u2009\u200a\u202f\u3000", " "),
        **dict.fromkeys("\u200b\u2060\ufeff", ""),
        **dict.fromkeys("·⋅∙", r"\cdot "),
        **{"×": r"\times ", "÷": r"\div ", "±": r"\pm ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne "},
        **{"π": r"\pi ", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset "},
        **{
            "°": r"^\circ ",
            "²": "^{2}",
            "³": "^{3}",
            "½": r"\frac{1}{2}",
            "¼": r"\frac{1}{4}",
            "¾": r"\frac{3}{4}",
            "％": r"\%",
        },
        **{"，": ",", "。": ".", "（": "(", "）": ")", "：": ":", "；": ";", "＝": "=", "＋": "+", "’": "'"},
    }
)
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"√ *(?:\(([^()]*)\)|([0-9]+|[a-zA-Z]))", r"\\sqrt{\1\2}"),
        (BOX.pattern, ""),  # around a part of the answer, or twice around all of it
        (r"(?<!\\)(?:\\!\s*|\$|\\[()\[\]])|\\(?:display|text)style(?![a-zA-Z])", ""),
        (r"(?<!\\)(?:\\[,;: ]|~)|\\q?quad(?![a-zA-Z])", " "),
        (r"\{,\}", ","),
        (r"\\(?:text|math)(?:rm|bf|it|sf|tt|normal)(?![a-zA-Z])|\\mbox(?![a-zA-Z])", r"\\text"),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\frac *([0-9]) *([0-9])", r"\\frac{\1}{\2}"),
        (r"\\sqrt *([0-9]+)", r"\\sqrt{\1}"),
        (r"\\varnothing(?![a-zA-Z])", r"\\emptyset"),
        (r"\\\\\[[0-9.]+ *[a-z]{2}\]", r"\\\\"),  # space after a row
        (r"_\{([0-9]+)\}", r"_\1"),
        (r"\\degree(?![a-zA-Z])", r"^\\circ"),
        (r"\^ *(?:\{ *\\circ *\}|\\circ)(?![a-zA-Z])", r"^\\circ"),
        (r" +", " "),
    )
]
ARITHMETIC = re.compile(r"[-+*/()0-9]*")  # is tidy, and spelled in one way: most answers need no more than this look
MIXED = re.compile(r"([-+]?[0-9]+) ([0-9]+)/([0-9]+)")
SCIENTIFIC = re.compile(r"[-+]?(?:[0-9]*\.[0-9]+e[-+]?|[0-9]+e)[0-9]+")  # 2e-5 may be 2e minus 5
BASED = re.compile(r"([0-9A-Z]+)_\{?([0-9]+)\}?")
SCALE = re.compile(rf"(?<=[0-9]) *(?:(\\text\{{) *)?({'|'.join(SCALES)})(?![a-zA-Z])")
REPEATING = re.compile(r"(?<![0-9])([0-9]{0,30})\.([0-9]{0,30})\\(?:overline|bar)\{([0-9]{1,30})\}")
WRAPPED = re.compile(r"(?:\\text)? *\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")


def tidy(text: str) -> str:
    """The same answer without typography."""
    if ARITHMETIC.fullmatch(text):
        return text
    text = text.translate(PLAIN)
    for pattern, replacement in REWRITES:
        text = pattern.sub(replacement, text)
    text = text.strip().removeprefix("=").rstrip(".,;: ").strip()
    text = REPEATING.sub(fraction, SCALE.sub(power_of_ten, text))
    if SCIENTIFIC.fullmatch(text):
        return text.upper()
    mixed = MIXED.fullmatch(text)
    return rf"{mixed[1]}\frac{{{mixed[2]}}}{{{mixed[3]}}}" if mixed else text


def power_of_ten(match: re.Match[str]) -> str:
    return rf"\times 10^{{{SCALES[match[2]]}}}{match[1] or ''}"


def fraction(match: re.Match[str]) -> str:
    """0.1\\overline{6} -> 15/90."""
    whole, fixed, period = match.groups()
    numerator = int(whole + fixed + period) - int(whole + fixed or "0")
    return rf"\frac{{{numerator}}}{{{'9' * len(period)}{'0' * len(fixed)}}}"


def spelling(text: str) -> str:
    """Answers with the same spelling are equal; many that are equal have another one."""
    if ARITHMETIC.fullmatch(text):
        return text
    text = re.sub(r"\\text *\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"(?<![0-9]) | (?![0-9])", "", text)
    text = text if "\\" in text else text.lower()  # of commands, \Delta is not \delta
    choice = re.fullmatch(r"\(?([a-z])\)?", text)
    return choice[1] if choice else text


# Integers

LENGTHS = r"(?:[kcm]?m|in|ft|inch(?:es)?|foot|feet|yards?|miles?|(?:centi|kilo|milli)?met(?:er|re)s?|units?)"
UNITS = (
    rf"(?:(?:sq(?:uare|\.)?|cubic) )?{LENGTHS}(?: ?\^\{{?[23]\}}?)?|degrees?|dollars?|cents?|kg|grams?|lit(?:er|re)s?|"
    r"years?|months?|weeks?|days?|hours?|minutes?|seconds?|people|students?|points?|"
    r"ways|mph|[个人元米度天年种次条厘平方千]{1,4}"
)
INTEGER = re.compile(
    r"(?:\\?[$€£¥])? ?([-+]?) ?(?:\\?[$€£¥])? ?"
    r"([0-9]{1,3}(?:[, ][0-9]{3}){1,1300}|[0-9]{1,4000})(?:\.0*)?"  # int() takes up to 4,300 digits
    rf" ?(?:\^\\circ|(?:{UNITS})|\\text ?\{{ ?(?:{UNITS})\.? ?\}}(?:\^\{{?[23]\}}?)?)?"
)


def integer(text: str) -> int | None:
    """The integer that an answer is, whatever its zeros, separators, sign, and unit; None for any other answer."""
    text = tidy(text)
    while wrapped := WRAPPED.fullmatch(text):
        text = wrapped[1].strip(" .")
    match = INTEGER.fullmatch(text)
    return int(match[1] + match[2].replace(",", "").replace(" ", "")) if match else None


# Judging


def quickly(gold: str, answer: str) -> Verdict | None:
    """The verdict on tidy answers where that is plain to see."""
    wanted, given = integer(gold), integer(answer)
    if wanted is not None and given is not None:
        return Verdict.RIGHT if wanted == given else Verdict.WRONG
    if spelling(gold) == spelling(answer):
        return Verdict.RIGHT
    if BASED.fullmatch(gold) and BASED.fullmatch(answer):
        return Verdict.WRONG
    return None if legible(answer) else Verdict.UNPARSED


def legible(answer: str) -> bool:
    """Whether the parser of LaTeX may see it: no controls, no digits but 0-9, no abyss of brackets."""
    depth = deepest = 0
    for letter in answer:
        depth += (letter in "([{") - (letter in ")]}")
        deepest = max(deepest, depth)
        if not letter.isprintable() or (letter.isnumeric() and not letter.isascii()):
            return False
    return bool(answer) and deepest <= DEEPEST


class Worker:
    """A process of harness/verify/judge.py, started when it is first asked."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, gold: str, answer: str) -> tuple[Verdict, str]:
        if self.process is None or self.readable(0.0):  # what it has to say now answers nothing
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
        # A session of its own, so that an interrupt from the terminal is for the caller alone.
        root = str(Path(__file__).parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "harness.verify.judge", str(self.limit_s), str(MEMORY)],
            bufsize=0,  # a reply too many must stay where poll sees it
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
        try:
            self.reply(LATEST_START_S)
        except (EOFError, TimeoutError) as error:
            self.close()
            raise RuntimeError("a process for verifying answers does not start; its errors are above") from error

    def readable(self, within_s: float) -> bool:
        assert self.process is not None
        assert self.process.stdout is not None
        poll = select.poll()  # select itself takes no file numbers beyond 1023
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


class Verifier:
    """Use it as a context manager, or close it, or let it end with the process; any number of threads may share it."""

    def __init__(
        self, workers: int = Settings.workers, limit_s: float = Settings.limit_s, longest: int = LONGEST
    ) -> None:
        self.longest = longest  # characters of an answer
        self.idle: queue.LifoQueue[Worker] = queue.LifoQueue()
        for _ in range(workers):
            self.idle.put(Worker(limit_s))
        self.workers = list(self.idle.queue)
        self.threads = ThreadPoolExecutor(workers, "verify")

    def verdicts(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """On pairs of gold answer and response, in their order; equal answers are judged once."""
        asked = [(gold, extract(response)) for gold, response in pairs]
        found: dict[tuple[str, str | None], Verdict] = {}
        slow: dict[tuple[str, str | None], tuple[str, str]] = {}
        for gold, answer in dict.fromkeys(asked):
            verdict = self.quickly(gold, answer)
            if verdict is not None:
                found[gold, answer] = verdict
            else:
                assert answer is not None
                slow[gold, answer] = (tidy(gold), tidy(answer))
        judged = dict.fromkeys(slow.values())
        verdicts = dict(zip(judged, self.threads.map(self.judge, judged), strict=True))
        return [found.get(key) or verdicts[slow[key]] for key in asked]

    def quickly(self, gold: str, answer: str | None) -> Verdict | None:
        if answer is None or len(answer) > self.longest:
            return Verdict.UNPARSED
        return quickly(tidy(gold), tidy(answer))

    def judge(self, pair: tuple[str, str]) -> Verdict:
        worker = self.idle.get()
        try:
            verdict, reason = worker.ask(*pair)
        finally:
            self.idle.put(worker)
        if verdict in FAILURES:
            log.warning("%s: %s, on %.200r against %.200r", verdict, reason, pair[1], pair[0])
        return verdict

    def close(self) -> None:
        self.threads.shutdown(cancel_futures=True)
        for worker in self.workers:
            worker.close()

    def __enter__(self) -> Verifier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# While others are being sampled


class Alongside:
    """Judges groups in a thread of its own as they come, in whatever order; use it as a context manager.

    What has come in the meantime is judged together, which keeps the workers busy and judges equal answers once.
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
        """On all responses in the order of the groups' numbers, once they are there; or what went wrong."""
        for each in self.rounds:
            each.result()
        return [verdict for _, verdicts in sorted(self.found.items()) for verdict in verdicts]

    def __enter__(self) -> Alongside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.thread.shutdown(cancel_futures=True)


# The one of this process

chosen = Settings()


def choose(settings: Settings) -> None:
    """For the verifier that is shared from now on."""
    global chosen
    chosen = settings


def shared() -> Verifier:
    """One verifier for all of this process, closed at its exit."""
    return of_process(os.getpid(), chosen.workers, chosen.limit_s)


@cache
def of_process(pid: int, workers: int, limit_s: float) -> Verifier:
    """By process: after a fork, the workers and threads are still those of the parent."""
    verifier = Verifier(workers, limit_s)

    def close() -> None:
        if os.getpid() == pid:
            verifier.close()

    atexit.register(close)
    return verifier
