"""End tokens: of a model's folder, in its chat template, in engines and in judged texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny import EOS, build, generate
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import tasks
from harness.base.errors import UserError
from harness.methods.batch import Rollout
from harness.rollout.embedded import EmbeddedEngine
from harness.rollout.ends import end_tokens
from harness.rollout.rendering import Chat
from harness.verify.background import judge_rollouts
from harness.verify.pool import VerifierPool

SPECIAL = ("<|text|>", "<|turn|>", "<|more|>")
TEXT, TURN, MORE = 256, 257, 258
WRITES_TURN = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tokenizer(eos: str | None = "<|text|>", template: str | None = None) -> PreTrainedTokenizerFast:
    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({sign: number for number, sign in enumerate([*signs, *SPECIAL])}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([*SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=eos, chat_template=template)


def folder_with(path: Path, eos: Any) -> Path:
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    return path


@pytest.mark.parametrize(
    ("eos", "named", "ends"),
    [
        ("<|text|>", None, (TEXT,)),
        ("<|text|>", TEXT, (TEXT,)),
        ("<|turn|>", [TEXT, TURN], (TURN, TEXT)),  # the tokenizer's first
        ("<|text|>", [TURN, MORE], (TEXT, TURN, MORE)),
        (None, TURN, (TURN,)),
        ("<|text|>", "<|turn|>", (TEXT,)),
    ],
)
def test_end_tokens_of_a_folder(eos: str | None, named: Any, ends: tuple[int, ...], tmp_path: Path) -> None:
    assert end_tokens(tokenizer(eos), folder_with(tmp_path, named)) == ends


def test_a_folder_without_settings_of_generation(tmp_path: Path) -> None:
    assert end_tokens(tokenizer(), tmp_path) == (TEXT,)


def test_a_model_without_end_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^no token ends a response of the model .*; correct eos_token there, or name"):
        end_tokens(tokenizer(eos=None), folder_with(tmp_path, None))
    assert end_tokens(tokenizer(eos=None), tmp_path, Chat(end_tokens=["<|more|>"])) == (MORE,)


def test_a_template_that_writes_no_end_token_is_refused(tmp_path: Path) -> None:
    lying = tokenizer(template=WRITES_TURN)
    sentence = r"^the chat template of .* writes '<\|turn\|>\\n' after an answer, .* end with <\|text\|>; correct"
    with pytest.raises(UserError, match=sentence):
        end_tokens(lying, tmp_path)
    assert end_tokens(lying, tmp_path, Chat(template="")) == (TEXT,)
    assert end_tokens(lying, tmp_path, Chat(end_tokens=["<|text|>", "<|turn|>"])) == (TEXT, TURN)
    assert end_tokens(lying, folder_with(tmp_path, [TEXT, TURN])) == (TEXT, TURN)


def test_a_template_of_prompts_alone_says_nothing_about_ends(tmp_path: Path) -> None:
    assert end_tokens(tokenizer(template="{{ messages[0]['content'] }}"), tmp_path) == (TEXT,)


def test_an_end_token_that_the_model_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^end_tokens has '<\|stop\|>', which is no token of the model$"):
        end_tokens(tokenizer(), tmp_path, Chat(end_tokens=["<|stop|>"]))


@pytest.mark.parametrize("further", [[], [11], [11, 40, 7]])
def test_a_response_ends_with_the_first_of_several_tokens(further: Sequence[int]) -> None:
    """Up to there, it is the response without further end tokens."""
    model = build("qwen2-tied")

    def sampled(ends: Sequence[int]) -> list[list[Rollout]]:
        engine = EmbeddedEngine(ends)
        engine.load(model)
        return generate(engine, n=40, length=24)

    ends = [EOS, *further]
    cut = 0
    for long, short in zip(sampled([EOS]), sampled(ends), strict=True):
        for before, after in zip(long, short, strict=True):
            length = next((place + 1 for place, token in enumerate(before.response) if token in ends), None)
            assert after.response == before.response[:length]
            assert after.logp == pytest.approx(before.logp[:length], abs=1e-5)
            assert after.finished == (length is not None)
            assert after.finished or len(after.response) == 24
            cut += length is not None and before.response[length - 1] != EOS
    assert bool(cut) == bool(further)


def test_a_text_is_judged_without_its_end_token() -> None:
    coder = tokenizer()
    problems = [tasks.Problem("p", "", "5"), tasks.Problem("q", "", "5")]
    text = coder(r"\boxed{5}")["input_ids"]
    group = [Rollout([1], [*text, end], [], True) for end in (TEXT, TURN, MORE)]
    cut_off = [Rollout([1], [*text, TURN], [], False)]  # so that the token is one of its text
    with VerifierPool(1) as verifier:
        judged = judge_rollouts(tasks.build_task("math500"), verifier, coder, problems, {0: group, 1: cut_off})
    texts = {number: [each.text for each in of_group] for number, of_group in judged.items()}
    assert texts == {0: [r"\boxed{5}"] * 3, 1: [r"\boxed{5}<|turn|>"]}
    assert [each.answer_tokens for each in (*judged[0], *judged[1])] == [len(text)] * 4
