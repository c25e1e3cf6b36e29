from __future__ import annotations

import itertools
import json
import logging
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from golden import hostile, triples
from known import known
from launched import write_launched
from patience import HANG, wait_until
from places import REAL, REPOSITORY

from harness.base.errors import CellFailure
from harness.base.task import Verdict
from harness.launch import cell
from harness.methods.batch import Rollout
from harness.verify import pool as verify
from harness.verify import text
from harness.verify.background import BackgroundJudge
from harness.verify.pool import TooManyFailures, VerifierPool, check_failures
from harness.verify.text import extract, integer

GOLDEN = list(triples())
SLOW = r"\boxed{\Gamma(10^{10})}"  # 10^10 multiplications


@pytest.fixture(scope="module")
def verifier() -> Iterator[VerifierPool]:
    with VerifierPool(workers=2, limit_s=20.0) as verifier:
        yield verifier


def boxed(*answers: object) -> list[tuple[str, str]]:
    return [("5", rf"\boxed{{{answer}}}") for answer in answers]


def obeyed(verifier: VerifierPool, *answers: str) -> list[Verdict]:
    """Return the verdicts of a judge that starts in a moment."""
    return verifier.judged_by("obedient_judge", [("5", answer) for answer in answers])


def started(verifier: VerifierPool) -> list[verify.Worker]:
    return [worker for worker in verifier.workers if worker.process]


def running(worker: verify.Worker) -> int:
    return known(worker.process).pid


