"""The task rg: environments of reasoning-gym, their refusals, splits and verdicts."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from portions import one_in

from harness.base.errors import UserError
from harness.base.task import SPLITS, Answer, Verdict
from harness.verify.pool import VerifierPool
from tasks.rg import LONGEST, REFUSED, Rg, questions, tagged_answer

INSTALLED = find_spec("reasoning_gym") is not None
needs_package = pytest.mark.skipif(not INSTALLED, reason="needs reasoning-gym: pip install -e '.[reasoning]'")

# An environment that accepts one of these for most problems would reward a model that always says it.
TRIVIAL = ["0", "1", "-1", "{}", "[]", "()", "None", "True", "False", "yes", "no", "a", '{"0": 1}']
PROBLEMS = 12


def test_without_the_package_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    questions.cache_clear()
    with pytest.raises(UserError, match=r"task rg needs the package reasoning-gym: pip install -e '.\[reasoning\]'$"):
        Rg().problems("test")


@pytest.mark.parametrize(
    ("response", "text", "rest"),
    [
        ("<answer>4</answer>", "4", ""),
        ("so <answer>4</answer>, no: <answer> 5\n6 </answer>.", "5\n6", "."),
        ("<answer></answer>", None, ""),
        (f"<answer>{'9' * LONGEST}</answer> ", "9" * LONGEST, " "),
        (f"<answer>{'9' * (LONGEST + 1)}</answer>", None, ""),
    ],
)
def test_tagged_answer_of_the_last_tags(response: str, text: str | None, rest: str) -> None:
    assert tagged_answer(response) == Answer(text, len(response) - len(rest))


@pytest.mark.parametrize("response", ["", "4", "<answer>4", "4</answer>", "</answer><answer>"])
def test_tagged_answer_without_both_tags(response: str) -> None:
    assert tagged_answer(response) is None


@needs_package
@pytest.mark.long
@pytest.mark.processes
def test_splits_share_no_question_and_are_the_same_in_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its questions depend on Python's hash seed.
    task = Rg(env="word_ladder", size=80)
    by_split = {split: task.problems(split) for split in SPLITS}
    prompts = [problem.prompt for problems in by_split.values() for problem in problems]
    assert len(set(prompts)) == len(prompts) == 80
    questions.cache_clear()
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert {split: task.problems(split) for split in SPLITS} == by_split


@needs_package
@pytest.mark.long
@pytest.mark.processes
def test_many_right_answers_and_only_a_full_score_is_right() -> None:
    coloring, sums = Rg(size=12), Rg(env="chain_sum", size=12)
    problem, total = coloring.problems("train")[0], sums.problems("train")[0]
    text = problem.prompt
    edges = json.loads(text.split("Edges: ")[1].split("\n")[0].replace("(", "[").replace(")", "]"))
    colors: dict[int, int] = {}
    for node in range(10):
        near = {colors.get(b if a == node else a) for a, b in edges if node in (a, b)}
        colors[node] = min({1, 2, 3} - near)
    other = {node: {1: 2, 2: 1, 3: 3}[color] for node, color in colors.items()}
    same = dict.fromkeys(range(10), 1)
    value = eval(total.prompt.split(": ")[1].split(" =")[0])
    with VerifierPool(workers=1) as verifier:
        responses = [f"<answer>{json.dumps(answer)}</answer>" for answer in (colors, other, same)]
        verdicts = coloring.verdicts([(problem, answer) for answer in (*responses, json.dumps(colors))], verifier)
        assert verdicts == [Verdict.RIGHT, Verdict.RIGHT, Verdict.WRONG, Verdict.UNPARSED]
        # The function gives a part of the score to a text that contains the answer.
        boxed = [f"<answer>{value}</answer>", f"<answer>it is {value}</answer>", f"<answer>{value + 1}</answer>"]
        verdicts = sums.verdicts([(total, answer) for answer in boxed], verifier)
        assert verdicts == [Verdict.RIGHT, Verdict.WRONG, Verdict.WRONG]


@needs_package
@pytest.mark.processes
def test_rg_refuses_an_unknown_environment() -> None:
    with pytest.raises(UserError, match=r"^rg.env=wordladder makes no problems: .* did you mean 'word_ladder'\?$"):
        Rg(env="wordladder").problems("test")


class Slow(Exception):
    """An environment that takes too long."""


@pytest.fixture
def patience() -> Iterator[None]:
    """Raise Slow after a minute."""

    def late(number: int, frame: FrameType | None) -> None:
        raise Slow

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def environments() -> list[Any]:
    """The allowed environments."""
    if not INSTALLED:
        return ["all"]
    from reasoning_gym.factory import DATASETS

    return one_in(12, sorted(DATASETS.keys() - REFUSED.keys()))


def full_scores(made: Any, entries: list[Any], answers: list[str | None]) -> int:
    count = 0
    for entry, answer in zip(entries, answers, strict=True):
        try:
            count += answer is not None and made.score_answer(answer, entry) >= 1
        except Slow:
            raise
        except Exception:  # the judge calls such an answer unparsed
            continue
    return count


@needs_package
@pytest.mark.slow
@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("env", environments())
def test_full_scores_of_environments(env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import reasoning_gym

    monkeypatch.chdir(tmp_path)
    made = reasoning_gym.create_dataset(env, seed=5, size=PROBLEMS)
    entries = [made[place] for place in range(PROBLEMS)]
    golds = [entry["answer"] for entry in entries]
    for text in TRIVIAL:
        same = sum(gold == text for gold in golds)  # of two possible answers each is right half of the time
        assert full_scores(made, entries, [text] * PROBLEMS) <= max(same, PROBLEMS // 4), text
    assert full_scores(made, entries, golds) == sum(gold is not None for gold in golds)
