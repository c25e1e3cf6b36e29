import ast
import itertools
import random
import re
import warnings
from collections import Counter
from collections.abc import Iterator

import pytest
from commands import run_python
from places import REPOSITORY

from harness.base.task import Answer
from harness.methods.batch import Rollout
from harness.verify.background import judge_rollouts
from harness.verify.pool import VerifierPool
from tasks import SPLITS, Problem, Verdict, base_model
from tasks.countdown import (
    Countdown,
    count_solutions,
    evaluate_expression,
    examples,
    expression,
    key_of,
    multisets,
    parse_key,
    split_of,
)
from tasks.countdown.recipe import CountdownRecipe

PROBLEM = Problem("3,6,7=39", "6 7 3=39:", "3,6,7=39")
OPERATIONS = {ast.Add: int.__add__, ast.Sub: int.__sub__, ast.Mult: int.__mul__}


def values_of(text: str) -> list[int]:
    """Python's own reading: the value of every operation, the whole last; SyntaxError for what is not allowed."""
    values: list[int] = []

    def walk(node: ast.AST) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            values.append(OPERATIONS[type(node.op)](walk(node.left), walk(node.right)))
            return values[-1]
        raise SyntaxError(text)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 1(2) parses, with a warning
        value = walk(ast.parse(text.strip(), mode="eval").body)
    return values or [value]


def brute_force(numbers: tuple[int, ...], highest: int) -> Iterator[int]:
    """Replace any two numbers by a result until one is left; values come more than once."""
    if len(numbers) == 1:
        yield from (value for value in numbers if value <= highest)
    for i, j in itertools.permutations(range(len(numbers)), 2):
        rest = tuple(n for k, n in enumerate(numbers) if k not in (i, j))
        a, b = numbers[i], numbers[j]
        for value in (a + b, a - b, a * b):
            if 0 <= value <= highest and max(a, b) <= highest:
                yield from brute_force((*rest, value), highest)


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        (r"\boxed{(6*7)-3}", Verdict.RIGHT),
        (r"\boxed{ ((7 * 6)) - 3 }", Verdict.RIGHT),
        (r"\boxed{6*(7-3)}", Verdict.WRONG),
        (r"\boxed{39}", Verdict.WRONG),
        (r"\boxed{6*7-3+3-3}", Verdict.WRONG),
        (r"\boxed{(6*7)-3-0}", Verdict.WRONG),
        (r"\boxed{6*6+3}", Verdict.WRONG),
        (r"\boxed{42-3}", Verdict.WRONG),
        (r"\boxed{6*7-3=39}", Verdict.UNPARSED),
        (r"\boxed{6*7-3.0}", Verdict.UNPARSED),
        (r"\boxed{6*7-3_}", Verdict.UNPARSED),
        ("\\boxed{(6*7)-\uff13}", Verdict.UNPARSED),  # a full-width three
        ("\\boxed{(6*7)-\u0663}", Verdict.UNPARSED),  # an Arabic three
        ("\\boxed{(6*7)-3\n}", Verdict.UNPARSED),
        ("\\boxed{(6*7)-3\x00}", Verdict.UNPARSED),
        ("\\boxed{(6*7)-\u00b3}", Verdict.UNPARSED),  # a superscript three: str.isdigit, but not int
        ("\\boxed{__import__('os')}", Verdict.UNPARSED),
        ("\ud800\\boxed{\udfff}", Verdict.UNPARSED),
        ("\\boxed{" + "(" * 100_000 + "3" + ")" * 100_000 + "}", Verdict.UNPARSED),
        ("\\boxed{" + "9" * 1_000_000 + "}", Verdict.UNPARSED),
        ("\\boxed{" + "(" * 100 + "6*7-3" + ")" * 100 + "}", Verdict.RIGHT),
        ("\\boxed{" + "9" * 200 + "}", Verdict.WRONG),
        ("\\boxed{" + "*".join(["99"] * 80) + "}", Verdict.WRONG),
        ("\\boxed{" * 100_000 + "(6*7)-3}", Verdict.UNPARSED),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_countdown_verdict(response: str, verdict: Verdict) -> None:
    assert Countdown().verdict(PROBLEM, response) is verdict