def child_of(pid: int) -> int:
    """The process that answers."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    wait_until(lambda: bool(children.read_text()), pause=0.01)
    return int(children.read_text().split()[0])


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_end(*pids: int) -> None:
    wait_until(lambda: not any(map(is_alive, pids)))


# Verdicts


@pytest.mark.processes
def test_verdicts_of_the_golden_set(verifier: VerifierPool) -> None:
    verdicts = verifier.verdicts([(gold, output) for gold, output, _ in GOLDEN])
    wrong = [
        f"{gold!r}, {output[:80]!r}: {verdict}, not {expected}"
        for (gold, output, expected), verdict in zip(GOLDEN, verdicts, strict=True)
        if verdict is not expected
    ]
    assert not wrong, "\n".join(wrong)


LIMITS = {  # equal answers, with the verdict of math-verify 0.9.0
    ("-1", "i^2"): Verdict.WRONG,
    (r"\frac{1-i}{2}", r"\frac{1}{1+i}"): Verdict.WRONG,
    ("5", "(2+i)(2-i)"): Verdict.WRONG,
    ("-1", r"e^{i\pi}"): Verdict.WRONG,
    ("2i", r"\sqrt{-4}"): Verdict.WRONG,
    (r"\frac{1}{2}", r"\sin 30^\circ"): Verdict.WRONG,
    (r"2-\sqrt{3}", r"\tan 15^\circ"): Verdict.WRONG,
    (r"(-\infty,-2]\cup[3,\infty)", r"x\le-2 \text{ or } x\ge3"): Verdict.WRONG,
    ("(1,2)", r"\begin{pmatrix}1\\2\end{pmatrix}"): Verdict.WRONG,
    ("-2", r"\sqrt[3]{-8}"): Verdict.WRONG,
    ("15", "5!!"): Verdict.WRONG,
    ("12", r"\color{red}{12}"): Verdict.UNPARSED,
    ("12", r"\underline{12}"): Verdict.UNPARSED,
    ("12", r"\begin{array}{c}12\end{array}"): Verdict.WRONG,
}


@pytest.mark.processes
def test_verdicts_known_limits(verifier: VerifierPool) -> None:
    """Expect the limits in docs/verification.md; where one is mended upstream, take it from both lists."""
    verdicts = verifier.verdicts([(gold, rf"\boxed{{{answer}}}") for gold, answer in LIMITS])
    assert dict(zip(LIMITS, verdicts, strict=True)) == LIMITS
    page = (REPOSITORY / "docs" / "verification.md").read_text()
    assert [answer for _, answer in LIMITS if f"`{answer}`" not in page] == []


@pytest.mark.processes
def test_verdicts_depend_on_neither_order_nor_workers(verifier: VerifierPool) -> None:
    pairs = [(gold, output) for gold, output, _ in GOLDEN if integer(gold) is None and len(output) < 1000]
    some = random.Random(0).sample(pairs, 30)
    shuffled = random.Random(1).sample(some, len(some))
    one_by_one = {pair: verifier.verdicts([pair])[0] for pair in some}
    with VerifierPool(workers=1, limit_s=20.0) as other:
        assert other.verdicts(shuffled) == [one_by_one[pair] for pair in shuffled]
    assert verifier.verdicts(some * 2) == [one_by_one[pair] for pair in some] * 2


@pytest.mark.processes
def test_equal_answers_are_judged_once(verifier: VerifierPool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    ask = verify.Worker.ask

    def counted(self: verify.Worker, gold: str, answer: str) -> tuple[Verdict, str]:
        asked.append((gold, answer))
        return ask(self, gold, answer)

    monkeypatch.setattr(verify.Worker, "ask", counted)
    pairs = [("5", r"\boxed{7x}"), ("5", r"so \boxed{7x}."), ("5", r"\boxed{ 7x}"), ("6", r"\boxed{7x}")]
    assert verifier.verdicts(pairs) == [Verdict.WRONG] * 4
    assert sorted(asked) == [("5", "7x"), ("6", "7x")]


def test_integers_need_no_worker() -> None:
    threads = threading.active_count()
    pairs = [("25", rf"\boxed{{{text}}}") for text in ("025", "25", "26", "٢٥", "25^\\circ", "")]
    with VerifierPool() as verifier:
        assert verifier.verdicts(pairs) == ["right", "right", "wrong", "unparsed", "right", "unparsed"]
        assert all(worker.process is None for worker in verifier.workers)
        assert threading.active_count() == threads


def test_arithmetic_is_tidy_and_spelled_in_one_way() -> None:
    """The short cut for it gives what the long way does, which a space in front enforces and does not survive."""
    for length in range(4):
        for letters in itertools.product("-+*/()01 .,=eE{}$\\", repeat=length):
            written = "".join(letters)
            assert text.tidy(written) == text.tidy(f" {written}")
            assert text.spelling(written) == text.spelling(f" {written}")
    assert text.spelling(text.tidy("(6*7)-3/1+0")) == "(6*7)-3/1+0"


@pytest.mark.processes
def test_answers_of_math_equal_themselves_and_not_each_other(verifier: VerifierPool) -> None:
    path = REAL / "math500.jsonl"
    if not path.exists():
        pytest.skip("needs the real problem sets, whose folder ENTROBENCH_DATA names")
    answers = sorted({json.loads(line)["answer"] for line in path.read_text().split("\n") if line})
    apart = sorted({text.spelling(text.tidy(answer)): answer for answer in answers if integer(answer) is None}.values())
    shifted = random.Random(0).sample(list(itertools.pairwise(apart)), 50)
    worker = verifier.workers[0]  # which does not see that they are written alike
    assert {worker.ask(text.tidy(answer), text.tidy(answer)) for answer in apart} == {(Verdict.RIGHT, "")}
    verdicts = verifier.verdicts([(gold, rf"\boxed{{{answer}}}") for gold, answer in shifted])
    assert set(verdicts) == {Verdict.WRONG}


@pytest.mark.processes
def test_small_fractions_are_equal_where_integers_say_so(verifier: VerifierPool) -> None:
    """Cross products of integers decide, for fractions from 1e-15 to 1e-190, alone and taken from 1."""
    rng = random.Random(0)
    pairs, expected = [], []
    for _ in range(40):
        base, exponent = rng.randint(2, 9), rng.randint(50, 200)
        over, power = rng.choice([base, rng.randint(1, 9)]), exponent + rng.randint(0, 1)
        gold, answer = rf"\frac{{{base}}}{{{base}^{{{power}}}}}", rf"\frac{{{over}}}{{{base}^{{{exponent}}}}}"
        verdict = Verdict.RIGHT if base * base**exponent == over * base**power else Verdict.WRONG
        pairs += [(gold, rf"\boxed{{{answer}}}"), (f"1-{gold}", rf"\boxed{{1-{answer}}}")]
        expected += [verdict, verdict]
    assert min(Counter(expected).values()) >= 5
    assert verifier.verdicts(pairs) == expected


@pytest.mark.processes
def test_small_numbers_with_a_million_digits_are_compared_in_time(verifier: VerifierPool) -> None:
    gold = r"\frac{1}{2^{4000000}}"
    answers = {r"\frac{2}{2^{4000001}}": Verdict.RIGHT, r"\frac{1}{2^{4000001}}": Verdict.WRONG}
    assert verifier.verdicts([(gold, rf"\boxed{{{answer}}}") for answer in answers]) == list(answers.values())


# Units and separators


def test_tidy_keeps_words_that_change_a_number() -> None:
    assert len(text.NOT_UNITS) > 100
    scales = {*text.SCALES, *(f"{scale}s" for scale in text.SCALES)}
    for word in text.NOT_UNITS - scales - {"percent", "pct"}:
        for written in (rf"7\text{{ {word}}}", rf"7\text{{ cm {word}}}", rf"7\text{{ {word.upper()} cm}}"):
            assert text.tidy(written) == written
            assert integer(written) is None


def test_scales_multiply() -> None:
    for scale, factor in text.SCALES.items():
        assert text.tidy(rf"7\text{{ {scale} eggs}}") == text.tidy(f"7 {scale}s") == rf"7\times {factor}"


def test_integer_with_a_unit() -> None:
    for letter in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ":
        assert (integer(rf"7\text{{ {letter}}}") == 7) == (letter in text.LETTERS)
        assert (integer(f"7{letter}") == 7) == (letter == "m")


def test_digits_are_joined_where_no_list_can_be_meant() -> None:
    rng = random.Random(0)
    for _ in range(500):
        number = rng.randint(1_000, 10 ** rng.randint(4, 12))
        grouped = f"{number:,}"
        for separator in ("{,}", ",\\!", "\\,"):
            assert text.tidy(grouped.replace(",", separator) + r"\pi") == rf"{number}\pi"
        assert text.tidy(rf"\sqrt{{{grouped}}}") == rf"\sqrt{{{number}}}"
        assert text.tidy(rf"\frac{{{grouped}}}{{7}}") == rf"\frac{{{number}}}{{7}}"
        joined = f"{number}x" if ",0" in grouped else f"{grouped}x"
        assert text.tidy(f"{grouped}x") == joined


# What is in the box


@pytest.mark.parametrize(
    ("read", "written"),
    [
        (text.tidy, "7" + r"\text{m}" * 140 + "x"),
        (text.tidy, "7" + r"\text{ cm or }8" * 60),
        (text.tidy, r"7\text{" + "a " * 480 + "}x"),
        (text.tidy, "1" + ",000" * 240 + "x"),
        (text.tidy, "7" + " m" * 480 + "x"),
        (text.tidy, "7" + "cm" * 490 + "x"),
        (extract, r"\boxed" * 300_000),
        (extract, r"\boxed{" * 300_000),
        (extract, r"\boxed " * 300_000),
        (extract, r"\boxed{5}" * 200_000),
        (extract, r"\boxed{" + "\\" * 1_000_000),
        (extract, r"\boxed" + " " * 1_000_000),
        (extract, r"\boxed{" + "{}" * 500_000),
        (extract, r"\boxed{5}" + "}" * 1_000_000 + "{" * 1_000_000),
    ],
    ids=range(14),
)
def test_texts_take_time_in_proportion(read: Callable[[str], str | None], written: str) -> None:
    start = time.process_time()
    read(written)
    assert time.process_time() - start < (1 if read is text.tidy else 5)


def test_integers_survive_their_spellings() -> None:
    rng = random.Random(0)
    commas = [",", "{,}", r"\,", r"\!", r",\!", " "]
    after = ["", ".", ".0", r"^\circ", r"^{\circ}", "°", r"\text{ cm}", " cm", r"\ ", r" \text{ degrees}", " ."]
    around = ["{}", " {} ", "{{{}}}", "${}$", r"\({}\)", "{{ {} }}"]
    for _ in range(2_000):
        number = rng.randint(-(10 ** rng.randint(1, 25)), 10 ** rng.randint(1, 25))
        sign = rng.choice(["-", "\u2212", "- "]) if number < 0 else rng.choice(["", "+"])
        digits = "0" * rng.randint(0, 3) + str(abs(number))
        digits = rng.choice([digits, f"{abs(number):,}".replace(",", rng.choice(commas))])
        text = rng.choice(around).format(sign + digits + rng.choice(after))
        assert integer(text) == number, text


def test_integer_with_other_digits() -> None:
    signs = map(chr, range(128, sys.maxunicode + 1))
    others = [sign for sign in signs if unicodedata.category(sign) in ("Nd", "Nl", "No")]
    assert len(others) > 1_500
    assert not [digit for digit in others if integer(digit) is not None or integer(f"1{digit}") is not None]


NO_INTEGERS = ["", "x", "1/2", "0.5", "1.2.3", "5%", "1,2", "12,34", "5 6", "--5", "5-", "1e3", "5x", "("]
NO_INTEGERS += ["9" * 5_000, "1" + ",000" * 2_000]


@pytest.mark.parametrize("text", NO_INTEGERS)
def test_integer_refuses_other_texts(text: str) -> None:
    assert integer(text) is None


# Failures


@pytest.mark.processes
def test_hostile_answers(caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    harmless = [(f"{n}", Verdict.WRONG) for n in range(6, 206)] + [
        (rf"\frac{{{5 * n}}}{{{n}}}", Verdict.RIGHT) for n in range(2, 42)
    ]
    asked = [*harmless, *hostile(0), *harmless[:20]]
    random.Random(0).shuffle(asked)
    pairs = boxed(*(answer for answer, _ in asked))
    with VerifierPool(workers=2, limit_s=3.0) as verifier:  # harmless answers take milliseconds
        verifier.verdicts(boxed("1+4", "2+3"))
        before = [running(worker) for worker in verifier.workers]
        with caplog.at_level(logging.WARNING, "harness.verify.pool"):
            verdicts = verifier.verdicts(pairs)
        assert verdicts == [expected for _, expected in asked]
        assert verifier.verdicts(boxed("10/2")) == [Verdict.RIGHT]
        assert [running(worker) for worker in verifier.workers] == before
    failed = [expected for _, expected in asked if expected in verify.FAILURES]
    assert len(caplog.messages) == len(failed) == 3
    assert sum("RecursionError" in message for message in caplog.messages) == 1
    assert sum("more than 3 s" in message for message in caplog.messages) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.processes
def test_verdicts_with_a_dying_worker() -> None:
    with VerifierPool(workers=1, limit_s=2.0) as verifier, ThreadPoolExecutor(1) as caller:
        assert obeyed(verifier, "5") == [Verdict.RIGHT]
        [worker] = started(verifier)
        for victim in (child_of, lambda pid: pid):
            answer = caller.submit(obeyed, verifier, "hang")
            time.sleep(0.3)
            os.kill(victim(running(worker)), signal.SIGKILL)
            assert answer.result() == [Verdict.ERROR]
            assert obeyed(verifier, "5", "6") == [Verdict.RIGHT, Verdict.WRONG]
        os.kill(child_of(running(worker)), signal.SIGKILL)  # while it is idle
        time.sleep(0.3)
        assert obeyed(verifier, "5", "6") == [Verdict.RIGHT, Verdict.WRONG]


@pytest.mark.processes
def test_verdicts_with_a_worker_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with VerifierPool(workers=1) as verifier, pytest.raises(RuntimeError, match="does not start"):
        verifier.verdicts(boxed("1+4"))


# Imports what a worker does, which takes seconds, and runs each line of its input in a fork of its own.
JUDGE = """
import json, math_verify.grader, os, resource, sympy, sys, traceback
from harness.verify import judge
for line in sys.stdin:
    if os.fork() == 0:
        try:
            exec(json.loads(line))
        except BaseException:
            traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        os._exit(0)
    os.wait()
    print("end", flush=True)
