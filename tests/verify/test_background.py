"""Tokens up to the end of an answer, against decoding every prefix of a response."""

from __future__ import annotations

import random

import pytest
from tokenizers.pre_tokenizers import ByteLevel
from transformers import Qwen2Tokenizer

from harness.methods.batch import Rollout
from harness.verify.background import judge_rollouts, tail_tokens
from harness.verify.pool import VerifierPool
from tasks import Problem, base_model, build_task
from tasks.countdown import Countdown
from tasks.countdown.recipe import CountdownRecipe


def merging() -> Qwen2Tokenizer:
    """Return a byte-level tokenizer in which tokens join the end of a box and the text after it, and split letters."""
    vocabulary = {letter: place for place, letter in enumerate(sorted(ByteLevel.alphabet()))}
    merges = [("}", "."), ("}.", "$"), ("Ã", "©"), ("Ġ", "o"), ("Ġo", "k")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    return Qwen2Tokenizer(vocabulary, merges=merges, unk_token=None, eos_token="<eos>", pad_token="<pad>")


TOKENIZERS = {"characters": base_model.tokenizer(CountdownRecipe()), "merges": merging()}
PIECES = {
    "characters": ["\\boxed{", "}", "12", "3", "+", " ", "<pad>"],
    "merges": ["\\boxed{", "}", "12", "3", ".", "$", " ok", " ", "é", "🙂", "<pad>"],
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tail_tokens(name: str) -> None:
    """By brute force, in bytes: the answer needs the first tokens that hold as many bytes as it has."""
    rng, tokenizer = random.Random(0), TOKENIZERS[name]
    joint = 0
    for _ in range(300):
        text = "".join(rng.choices(PIECES[name], k=rng.randint(1, 40)))
        tokens = tokenizer(text)["input_ids"]
        assert tokenizer.decode(tokens) == text
        sizes = [len(token) for token in tokenizer.convert_ids_to_tokens(tokens)]  # one letter for each byte
        for end in rng.sample(range(len(text) + 1), min(len(text), 5)):
            wanted = len(text[:end].encode())
            needed = next(number for number in range(len(tokens) + 1) if sum(sizes[:number]) >= wanted)
            assert tail_tokens(tokenizer, tokens, text[end:]) == len(tokens) - needed, (text, end)
            joint += sum(sizes[:needed]) > wanted
    assert joint > 100, "tokens hold parts of both"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (r"\boxed{5}", 9),
        (r"\boxed{5}. So", 9),  # "}." is one token, which ends the answer
        (r"\boxed{5}.$", 9),
        (r"\boxed{5} ok ok", 9),
        (r"\boxed{5} \boxed{12}.", 20),
        (r"\boxed{5} \boxed{12", 9),  # the last complete box
        ("12 ok", 3),  # without an answer all count
    ],
)
def test_judge_rollouts_answer_end(text: str, tokens: int) -> None:
    tokenizer, problem = TOKENIZERS["merges"], Problem("p", "", "5")
    for end in ("", "<eos>"):
        rollout = Rollout([1], tokenizer(text + end)["input_ids"], [], finished=bool(end))
        with VerifierPool(1) as verifier:
            [judged] = judge_rollouts(build_task("math500"), verifier, tokenizer, [problem], {0: [rollout]})[0]
        assert judged.text == text
        without_answer = judged.judged.answer is None
        assert judged.answer_tokens == tokens + (without_answer and bool(end))


def test_equal_responses_to_a_problem_are_judged_once() -> None:
    """Two problems with responses in common, against a judgment of each response alone."""
    task, tokenizer = Countdown(), TOKENIZERS["characters"]
    problems = task.problems("train")[:2]
    texts = [r"\boxed{1+2}", r"\boxed{1+2} 3", "", r"\boxed{1+2}", r"\boxed{1+2} 3", r"\boxed{1+2}"]
    groups = {
        number: [Rollout([1], tokenizer(f"{text}<eos>")["input_ids"], [], True) for text in order]
        for number, order in ((1, texts), (0, texts[::-1]))
    }
    seen: list[int] = []

    class Counting(Countdown):
        def verdicts(self, pairs, verifier):  # type: ignore[no-untyped-def]
            seen.append(len(pairs))
            return super().verdicts(pairs, verifier)

    together = judge_rollouts(Counting(), VerifierPool(), tokenizer, problems, groups)
    assert seen == [6], "three texts for each problem"
    for number, group in groups.items():
        for one, rollout in zip(together[number], group, strict=True):
            [other] = judge_rollouts(task, VerifierPool(), tokenizer, problems, {number: [rollout]})[number]
            assert (one.text, one.judged, one.answer_tokens) == (other.text, other.judged, other.answer_tokens)