@pytest.mark.slow
def test_countdown_verdict_of_one_box() -> None:
    """By brute force: an answer is read exactly where the whole response matches one box without braces in it."""
    rng = random.Random(0)
    pieces = ["\\boxed{(6*7)-3", "\\boxed{7*6-3", "\\boxed{6+7+3", "\\boxed{1+1"]
    pieces += ["\\boxed{", "}", "}", "}", "\\fbox{", "\\boxed ", "(6*7)-3", "+1", " ", "\n", "56-3*1}"]
    counts: Counter[Verdict] = Counter()
    for _ in range(40_000):
        response = "".join(rng.choices(pieces, k=rng.choice((1, 2, 2, 2, 3, 4))))
        whole = re.fullmatch(r"\\boxed\{([^{}]*)\}", response)
        read = evaluate_expression(whole[1]) if whole else None
        solved = read is not None and read.value == 39 and sorted(read.used) == [3, 6, 7]
        expected = Verdict.UNPARSED if read is None else Verdict.RIGHT if solved else Verdict.WRONG
        assert Countdown().verdict(PROBLEM, response) is expected, response
        [answer] = Countdown().answers([(PROBLEM, response)])
        assert (answer is not None and answer.text is not None) == (read is not None), response
        counts[expected] += 1
    assert min(counts.values()) > 500


def test_judge_rollouts_without_the_end_token() -> None:
    """Only the end of the sequence leaves the text: padding after or within the box does not pass for nothing."""
    encoder = base_model.tokenizer(CountdownRecipe())
    box = r"\boxed{(6*7)-3}"
    expected = {
        f"{box}<eos>": (box, Verdict.RIGHT),
        box: (box, Verdict.RIGHT),  # cut off by the budget, but whole
        f"{box} <eos>": (f"{box} ", Verdict.UNPARSED),
        f"{box}3<eos>": (f"{box}3", Verdict.UNPARSED),
        f"{box}<pad><eos>": (f"{box}<pad>", Verdict.UNPARSED),
        f"{box}<pad>": (f"{box}<pad>", Verdict.UNPARSED),
        r"\boxed{<pad>(6*7)-3}<eos>": (r"\boxed{<pad>(6*7)-3}", Verdict.UNPARSED),
    }
    group = [Rollout([1], encoder(text)["input_ids"], [], text.endswith("<eos>")) for text in expected]
    judged = judge_rollouts(Countdown(), VerifierPool(), encoder, [PROBLEM], {0: group})[0]
    assert [(response.text, response.judged.verdict) for response in judged] == list(expected.values())
    # The box is one token, six of the expression, two brackets and the closing brace; with <pad> within it, one more.
    assert [response.answer_tokens for response in judged] == [9, 9, 9, 9, 9, 9, 10]
    assert [response.judged.goes_on for response in judged] == [False, False, True, True, True, True, False]


@pytest.mark.parametrize(
    ("response", "text", "answered"),
    [
        (r"\boxed{(6*7)-3}", "6*7-3", r"\boxed{(6*7)-3}"),
        (r"\boxed{ ((06 * 7)) - 3 }", "6*7-3", r"\boxed{ ((06 * 7)) - 3 }"),
        (r"\boxed{(7*6)-3}", "7*6-3", r"\boxed{(7*6)-3}"),
        (r"\boxed{3-(6-7)}", "3-(6-7)", r"\boxed{3-(6-7)}"),
        (r"\boxed{3+(6-7)}", "3+6-7", r"\boxed{3+(6-7)}"),
        (r"\boxed{3*(6*7)}", "3*6*7", r"\boxed{3*(6*7)}"),
        (r"\boxed{3*(6+7)}", "3*(6+7)", r"\boxed{3*(6+7)}"),
        (r"\boxed{9-(5+3)}56-3*1}", None, r"\boxed{9-(5+3)}"),
        (r"6=\boxed{6}", None, r"6=\boxed{6}"),
        (r"\boxed{1} \boxed{2}", None, r"\boxed{1}"),
        (r"\boxed{}", None, r"\boxed{}"),
    ],
)
def test_countdown_answers_in_normal_form(response: str, text: str | None, answered: str) -> None:
    assert Countdown().answers([(PROBLEM, response)]) == [Answer(text, len(answered))]


def trees(operands: tuple[str, ...]) -> Iterator[str]:
    """Yield all expressions over some operands in every order, with brackets around every operation."""
    if len(operands) == 1:
        yield operands[0]
    for size in range(1, len(operands)):
        for chosen in itertools.combinations(range(len(operands)), size):
            left = tuple(operands[i] for i in chosen)
            right = tuple(operands[i] for i in range(len(operands)) if i not in chosen)
            for parts in itertools.product(trees(left), "+-*", trees(right)):
                yield f"({''.join(parts)})"