"""
InJudge = Callable[[str], str]


@pytest.fixture(scope="module")
def in_judge() -> Iterator[InJudge]:
    """A function that returns what code prints in a process like that of a worker."""
    command = [sys.executable, "-c", JUDGE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def printed_by(code: str) -> str:
            print(json.dumps(code), file=known(process.stdin), flush=True)
            return "".join(iter(known(process.stdout).readline, "end\n"))

        yield printed_by


@pytest.mark.processes
def test_memory_is_limited(in_judge: InJudge) -> None:
    printed = in_judge(
        "judge.patch_libraries(); judge.judge_answer('1', r'\\operatorname{zeros}(2,2)')\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 2**23,) * 2)\n"
        "print(judge.answer_question(json.dumps(['1', r'\\operatorname{zeros}(600,600)']).encode()))"
    )
    assert printed.startswith("('error', 'MemoryError")


@pytest.mark.processes
@pytest.mark.parametrize("error", ["MemoryError", "RecursionError"])
def test_exhaustion_that_the_library_swallows_is_an_error(error: str, in_judge: InJudge) -> None:
    printed = in_judge(
        f"def broken(*_): raise {error}\n"
        "math_verify.grader.simplify = broken; judge.patch_libraries()\n"
        "print(judge.answer_question(json.dumps([r'\\sin 2x', r'2\\sin x\\cos x']).encode()))"
    )
    assert printed == f"('error', '{error}')\n"


@pytest.mark.processes
def test_sympy_cannot_evaluate_text(in_judge: InJudge) -> None:
    printed = in_judge(
        "judge.patch_libraries(); print(sympy.S('3/2'))\n"
        "for text in ('x', 'print(1)', '__import__(\"os\").getcwd()', '(1).__class__', 'Integer.mro()'):\n"
        "    try: print(sympy.sympify(text))\n"
        "    except RuntimeError as error: print(error)"
    )
    assert printed.splitlines() == ["3/2"] + ["text was about to be evaluated as code"] * 5


@pytest.mark.processes
def test_workers_end_with_their_caller() -> None:
    code = (
        "from harness.verify.pool import VerifierPool\n"
        "verifier = VerifierPool(workers=1, limit_s=1.0)\n"
        "verifier.verdicts([('5', r'\\boxed{1+4}')])\n"
        "print(verifier.workers[0].process.pid, flush=True)\n"
        f"verifier.verdicts([('5', {SLOW!r})] * 9)\n"
    )
    caller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    worker = int(known(caller.stdout).readline())
    child = child_of(worker)
    caller.kill()
    caller.communicate()
    wait_for_end(worker, child)


# Sharing


@pytest.mark.processes
def test_threads_share_a_verifier(verifier: VerifierPool) -> None:
    pairs = [(gold, output) for gold, output, _ in GOLDEN[100:120]]
    expected = [verdict for *_, verdict in GOLDEN[100:120]]
    with ThreadPoolExecutor(4) as threads:
        actual = list(threads.map(lambda i: verifier.verdicts(pairs[i::4]), range(4)))
    assert actual == [expected[i::4] for i in range(4)]


@pytest.mark.processes
def test_daemonic_processes_have_verifiers_of_their_own(verifier: VerifierPool) -> None:
    """As cells are: processes that may have no children of multiprocessing, forked from one that may be at work."""
    assert verifier.verdicts(boxed("2+3")) == [Verdict.RIGHT]
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def judge() -> None:
        with VerifierPool(workers=1) as own:
            theirs.send(own.verdicts(boxed("1+4", "1+5")))

    process = context.Process(target=judge, daemon=True)
    process.start()
    assert ours.poll(HANG)
    assert ours.recv() == [Verdict.RIGHT, Verdict.WRONG]
    process.join(HANG)
    assert process.exitcode == 0
    assert verifier.verdicts(boxed("3+3", "2+4")) == [Verdict.WRONG, Verdict.WRONG]


@pytest.mark.processes
def test_work_closes_its_verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_launched(tmp_path, "verify.workers=3", "verify.limit_s=19")
    seen: list[tuple[VerifierPool, int]] = []

    def build(record: dict[str, object], verifier: VerifierPool, *reports: object) -> None:
        assert [worker.limit_s for worker in verifier.workers] == [19.0] * 3
        assert obeyed(verifier, "5") == [Verdict.RIGHT]
        [worker] = started(verifier)
        seen.append((verifier, running(worker)))
        raise ZeroDivisionError

    monkeypatch.setattr(cell, "build_parts", build)
    with pytest.raises(SystemExit):
        cell.work(tmp_path)
    ((verifier, pid),) = seen
    assert started(verifier) == []
    wait_for_end(pid)


@pytest.mark.processes
def test_judged_by_another_judge() -> None:
    with VerifierPool(workers=2, limit_s=3.0) as verifier:
        verdicts = obeyed(verifier, "5", "6", "hang", "die", "eat", "5")
        failures = [Verdict.TIMEOUT, Verdict.ERROR, Verdict.ERROR]
        assert verdicts == [Verdict.RIGHT, Verdict.WRONG, *failures, Verdict.RIGHT]
        assert verifier.verdicts(boxed("1+4")) == [Verdict.RIGHT]
        pids = [running(worker) for worker in started(verifier)]
        children = [child_of(pid) for pid in pids]
        assert {worker.judge for worker in verifier.workers} == {"obedient_judge", "harness.verify.judge"}
    wait_for_end(*pids, *children)


# The share of failures


@pytest.mark.parametrize(
    ("timeouts", "errors", "others", "threshold", "stops"),
    [
        (3, 2, 95, 0.04, True),
        (3, 2, 95, 0.05, False),
        (5, 0, 94, 0.05, True),
        (2, 2, 0, 0.05, False),  # too few to say
        (0, 5, 0, 1.0, False),
        (0, 0, 0, 0.0, False),
        (0, 5, 9_995, 0.0, True),
    ],
)
def test_check_failures(timeouts: int, errors: int, others: int, threshold: float, stops: bool) -> None:
    verdicts = ["timeout"] * timeouts + ["error"] * errors
    verdicts += itertools.islice(itertools.cycle(["right", "wrong", "unparsed"]), others)
    if not stops:
        check_failures(verdicts, threshold)
        return
    assert issubclass(TooManyFailures, CellFailure)
    with pytest.raises(TooManyFailures) as caught:
        check_failures(verdicts, threshold)
    total = timeouts + errors + others
    assert str(caught.value) == (
        f"{timeouts + errors} of {total} answers ({(timeouts + errors) / total:.1%}) could not be verified "
        f"({timeouts} timeouts, {errors} errors); allowed are {threshold:.1%}"
    )


# While others are being sampled


def group(*verdicts: Verdict) -> list[Rollout]:
    return [Rollout([1], [list(Verdict).index(verdict)], [0.0], True) for verdict in verdicts]


def written(groups: dict[int, list[Rollout]]) -> dict[int, list[Verdict]]:
    """Each response says what its verdict is."""
    return {number: [list(Verdict)[rollout.response[0]] for rollout in group] for number, group in groups.items()}


R, W, U = Verdict.RIGHT, Verdict.WRONG, Verdict.UNPARSED


def test_groups_are_judged_while_others_are_sampled_and_together_what_came_meanwhile() -> None:
    rounds: list[list[int]] = []
    started, go_on = threading.Event(), threading.Event()

    def judge(groups: dict[int, list[Rollout]]) -> dict[int, list[Verdict]]:
        rounds.append(list(groups))
        started.set()
        assert go_on.wait(HANG)
        return written(groups)

    with BackgroundJudge(judge) as judging:
        judging.add(3, group(R))
        assert started.wait(HANG), "nobody asked for verdicts yet"
        for number, verdicts in ((2, [W]), (0, [R, W]), (1, [U])):
            judging.add(number, group(*verdicts))
        assert rounds == [[3]]
        go_on.set()
        assert judging.results() == [[R, W], [U], [W], [R]], "in the order of the prompts"
    assert rounds == [[3], [2, 0, 1]]
    assert judging.seconds > 0


def test_background_errors_are_raised_when_verdicts_are_requested() -> None:
    def judge(groups: dict[int, list[Rollout]]) -> dict[int, list[Verdict]]:
        raise RuntimeError(f"no verdict on {list(groups)}")

    with BackgroundJudge(judge) as judging:
        judging.add(5, group(R))
        judging.add(6, group(R))
        with pytest.raises(RuntimeError, match=r"no verdict on \[5"):
            judging.results()


def test_background_judge_with_a_failing_engine() -> None:
    judged: list[int] = []
    started = threading.Event()

    def judge(groups: dict[int, list[Rollout]]) -> dict[int, list[Verdict]]:
        started.set()
        time.sleep(0.2)
        judged.extend(groups)
        return written(groups)

    def sample() -> None:
        with BackgroundJudge(judge) as judging:
            judging.add(0, group(R))
            assert started.wait(HANG)
            judging.add(1, group(R))
            raise FloatingPointError

    with pytest.raises(FloatingPointError):
        sample()
    assert judged == [0], "what was not begun is not judged"
