import itertools
import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from known import known
from lm_eval.evaluator import evaluate as lm_evaluate
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer

import tasks
from harness.base.errors import UserError
from harness.methods.batch import Rollout
from harness.rollout import models
from harness.rollout.embedded import EmbeddedEngine
from harness.rollout.rendering import render_prompt
from harness.train.evaluate import EngineLM, Evaluation, Evaluator, quiet
from harness.verify.pool import VerifierPool
from tasks import base_model
from tasks.countdown import Countdown, parse_key
from tasks.countdown.recipe import CountdownRecipe
from tasks.scoring import metric_list

pytestmark = pytest.mark.slow

TASK, UNASKED = Countdown(), VerifierPool()
ENCODER = base_model.tokenizer(CountdownRecipe())
SETTINGS: dict[str, Any] = {"split": "test", "problems": 7, "samples": 8, "temperature": 0.7, "max_new_tokens": 12}


def evaluated(
    engine: Any, task: tasks.Task = TASK, seed: int = 3, tokenizer: Any = ENCODER, **changes: Any
) -> Evaluation:
    """Return the evaluation by an engine with some settings changed."""
    result = Evaluator(engine, tokenizer, UNASKED).evaluate(task, seed, **{**SETTINGS, **changes})
    return known(result)


def solutions(problem: tasks.Problem) -> list[str]:
    numbers, target = parse_key(problem.answer)
    texts = (
        form.format(*order, *signs)
        for order in itertools.permutations(numbers)
        for signs in itertools.product("+-*", repeat=2)
        for form in ("({0}{3}{1}){4}{2}", "{0}{3}({1}{4}{2})")
    )
    return [text for text in texts if eval(text) == target]  # only of the texts above


class Canned:
    """An engine that answers from a list: for problem i of the split, its first i samples are right."""

    def __init__(self, task: Countdown, split: str, n: int) -> None:
        self.answers = {
            tuple(ENCODER(problem.prompt)["input_ids"]): [
                "\\boxed{" + solutions(problem)[0] + "}"
                if sample < i
                else ["\\boxed{1+1}", "\\boxed{2", "1"][sample % 3]
                for sample in range(n)
            ]
            for i, problem in enumerate(task.problems(split)[: n + 1])
        }
        self.calls: list[dict[str, Any]] = []

    def load(self, model: Any) -> None:
        raise AssertionError("an evaluation changes no weights")

    def generate(self, prompts: Sequence[Sequence[int]], n: int, **settings: Any) -> list[list[Rollout]]:
        self.calls.append({"prompts": prompts, "n": n, **settings})
        groups = [[self.rollout(list(prompt), text) for text in self.answers[tuple(prompt)][:n]] for prompt in prompts]
        for number in reversed(range(len(groups))):  # in reverse order
            settings["on_group"](number, groups[number])
        return groups

    def rollout(self, prompt: list[int], text: str) -> Rollout:
        finished = text.endswith("}")
        response = ENCODER(text + base_model.END * finished)["input_ids"]
        return Rollout(prompt, response, [0.0] * len(response), finished)


@pytest.fixture
def canned() -> Canned:
    return Canned(TASK, "test", 8)