def without_redundant_brackets(text: str, worlds: list[dict[str, int]]) -> str:
    """Drop pairs of brackets while the value stays the same for any numbers in place of the letters."""

    def values(of: str) -> list[int]:
        return [eval(of, {}, world) for world in worlds]

    expected = values(text)
    for start, letter in enumerate(text):
        if letter == "(":
            depth, end = 1, start
            while depth:
                end += 1
                depth += (text[end] == "(") - (text[end] == ")")
            shorter = text[:start] + text[start + 1 : end] + text[end + 1 :]
            if values(shorter) == expected:
                return without_redundant_brackets(shorter, worlds)
    return text


def test_without_redundant_brackets() -> None:
    """By brute force over all expressions of up to four letters: a bracket stays if the value depends on it."""
    rng = random.Random(0)
    worlds = [{letter: rng.randint(10**6, 10**9) for letter in "abcd"} for _ in range(3)]
    names = {letter: str(value) for letter, value in worlds[0].items()}
    letters = {value: letter for letter, value in names.items()}
    everything = [text for count in range(1, 5) for text in trees(tuple("abcd"[:count]))]
    chosen = [text for text in everything if text.count("(") < 3] + rng.sample(everything, 600)
    for text in chosen:
        read = evaluate_expression("".join(names.get(letter, letter) for letter in text))
        assert read is not None
        normal = re.sub("[0-9]+", lambda number: letters[number[0]], read.normal)
        assert normal == without_redundant_brackets(text, worlds)


@pytest.mark.parametrize("numbers", [(5,), (4, 4), (3, 8), (1, 1, 1), (2, 2, 5), (1, 6, 7), (3, 3, 4, 4), (1, 2, 5, 9)])
def test_solutions_are_counted_as_all_trees_give_them(numbers: tuple[int, ...]) -> None:
    """By brute force: the distinct normal forms of all expressions of a value, also with values below 0 on the way."""
    forms: dict[int, set[str]] = {}
    for text in trees(tuple(map(str, numbers))):
        read = evaluate_expression(text)
        assert read is not None
        forms.setdefault(read.value, set()).add(read.normal)
    assert min(forms) < 0 or len(numbers) < 2 or numbers == (4, 4)
    for target in range(-2, 120):
        assert count_solutions(numbers, target) == len(forms.get(target, ())), target
    target = max(forms, key=lambda value: len(forms[value]))
    problem = Problem("p", "", key_of(numbers, target))
    assert {Countdown().verdict(problem, f"\\boxed{{{form}}}") for form in forms[target]} == {Verdict.RIGHT}
    assert Countdown().solutions(problem) == len(forms[target])


def test_countdown_solutions() -> None:
    counts = [Countdown().solutions(problem) for problem in Countdown().problems("test")]
    assert min(counts) >= 1
    assert sum(count > 1 for count in counts) > 0.9 * len(counts)


def test_expressions_are_read_as_python_reads_them() -> None:
    """Every string of up to five of these characters, and longer random ones."""
    alphabet = "12+-*() "
    rng = random.Random(0)
    short = ("".join(text) for length in range(1, 6) for text in itertools.product(alphabet, repeat=length))
    long = ("".join(rng.choices("12345+-*()", k=rng.randint(6, 12))) for _ in range(5_000))
    valid = 0
    for text in itertools.chain(short, long):
        try:
            expected = values_of(text)[-1]
        except SyntaxError:
            assert evaluate_expression(text) is None, text
        else:
            read = evaluate_expression(text)
            assert read is not None, text
            value, used = read.value, list(read.used)
            assert value == expected, text
            assert used == [int(number) for number in text.translate(str.maketrans("+-*()", "     ")).split()], text
            valid += 1
    assert valid > 1_000


@pytest.mark.parametrize("task", [Countdown(), Countdown(count=2, largest=9), Countdown(count=4, largest=5, target=20)])
def test_countdown_problems_are_all_solvable_ones(task: Countdown) -> None:
    expected = {
        key_of(numbers, value)
        for numbers in itertools.combinations_with_replacement(range(1, task.largest + 1), task.count)
        for value in brute_force(numbers, task.target)
    }
    actual = [problem.id for split in SPLITS for problem in task.problems(split)]
    assert sorted(actual) == sorted(expected)


