"""Speed of verification against plain math-verify in one process, on the same answers, in one run.

Integers are judged in the calling process, other answers in two workers; no answer comes twice. Of the mix, 90 % are
integers and 1 % would hang, crash or confuse a naive verifier; all of its verdicts must come back and be right. Plain
math-verify has its own timeouts of the same length; it gets fewer answers, and no hostile ones.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence

import math_verify

from benchmarks.common import show
from harness.base.task import Verdict
from harness.verify.pool import VerifierPool
from tests.helpers.golden import hostile

LIMIT_S = 5
FEW = 500
Case = tuple[str, str, Verdict]  # gold answer, content of the box, verdict

SYMBOLIC: list[Callable[[int], tuple[str, str]]] = [  # right answers in a different notation
    lambda n: (rf"\frac{{{n}}}{{{n + 1}}}", rf"\frac{{{2 * n}}}{{{2 * n + 2}}}"),
    lambda n: (rf"{n}\sqrt{{2}}", rf"\sqrt{{{2 * n * n}}}"),
    lambda n: (rf"{n}\pi", rf"\pi \cdot {n}"),
    lambda n: (rf"({n}, {n + 1})", rf"\left({n},\, {n + 1}\right)"),
    lambda n: (rf"{n}, -{n}", rf"-{n} \text{{ and }} {n}"),
    lambda n: (rf"x^2 + {n}x", rf"x(x + {n})"),
    lambda n: (rf"[{n}, \infty)", rf"x \ge {n}"),
    lambda n: (rf"{n} - 5i", rf"-5i + {n}"),
    lambda n: (rf"\begin{{pmatrix}} {n} \\ 1/2 \end{{pmatrix}}", rf"\begin{{pmatrix}}{n}\\0.5\end{{pmatrix}}"),
    lambda n: (rf"y = {n}x + 3", rf"y = 3 + {n}x"),
]


def integers(number: int) -> list[Case]:
    """Return integers in several forms, half of them right."""
    forms = ("{}", "0{}", r"{}^\circ", r"{}\text{{ cm}}", "{}.")
    right = [(str(n), forms[n % 5].format(n), Verdict.RIGHT) for n in range(number // 2)]
    wrong = [(str(n), str(n + 1), Verdict.WRONG) for n in range(number - len(right))]
    return right + wrong


def symbolic(number: int) -> list[Case]:
    """Return symbolic answers, every other one right; the wrong ones answer the next question."""
    cases = []
    for i in range(number):
        form, n = SYMBOLIC[i % len(SYMBOLIC)], i // len(SYMBOLIC) + 6
        gold, right_answer = form(n)
        _, wrong_answer = form(n + 1)
        cases.append((gold, right_answer, Verdict.RIGHT) if n % 2 else (gold, wrong_answer, Verdict.WRONG))
    return cases


def mix(number: int) -> list[Case]:
    """Return a shuffled mix of integers, symbolic and hostile answers."""
    cases: list[Case] = []
    for n in range(number // 100):
        cases += [("5", answer, verdict) for answer, verdict in hostile(n)]
    cases = cases[: number // 100] + symbolic(number * 9 // 100)
    cases += integers(number - len(cases))
    random.Random(0).shuffle(cases)
    return cases


def row(name: str, cases: Sequence[Case], judge: Callable[[str, str], object]) -> list[str]:
    """Return the speed and the quantiles of the seconds of answers that are judged one by one."""
    seconds = []
    for gold, answer, _ in cases:
        start = time.perf_counter()
        judge(gold, rf"So it is $\boxed{{{answer}}}$.")
        seconds.append(time.perf_counter() - start)
    seconds.sort()
    quantiles = [seconds[int(q * (len(cases) - 1))] for q in (0.5, 0.99, 1)]
    return [name, f"{len(cases) / sum(seconds):,.0f}", *(f"{1e3 * quantile:.1f}" for quantile in quantiles)]


def plain_math_verify(gold: str, output: str) -> bool:
    timeouts = {"parsing_timeout": LIMIT_S}
    return math_verify.verify(
        math_verify.parse(rf"\boxed{{{gold}}}", **timeouts),
        math_verify.parse(output, **timeouts),
        timeout_seconds=LIMIT_S,
    )


def at_once(verifier: VerifierPool, cases: Sequence[Case]) -> tuple[float, int]:
    """Judge a whole batch; return the answers per second and the number of unexpected verdicts."""
    pairs = [(gold, rf"So it is $\boxed{{{answer}}}$.") for gold, answer, _ in cases]
    start = time.perf_counter()
    verdicts = verifier.verdicts(pairs)
    rate = len(cases) / (time.perf_counter() - start)
    return rate, sum(verdict is not expected for verdict, (*_, expected) in zip(verdicts, cases, strict=True))


def main(number: int = 10_000) -> None:
    kinds = {
        "integers": integers(number),
        "symbolic answers": symbolic(number * 9 // 100),
        "mix with 1 % hostile answers": mix(number),
    }
    alone, together = [], []
    with VerifierPool(workers=2, limit_s=LIMIT_S) as verifier:
        start = time.perf_counter()
        verifier.verdicts([("1/2", r"\boxed{2/4}"), ("1/3", r"\boxed{2/6}")])
        start_s = time.perf_counter() - start
        workers = [worker.process for worker in verifier.workers]
        for name, cases in kinds.items():
            rate, wrong = at_once(verifier, cases)
            together.append([name, f"{len(cases):,}", f"{rate:,.0f}", str(wrong)])
            few = cases[:: max(1, len(cases) // FEW)]
            alone.append(row(f"{name}, here", few, lambda gold, output: verifier.verdicts([(gold, output)])))
            if "hostile" not in name:
                alone.append(row(f"{name}, plain math-verify", few, plain_math_verify))
        lost = sum(worker.process is not before for worker, before in zip(verifier.workers, workers, strict=True))
    show(
        f"Verification in batches, two workers that start in {start_s:.1f} s; {lost} of them lost",
        ["", "answers", "answers/s", "verdicts not as expected"],
        together,
    )
    show(
        f"Verification of one answer at a time, ms, of at most {FEW} answers of each kind",
        ["", "answers/s", "median", "p99", "longest"],
        alone,
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