def test_evaluate_metrics(canned: Canned) -> None:
    result = evaluated(canned)
    asked = TASK.problems("test")[:7]
    assert result.problems == [problem.id for problem in asked]
    assert result.right == [[1] * i + [0] * (8 - i) for i in range(7)]

    wrong = [sample for i in range(7) for sample in range(i, 8)]
    unparsed = sum(sample % 3 != 0 for sample in wrong)
    assert result.verdicts == {"right": 21, "wrong": len(wrong) - unparsed, "unparsed": unparsed}

    for k in (1, 2, 4, 8):
        draws = [any(draw) for row in result.right for draw in itertools.combinations(row, k)]
        assert result.metrics[f"pass@{k}"] == pytest.approx(np.mean(draws), abs=1e-12)
    assert result.metrics["avg"] == pytest.approx(21 / 56, abs=1e-12)
    texts = [canned.answers[tuple(ENCODER(problem.prompt)["input_ids"])] for problem in asked]
    assert result.metrics["truncated"] == pytest.approx(np.mean([not t.endswith("}") for row in texts for t in row]))
    lengths = [len(ENCODER.tokenize(text)) + text.endswith("}") for row in texts for text in row]
    assert result.metrics["length"] == pytest.approx(np.mean(lengths))
    assert result.metrics["distinct"] == pytest.approx(np.mean([len(set(row)) / 8 for row in texts]))
    assert result.metrics["unparsed"] == pytest.approx(unparsed / 56)
    assert result.metrics["characters"] == pytest.approx(np.mean([len(text) for row in texts for text in row]))
    # Of problem i, i responses are right and the same; the first i that are wrong among "1+1" and what has no answer.
    boxes = [Counter(text[7:-1] for text in row if text.endswith("}")) for row in texts]
    leaders = [[text for text, number in box.items() if number == max(box.values())] for box in boxes]
    chances = [(solutions(p)[0] in led) / len(led) for p, led in zip(asked, leaders, strict=True)]
    assert result.metrics["maj@8"] == pytest.approx(np.mean(chances))
    names = "avg pass@1 pass@2 pass@4 pass@8 maj@8 unparsed characters truncated length distinct"
    names += " right_distinct distinct_answers coverage after_answer"
    assert set(result.metrics) == set(names.split())
    # All right responses to a problem are one answer, and none has text after its box.
    assert result.right_distinct == [int(i > 0) for i in range(7)]
    assert result.metrics["right_distinct"] == pytest.approx(6 / 7)
    shares = [int(i > 0) / count for i, count in enumerate(known(result.solutions))]
    assert result.metrics["coverage"] == pytest.approx(np.mean(shares))
    answers = [{text[7:-1] for text in row if text.endswith("}")} for row in texts]
    assert result.metrics["distinct_answers"] == pytest.approx(np.mean([len(unique) / 8 for unique in answers]))
    assert result.metrics["after_answer"] == 0

    for sample, problem, row in zip(result.samples, asked, texts, strict=True):
        assert (sample["problem"], sample["prompt"], sample["responses"]) == (problem.id, problem.prompt, row)
        assert sample["verdicts"] == [str(TASK.verdict(problem, text)) for text in row]


def test_equal_responses_are_decoded_and_judged_once(canned: Canned, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[tuple[tasks.Problem, str]] = []

    def verdicts(
        task: Countdown, pairs: list[tuple[tasks.Problem, str]], verifier: tasks.Verifier
    ) -> list[tasks.Verdict]:
        assert verifier is UNASKED
        judged.extend(pairs)
        return [task.verdict(*pair) for pair in pairs]

    decoded: list[tuple[int, ...]] = []
    encoder = base_model.tokenizer(CountdownRecipe())
    decode = encoder.batch_decode

    def batch_decode(responses: list[tuple[int, ...]], **settings: Any) -> list[str]:
        decoded.extend(responses)
        return decode(responses, **settings)

    monkeypatch.setattr(Countdown, "verdicts", verdicts)
    monkeypatch.setattr(encoder, "batch_decode", batch_decode)
    result = evaluated(canned, tokenizer=encoder)
    once = [list(dict.fromkeys(sample["responses"])) for sample in result.samples]
    assert {len(texts) for texts in once} == {3, 4}  # of 8
    wanted = [(problem, text) for problem, texts in zip(TASK.problems("test")[:7], once, strict=True) for text in texts]
    assert sorted(judged, key=wanted.index) == wanted
    assert decode(decoded, skip_special_tokens=True) == [text for _, text in judged]


def test_repeats_are_one_call_with_what_was_asked(canned: Canned) -> None:
    evaluated(canned)
    (call,) = canned.calls
    assert (call["n"], call["temperature"], call["max_new_tokens"]) == (8, 0.7, 12)
    assert call["prompts"] == [render_prompt(ENCODER, problem) for problem in TASK.problems("test")[:7]]


def test_seeds_depend_on_the_seed_and_the_problem_alone(canned: Canned) -> None:
    def drawn(**changes: Any) -> dict[tuple[int, ...], int]:
        evaluated(canned, **changes)
        call = canned.calls[-1]
        return dict(zip(map(tuple, call["prompts"]), call["seeds"], strict=True))

    reference = drawn()
    assert len(set(reference.values())) == 7
    assert drawn(samples=2, temperature=1.0, max_new_tokens=20) == reference
    few = drawn(problems=3)
    assert few == {prompt: reference[prompt] for prompt in few}
    other = drawn(seed=4)
    assert not set(other.values()) & set(reference.values())
    assert other.keys() == reference.keys()


def test_metrics_go_up_to_the_samples_that_there_are(canned: Canned) -> None:
    result = evaluated(canned, samples=5)
    assert {key for key in result.metrics if key.startswith("pass")} == {"pass@1", "pass@2", "pass@4"}
    assert [len(row) for row in result.right] == [5] * 7


def test_options_of_the_task_and_the_split_reach_the_problems() -> None:
    """All of them, without a number."""
    task = Countdown(largest=5, target=20)
    problems = task.problems("validation")
    engine = Canned(task, "validation", len(problems))
    result = evaluated(engine, task, split="validation", problems=None, samples=4)
    assert result.problems == [problem.id for problem in problems]
    assert result.right == [[1] * min(i, 4) + [0] * max(4 - i, 0) for i in range(len(problems))]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"problems": 337}, r"^problems is 337, but countdown has 336 in its test split"),
        ({"split": "tset"}, r"split is 'tset'; .*did you mean 'test'"),
    ],
)
def test_evaluate_mistakes(changes: dict[str, Any], sentence: str, canned: Canned) -> None:
    with pytest.raises(UserError, match=sentence):
        evaluated(canned, **changes)