def test_held_out_problems_stay_the_same() -> None:
    """Another split would mix what earlier models were trained on into what they are tested on."""
    assert [len(Countdown().problems(split)) for split in SPLITS] == [2817, 337, 336]
    assert [problem.prompt for problem in Countdown().problems("test")[:3]] == ["12 5 4=3:", "3 1 10=30:", "5 11 1=54:"]
    assert [problem.prompt for problem in Countdown().problems("validation")[:3]] == [
        "9 9 4=14:",
        "6 2 10=18:",
        "4 10 4=10:",
    ]
    harder = Countdown(largest=15, target=100)
    assert {p.id for p in Countdown(largest=9).problems("test")} < {p.id for p in harder.problems("test")}


def test_prompts_show_the_numbers_in_any_order() -> None:
    problems = Countdown().problems("train")
    for problem in problems:
        numbers, target = parse_key(problem.answer)
        shown, equals, rest = problem.prompt.partition("=")
        assert (equals, rest) == ("=", f"{target}:")
        assert tuple(sorted(map(int, shown.split()))) == numbers
        assert split_of(numbers, target) == "train"
    ascending = sum(problem.prompt.split("=")[0] == problem.id.split("=")[0].replace(",", " ") for problem in problems)
    assert 0.1 < ascending / len(problems) < 0.3  # a sixth where the three differ


@pytest.mark.slow
def test_large_tasks_are_a_bounded_draw() -> None:
    task = Countdown(count=5, largest=50, target=100)
    drawn = multisets(task)
    assert len(set(drawn)) == 1000
    assert all(len(numbers) == 5 and min(numbers) >= 1 and max(numbers) <= 50 for numbers in drawn)
    assert sum(map(sum, drawn)) / 5000 == pytest.approx(25.5, abs=0.5)
    rng = random.Random(0)
    for problem in rng.sample(task.problems("test"), 3):
        numbers, target = parse_key(problem.answer)
        assert target in brute_force(numbers, 100)


def problem_of(prompt: str) -> Problem:
    shown, target = prompt.removesuffix(":").split("=")
    key = key_of(tuple(sorted(map(int, shown.split()))), int(target))
    return Problem(key, prompt, key)


def test_examples_solve_training_problems_within_the_rules() -> None:
    task = Countdown()
    train = {problem.id for problem in task.problems("train")}
    texts = set()
    for prompt, response in itertools.islice(examples(task, seed=1, solving=1.0), 3_000):
        problem = problem_of(prompt)
        assert problem.id in train
        assert task.verdict(problem, response) is Verdict.RIGHT
        values = values_of(response.removeprefix("\\boxed{").removesuffix("}"))
        assert all(0 <= value <= 60 for value in values)
        texts.add(response)
    assert len(texts) > 2_000


def test_expression_draws_every_solution() -> None:
    """For 2 3 4 = 14: all ways to write it, by brute force over permutations, signs and the two bracketings."""
    expected = set()
    for a, b, c in itertools.permutations("234"):
        for x, y in itertools.product("+-*", repeat=2):
            for text in (f"({a}{x}{b}){y}{c}", f"{a}{x}({b}{y}{c})"):
                values = values_of(text)
                if values[-1] == 14 and all(0 <= value <= 60 for value in values):
                    expected.add(text)
    rng = random.Random(0)
    assert {expression(rng, (2, 3, 4), 14, 60) for _ in range(2_000)} == expected


def test_examples_share_of_solutions() -> None:
    """The rest are expressions over the same numbers, and solve only by chance."""
    task = Countdown()

    def share(solving: float) -> float:
        drawn = list(itertools.islice(examples(task, seed=2, solving=solving), 4_000))
        right = 0
        for prompt, response in drawn:
            verdict = task.verdict(problem_of(prompt), response)
            assert verdict is not Verdict.UNPARSED
            right += verdict is Verdict.RIGHT
        return right / len(drawn)

    by_chance = share(0.0)
    assert 0.05 < by_chance < 0.15
    assert share(0.6) == pytest.approx(0.6 + 0.4 * by_chance, abs=0.03)


def test_examples_repeat_with_their_seed() -> None:
    first, again, other = (list(itertools.islice(examples(Countdown(), seed, 0.6), 50)) for seed in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.processes
def test_tasks_import_without_torch() -> None:
    code = "import sys, tasks; tasks.build_task('countdown').problems('test'); "
    code += "print({'torch', 'numpy'} & set(sys.modules))"
    assert run_python("-c", code, cwd=REPOSITORY).stdout.strip() == "set()"
