"""Prompts and worked examples in chat templates, which are untrusted programs: as in transformers, in its sandbox."""

from __future__ import annotations

import dataclasses

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from harness.base.errors import UserError
from harness.base.task import Problem
from harness.rollout.rendering import Chat, count_unread, render_prompt
from tasks import base_model
from tasks.countdown.recipe import CountdownRecipe

CHAT = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>\n{{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if thinking %} think{% endif %}{% endif %}"
)
PROBLEM = Problem("p", 'größe 方法 " \\ {{ 3 }}\nof x ', "3")
SHOTS = (("Two of 方?", " 方, 方 "), ("{{ 1 }}?", "1"))


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes, each a token of its own, with a template."""
    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({sign: number for number, sign in enumerate([*signs, "<s>"])}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", chat_template=CHAT, name_or_path="/models/m"
    )


@pytest.mark.parametrize("chat", [Chat(), Chat(system="Be short."), Chat(template_options={"thinking": True})])
def test_render_prompt_has_the_tokens_of_transformers(chat: Chat) -> None:
    ours = tokenizer()
    messages = [{"role": "system", "content": chat.system}] if chat.system else []
    turns = ("user", SHOTS[0][0]), ("assistant", SHOTS[0][1]), ("user", SHOTS[1][0]), ("assistant", SHOTS[1][1])
    for shots, before in (((), ()), (SHOTS, turns)):
        asked = [{"role": role, "content": text} for role, text in (*before, ("user", PROBLEM.prompt))]
        expected = ours.apply_chat_template(
            messages + asked, add_generation_prompt=True, return_dict=False, **chat.template_options
        )
        assert render_prompt(ours, dataclasses.replace(PROBLEM, shots=shots), chat) == expected
        assert len(expected) > 20


@pytest.mark.parametrize(("system", "start"), [(None, ""), ("Be short.", "Be short.\n\n")])
def test_shots_in_plain_text(system: str | None, start: str) -> None:
    problem = dataclasses.replace(PROBLEM, shots=(("1+1=", "2"), ("2+2=", "4")))
    text = f"{start}1+1= 2\n\n2+2= 4\n\n{PROBLEM.prompt}"
    assert render_prompt(tokenizer(), problem, Chat(system=system, template="")) == tokenizer()(text)["input_ids"]


def test_identity_without_shots() -> None:
    assert PROBLEM.identity() == {"id": "p", "prompt": PROBLEM.prompt, "answer": "3"}
    assert dataclasses.replace(PROBLEM, shots=SHOTS).identity()["shots"] == SHOTS


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{{ raise_exception('no system prompt') }}", "TemplateError: no system prompt"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
    ],
)
def test_render_prompt_where_the_template_fails(template: str, sentence: str) -> None:
    with pytest.raises(UserError, match=rf"^the chat template of /models/m cannot render a prompt: .*{sentence}"):
        render_prompt(tokenizer(), PROBLEM, Chat(template=template))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("prompts", "chat", "count"),
    [
        (["1+2", "3"], Chat(), 0),
        (["1+2", "x=3", "abc", "αβγ", "+-*"], Chat(), 3),
        (["x=3"], Chat(system="7"), 1),
        (["1", "x"], Chat(template="4"), 2),  # a template that forgets what it is given loses digits as well
    ],
)
def test_count_unread(prompts: list[str], chat: Chat, count: int) -> None:
    encoder = base_model.tokenizer(CountdownRecipe())  # letters of \boxed alone
    assert count_unread(encoder, prompts, chat) == count