def test_evaluate_prints_nothing_and_leaves_random_numbers_alone(
    canned: Canned, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    states = (np.random.get_state(legacy=False)["state"]["key"].tolist(), torch.get_rng_state().tolist())
    evaluated(canned)
    assert (np.random.get_state(legacy=False)["state"]["key"].tolist(), torch.get_rng_state().tolist()) == states
    assert capfd.readouterr() == ("", "")
    assert caplog.messages == []
    with quiet():
        logging.getLogger("lm_eval.api.task").warning("something that matters")
    assert caplog.messages == ["something that matters"]


def test_evaluate_equals_lm_eval() -> None:
    """lm-eval's own command has no overrides, so the file alone must give the results of an evaluation."""
    folder = Path(tasks.__file__).parent
    with quiet():
        loaded = TaskManager(include_path=folder, include_defaults=False).load("countdown")
        task = loaded["tasks"]["countdown"]
        assert task.config.repeats == 32
        assert task.config.metric_list == metric_list(32, countable=True)
        sample = partial(Evaluator(Canned(TASK, "test", 32), ENCODER, UNASKED).sample, TASK, seed=(3,))
        result = lm_evaluate(EngineLM(sample, TASK.problems("test")), loaded, limit=5, bootstrap_iters=0)
    ours = evaluated(Canned(TASK, "test", 32), problems=5, samples=32).metrics
    theirs = {key.removesuffix(",all"): value for key, value in result["results"]["countdown"].items()}
    assert {key: theirs[key] for key in theirs if key in ours} == {
        key: ours[key] for key in ours if key not in ("truncated", "length", "distinct")
    }


def test_evaluate_the_base_model() -> None:
    """Few answers are right, but most problems are solved once in 16: there is diversity to lose."""
    torch.set_num_threads(1)
    folder = models.resolve("countdown-tiny").folder()
    encoder = AutoTokenizer.from_pretrained(folder)
    engine = EmbeddedEngine([encoder.eos_token_id])
    engine.load(AutoModelForCausalLM.from_pretrained(folder))
    settings = {"split": "validation", "samples": 32, "temperature": 1.0, "max_new_tokens": 24, "tokenizer": encoder}
    result = evaluated(engine, seed=0, problems=128, **settings)
    again = evaluated(engine, seed=0, problems=16, **settings)
    assert 0.12 < result.metrics["avg"] < 0.28
    assert result.metrics["pass@16"] > 0.75
    assert result.metrics["truncated"] == 0
    assert 0.4 < result.metrics["distinct"] < 0.8
    assert Counter(result.verdicts)["unparsed"] < 0.02 * 128 * 32
    assert again.samples == result.samples[:16]
