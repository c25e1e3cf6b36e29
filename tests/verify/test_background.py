"""Tokens up to the end of an answer, against decoding every prefix of a response."""

from __future__ import annotations

import random

import pytest
from tokenizers.pre_tokenizers import ByteLevel
from transformers import Qwen2Tokenizer

from harness.batch import Rollout
from harness.verify.background import judge_rollouts, tail_tokens
from harness.verify.pool import VerifierPool
from tasks import Problem, base_model, build_task
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
def test_a_tail_is_all_tokens_without_a_part_of_the_answer(name: str) -> None:
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
def test_the_answer_ends_with_the_token_that_closes_its_box(text: str, tokens: int) -> None:
    tokenizer, problem = TOKENIZERS["merges"], Problem("p", "", "5")
    for end in ("", "<eos>"):
        rollout = Rollout([1], tokenizer(text + end)["input_ids"], [], finished=bool(end))
        with VerifierPool(1) as verifier:
            [found] = judge_rollouts(build_task("math500"), verifier, tokenizer, [problem], {0: [rollout]})
        assert found.text == text
        without_answer = found.judged.answer is None
        assert found.answer_tokens == tokens + (without_answer and bool(end))
