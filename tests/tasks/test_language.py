"""Checks the language tasks: verdicts against brute force, answers, refused tricks, splits, and worked examples."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections import Counter
from itertools import combinations, permutations
from pathlib import Path
from unittest import mock

import pytest
from known import known
from lm_eval.tasks import TaskManager
from places import REPOSITORY
from trainers import SHORT, asked, sampled

import tasks
from harness import config
from harness.base.task import SPLITS, Answer, Countable, Problem, Relabeling, Solving, Verdict
from harness.matrix import Cell
from harness.rollout.rendering import Chat, render_prompt
from harness.train import parts
from harness.train.trainer import Trainer
from harness.verify.pool import VerifierPool
from tasks.language import LanguageTask
from tasks.lists import Lists, allowed_members, conditions, members_of, split_names
from tasks.lists.members import KINDS
from tasks.sentences import FUNCTION, NUMBERS, Sentences, stem, worked_sentences
from tasks.sentences.words import WORDS
from tasks.sorting import Sorting

RIGHT, WRONG, UNPARSED = Verdict.RIGHT, Verdict.WRONG, Verdict.UNPARSED
DEFAULTS: list[LanguageTask] = [Lists(), Sentences(), Sorting()]
OTHERS = [
    Lists(letters="both", shots=0),
    Lists(letters="with", least=1, most=2, shots=8),
    Lists(least=5, most=6),
    Sentences(least=3, most=10, shots=8),
    Sentences(least=6, most=6, shots=8),
    Sorting(count=5, shots=1),
    Sorting(count=10, largest=20, shots=8),
]


def verdict_and_text(task: LanguageTask, key: str, response: str) -> tuple[Verdict, str | None]:
    problem = Problem(key, task.prompt(key), key)
    [verdict], [answer] = task.verdicts([(problem, response)], None), task.answers([(problem, response)])  # type: ignore[arg-type]
    return verdict, None if answer is None else answer.text


# Problems


@pytest.mark.parametrize("task", [*DEFAULTS, *OTHERS], ids=str)
def test_splits_are_apart_and_the_eight_right_examples_are_in_none(task: LanguageTask) -> None:
    ids = {split: [problem.id for problem in task.problems(split)] for split in SPLITS}
    every = [name for names in ids.values() for name in names]
    assert len(every) == len(set(every))
    examples = dict(task.examples())
    assert [verdict_and_text(task, *example)[0] for example in examples.items()] == [RIGHT] * 8
    assert not set(examples) & set(every)
    shots = tuple((task.prompt(key), response) for key, response in examples.items())[: task.shots]
    for split in SPLITS:
        assert {problem.shots for problem in task.problems(split)} == {shots}
    # The number of shots changes no problem.
    bare = dataclasses.replace(task, shots=0)
    assert {split: [problem.id for problem in bare.problems(split)] for split in SPLITS} == ids


@pytest.mark.parametrize("task", [task for task in (*DEFAULTS, *OTHERS) if isinstance(task, Solving)], ids=str)
def test_solutions_are_right(task: LanguageTask) -> None:
    assert isinstance(task, Solving)
    for split in SPLITS:
        for problem in task.problems(split):
            assert task.verdict(problem, task.solution(problem, random.Random(problem.id))) == RIGHT


@pytest.mark.parametrize(
    ("task", "key", "response", "solved"),
    [
        (Lists(), "2 without b fruits", "apple, pear, fig.", "3 without b fruits"),
        (Lists(letters="both"), "2 with p fruits", "pear", "1 with p fruits"),
        (Sentences(), "4 river", "The river is very deep.", "5 river"),
        (Sentences(), "4 river", "The River, it is very deep!", "6 river"),
    ],
)
def test_hindsight_of_another_length(task: Relabeling, key: str, response: str, solved: str) -> None:
    assert isinstance(task, LanguageTask)
    problem = task.problem(key, (("1+1", "2"),))
    assert task.verdict(problem, response) == WRONG
    other = task.hindsight(problem, response)
    assert other == Problem(solved, task.prompt(solved), solved, problem.shots)
    assert task.verdict(other, response) == RIGHT


@pytest.mark.parametrize("task", [Lists(), Sentences()], ids=str)
def test_hindsight_of_an_unreadable_response(task: LanguageTask) -> None:
    assert isinstance(task, Relabeling)
    for problem in task.problems("train")[:50]:
        other = task.hindsight(problem, "1. no 2. answer")
        assert task.verdict(known(other), "1. no 2. answer") != RIGHT


@pytest.mark.parametrize("task", DEFAULTS, ids=str)
def test_splits_are_large_enough(task: LanguageTask) -> None:
    sizes = {split: len(task.problems(split)) for split in SPLITS}
    assert 750 < sizes["train"] < 1100
    assert min(sizes["validation"], sizes["test"]) >= 128
    prompts = [problem.prompt for split in SPLITS for problem in task.problems(split)]
    assert len(prompts) == len(set(prompts))


def subject(task: LanguageTask, key: str) -> str:
    """Return what a problem is about, whatever the options: a word, a condition, or numbers."""
    return key if isinstance(task, Sorting) else key.split(" ", 1)[1]


def test_problems_keep_their_split_with_options() -> None:
    splits: dict[str, set[str]] = {}
    for task in [*DEFAULTS, *OTHERS]:
        for split in SPLITS:
            for problem in task.problems(split):
                splits.setdefault(f"{task.name} {subject(task, problem.id)}", set()).add(split)
        for key, _ in task.examples():
            splits.setdefault(f"{task.name} {subject(task, key)}", set()).add("train")
    assert {len(found) for found in splits.values()} == {1}


def test_problems_stay_the_same() -> None:
    first = {task.name: [(p.id, p.prompt) for p in task.problems("test")[:2]] for task in DEFAULTS}
    assert first == {
        "lists": [
            ("4 without b drinks", 'Write 4 different drinks that do not start with "b".'),
            ("2 without o flowers", 'Write 2 different flowers that do not start with "o".'),
        ],
        "sentences": [
            ("6 bottle", "Write a sentence of exactly 6 words with the word bottle."),
            ("4 bottle", "Write a sentence of exactly 4 words with the word bottle."),
        ],
        "sorting": [
            ("4, 24, 30", "Sort these numbers from smallest to largest: 30, 24, 4"),
            ("27, 45, 68", "Sort these numbers from smallest to largest: 68, 27, 45"),
        ],
    }


# Lists


WITHOUT_B, WITH_S = "3 without b fruits", "2 with s animals"


@pytest.mark.parametrize(
    ("key", "response", "verdict", "text"),
    [
        (WITHOUT_B, "apple, pear, cherry.", RIGHT, "apple, cherry, pear"),
        (WITHOUT_B, " Cherries, an Apple and pears", RIGHT, "apple, cherry, pear"),
        (WITHOUT_B, "apple,pear, and the cherry", RIGHT, "apple, cherry, pear"),
        (WITHOUT_B, "apple and pear and cherry", RIGHT, "apple, cherry, pear"),
        (WITHOUT_B, "apple, pear", WRONG, "apple, pear"),
        (WITHOUT_B, "apple, pear, cherry, plum", WRONG, "apple, cherry, pear, plum"),
        (WITHOUT_B, "apple, pear, apples", WRONG, "apple, apple, pear"),
        (WITHOUT_B, "apple, pear, banana", WRONG, "apple, banana, pear"),
        (WITHOUT_B, "apple, pear, hammer", WRONG, "apple, hammer, pear"),
        (WITHOUT_B, "apple, kiwi, kiwifruit", WRONG, "apple, kiwi, kiwi"),
        (WITHOUT_B, "apple pear cherry", WRONG, "apple pear cherry"),
        (WITHOUT_B, "aaa, bbb, ccc", WRONG, "aaa, bbb, ccc"),
        (WITHOUT_B, "apple, pear, cherry\nplum", UNPARSED, None),
        (WITHOUT_B, "apple, pear, cherry. These are fruits.", UNPARSED, None),
        (WITHOUT_B, "apple, pear, cherry ", UNPARSED, None),
        (WITHOUT_B, "  apple, pear, cherry", UNPARSED, None),
        (WITHOUT_B, "apple, pear, cherry,", UNPARSED, None),
        (WITHOUT_B, "apple, pear, and", WRONG, "and, apple, pear"),
        (WITHOUT_B, "1. apple 2. pear 3. cherry", UNPARSED, None),
        (WITHOUT_B, "apple, pear, cherry\u200b", UNPARSED, None),
        (WITHOUT_B, "apple, pear, cherry\u82b1", UNPARSED, None),
        (WITHOUT_B, "", UNPARSED, None),
        (WITHOUT_B, "...", UNPARSED, None),
        (WITHOUT_B, "apple, " * 10_000, UNPARSED, None),
        (WITH_S, "snake, sheep", RIGHT, "sheep, snake"),
        (WITH_S, "a snail, horse", WRONG, "horse, snail"),
        # The letter is that of the name as it is written; the member is the same.
        ("1 without e vegetables", "aubergines", RIGHT, "eggplant"),
        ("1 without a vegetables", "aubergine", WRONG, "eggplant"),
        ("1 with a vegetables", "aubergine", RIGHT, "eggplant"),
        ("1 without e countries", "Trinidad and Tobago", RIGHT, "trinidad and tobago"),
        ("1 without e countries", "C\u00f4te d\u2019Ivoire", RIGHT, "ivory coast"),
        ("2 without e animals", "geese, a mouse", RIGHT, "goose, mouse"),
    ],
)
def test_lists_verdicts(key: str, response: str, verdict: Verdict, text: str | None) -> None:
    assert verdict_and_text(Lists(), key, response) == (verdict, text)


@pytest.mark.parametrize(
    ("task", "key", "answer", "rest"),
    [
        (Lists(), WITHOUT_B, "apple, pear, cherry.", " These are fruits."),
        (Lists(), WITHOUT_B, "apple, pear", "\n\n1. cherry"),
        (Sentences(), "5 dog", "The dog is very old.", " It sleeps."),
    ],
)
def test_text_after_an_answer_is_seen(task: LanguageTask, key: str, answer: str, rest: str) -> None:
    assert task.read(key, answer + rest) == Answer(None, len(answer))


def test_lists_solutions_are_those_of_the_enumeration() -> None:
    """Every choice of names of a small category is judged; the distinct right answers are as many as counted."""
    task = Lists(letters="both")
    assert isinstance(task, Countable)
    rng = random.Random(0)
    for key in ("2 without b fruits", "2 with p fruits", "1 without e vegetables", "2 with c musical instruments"):
        problem = Problem(key, task.prompt(key), key)
        kind, count = key.split(" ", 3)[3], int(key[0])
        names = [name for entry in re.split(r",\s*", KINDS[kind].strip()) for name in entry.split("=")]
        right = set()
        for chosen in combinations(names, count):
            response = ", ".join(rng.sample(chosen, count))
            if task.verdict(problem, response) == RIGHT:
                answer = task.read(key, response)
                right.add(known(answer).text)
        assert len(right) == task.solutions(problem)


def test_lists_can_be_solved() -> None:
    for task in (Lists(), Lists(letters="both", least=1, most=6)):
        for split in SPLITS:
            assert min(task.solutions(problem) for problem in task.problems(split)) > 1


def test_names_belong_to_one_member() -> None:
    for kind, text in KINDS.items():
        names = [name.strip() for entry in text.replace("\n", " ").split(",") for name in entry.split("=")]
        assert [name for name, times in Counter(names).items() if times > 1] == []
        assert len(set(members_of(kind).values())) >= 60
        for name in names:
            assert split_names(name, kind) == (name.removeprefix("the "),)
    assert len(conditions("without")) == len(set(conditions("without")))
    assert "eggplant" in allowed_members("without", "e", "vegetables")
    assert "apple" not in allowed_members("without", "a", "fruits")


# Sentences


@pytest.mark.parametrize(
    ("key", "response", "verdict", "text"),
    [
        ("5 dog", "The dog is very old.", RIGHT, "the dog is very old"),
        ("5 dog", " Is the DOG very old?", RIGHT, "is the dog very old"),
        ("5 dog", "Well, the dog is old!", RIGHT, "well the dog is old"),
        ("6 dog", "My brother\u2019s dog can\u2019t swim well.", RIGHT, "my brother's dog can't swim well"),
        ("10 dog", "The dog saw the cat and ran to our house.", RIGHT, "the dog saw the cat and ran to our house"),
        ("5 dog", "The dog is old.", WRONG, "the dog is old"),
        ("5 dog", "The dog is very very old.", WRONG, "the dog is very very old"),
        ("5 dog", "The cat is very old.", WRONG, "the cat is very old"),
        ("5 dog", "The dogs are very old.", WRONG, "the dogs are very old"),
        ("5 dog", "The dog is very old", UNPARSED, None),
        ("5 dog", "The dog is very old. It sleeps.", UNPARSED, None),
        ("5 dog", "The dog is very old.\n", UNPARSED, None),
        ("5 dog", "The dog is very old..", UNPARSED, None),
        ("5 dog", "The dog is very old .", UNPARSED, None),
        ("5 dog", "The  dog is very old.", UNPARSED, None),
        ("5 dog", '"The dog is very old."', UNPARSED, None),
        ("5 dog", "The dog is 9 years.", UNPARSED, None),
        ("5 dog", "Der alte Hund ist gr\u00fcn.", UNPARSED, None),
        ("5 dog", "", UNPARSED, None),
        ("5 dog", ".", UNPARSED, None),
    ],
)
def test_sentences_verdicts(key: str, response: str, verdict: Verdict, text: str | None) -> None:
    assert verdict_and_text(Sentences(), key, response) == (verdict, text)


@pytest.mark.parametrize(
    "response",
    [
        "Dog dog dog dog dog.",
        "The dog the dog the.",
        "The the dog a a.",
        "The dog dogs dogged dogging.",
        "The dog very very good.",
        "Dog, cat, cow, horse, the.",
        "Dog cat cow horse sheep.",
        "One two three dog the.",
        "The dog bcd fgh jkl.",
        "The dog x y z.",
        "The dog aaa eee ooo.",
        "The dog is good-good good.",
        "The word is dog today.",
        "This sentence has a dog.",
        "The dog is reallyreallyreally old.",
        "The old dog is older.",
    ],
)
def test_mechanical_sentences_are_refused(response: str) -> None:
    """Each has five words with the given one, and no language."""
    assert verdict_and_text(Sentences(), "5 dog", response)[0] == WRONG


def test_forms_of_a_word_have_one_stem() -> None:
    families = ["run runs running runner", "bake bakes baked baking baker", "quick quickly quicker quickest"]
    families += ["dress dresses dressed", "baby babies", "carry carried carries", "build building builds builder"]
    stems = [{stem(word) for word in family.split()} for family in families]
    assert [len(found) for found in stems] == [1] * len(families)
    assert len(set.union(*stems)) == len(families)
    assert [stem(word) for word in ("sing", "king", "bus", "red")] == ["sing", "king", "bus", "red"]


def test_words_of_problems_can_be_used() -> None:
    words = WORDS.split()
    assert len(words) == len(set(words)) > 250
    assert not set(words) & (FUNCTION | NUMBERS)
    for word in words:
        assert verdict_and_text(Sentences(), f"4 {word}", f"This is our {word}.")[0] == RIGHT
    marked = [re.findall(r"\*(\w+)\*", line) for count in range(3, 11) for line in worked_sentences(count)]
    assert len(marked) == 64
    assert not set(words) & {word for (word,) in marked}


# Sorting


@pytest.mark.parametrize(
    ("response", "verdict", "text"),
    [
        ("7, 19, 42", RIGHT, "7, 19, 42"),
        (" 7 19 42.", RIGHT, "7, 19, 42"),
        ("7, 19 and 042", RIGHT, "7, 19, 42"),
        ("7,19, and 42", RIGHT, "7, 19, 42"),
        ("42, 19, 7", WRONG, "42, 19, 7"),
        ("7, 19", WRONG, "7, 19"),
        ("7, 19, 42, 42", WRONG, "7, 19, 42, 42"),
        ("71942", WRONG, "71942"),
        ("7, 19, 42, ", UNPARSED, None),
        ("7, 19, 42\n", UNPARSED, None),
        ("7, 19, 42 is the order", UNPARSED, None),
        ("7 < 19 < 42", UNPARSED, None),
        ("Sure: 7, 19, 42", UNPARSED, None),
        ("\u0667, 19, 42", UNPARSED, None),
        ("", UNPARSED, None),
    ],
)
def test_sorting_verdicts(response: str, verdict: Verdict, text: str | None) -> None:
    assert verdict_and_text(Sorting(), "7, 19, 42", response) == (verdict, text)


@pytest.mark.parametrize("task", [Sorting(), Sorting(count=4)], ids=str)
def test_sorting_has_one_answer(task: Sorting) -> None:
    for problem in task.problems("test")[:40]:
        shown = re.findall(r"\d+", problem.prompt)
        right = [o for o in permutations(shown) if task.verdict(problem, ", ".join(o)) == RIGHT]
        assert right == [tuple(sorted(shown, key=int))]
        assert task.solutions(problem) == 1
        assert shown != list(right[0])  # copying is no answer


def test_examples_of_sorting_show_different_orders() -> None:
    orders = set()
    for prompt, _ in Sorting().problems("test")[0].shots:
        numbers = [int(digits) for digits in re.findall(r"\d+", prompt)]
        orders.add(tuple(sorted(range(3), key=numbers.__getitem__)))
    assert len(orders) == 4


# Prompts


@pytest.mark.parametrize("task", DEFAULTS, ids=str)
@pytest.mark.parametrize("templated", [True, False])
def test_lm_evals_own_command_shows_the_same_prompts(task: LanguageTask, templated: bool) -> None:
    """Its file alone gives the examples; in a chat template they are turns."""
    folder = Path(tasks.__file__).parent
    loaded = TaskManager(include_path=folder, include_defaults=False).load([task.name])["tasks"][task.name]
    problem = task.problems("test")[0]
    doc = loaded.test_docs()[0]
    assert doc["id"] == problem.id

    def rendered(messages: list[dict[str, str]], **_: bool) -> str:
        return repr([(message["role"], message["content"]) for message in messages])

    context = loaded.fewshot_context(
        doc,
        loaded.config.num_fewshot,
        apply_chat_template=templated,
        fewshot_as_multiturn=templated,
        chat_template=rendered,
    )
    if templated:
        turns = [turn for prompt, response in problem.shots for turn in (("user", prompt), ("assistant", response))]
        assert context == repr([*turns, ("user", problem.prompt)])
    else:
        assert render_prompt(Spelling(), problem, Chat(template="")) == list(map(ord, context))


class Spelling:
    """A tokenizer whose tokens are characters."""

    def __call__(self, text: str, **_: bool) -> dict[str, list[int]]:
        return {"input_ids": list(map(ord, text))}


@pytest.mark.slow
def test_training_and_evaluation_ask_with_the_worked_examples(tmp_path: Path) -> None:
    overrides = [*SHORT, "tasks=[sorting]", "eval.problems=2", "models=[countdown-tiny]"]
    planned = Cell.of(config.load_config("demo", overrides), "grpo", "sorting", "countdown-tiny", seed=0)
    trainer = Trainer(parts.build_parts(planned.spec, VerifierPool()), tmp_path)
    trainer.engine.load(trainer.policy.module)
    with mock.patch.object(trainer.engine, "generate", wraps=trainer.engine.generate) as generate:
        sampled(trainer, 1)
        trainer.evaluate(0)
    calls = [call.args[0] for call in generate.call_args_list]
    problems = asked(trainer, 1), Sorting().problems("test")[:2]
    assert all(len(problem.shots) == 4 for of_call in problems for problem in of_call)
    assert calls == [[render_prompt(trainer.parts.tokenizer, problem) for problem in of_call] for of_call in problems]
    [line, _] = (tmp_path / "samples" / "evaluate-sorting-000000.jsonl").read_text().splitlines()
    assert json.loads(line)["shots"] == [list(shot) for shot in problems[1][0].shots]


# Documentation


PAGE = (REPOSITORY / "docs" / "language-tasks.md").read_text()


@pytest.mark.parametrize(("name", "key"), [("lists", WITHOUT_B), ("sentences", "5 dog"), ("sorting", "7, 19, 42")])
def test_the_page_has_the_prompts_verdicts_and_numbers_of_problems(name: str, key: str) -> None:
    task = tasks.build_task(name)
    assert isinstance(task, LanguageTask)
    shown, options, *_ = [line.split(" | ")[1:] for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]
    columns = [re.findall(r"`([^`]+)`", cell) for cell in shown]
    if name != "sorting":  # whose order depends on the key
        assert columns[0] == [task.prompt(key)]
    for verdict, responses in zip((RIGHT, WRONG, UNPARSED), columns[1:], strict=True):
        assert len(responses) >= 2
        assert {verdict_and_text(task, key, response)[0] for response in responses} == {verdict}
    assert options[1] == ", ".join(str(len(task.problems(split))) for split in SPLITS)
