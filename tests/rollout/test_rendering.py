"""Prompts in chat templates, which are untrusted programs: as in transformers, in its sandbox."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from harness.base.errors import UserError
from harness.rollout.rendering import Chat, render_prompt

CHAT = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>\n{{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if thinking %} think{% endif %}{% endif %}"
)
ASKED = [{"role": "user", "content": 'größe 方法 " \\ {{ 3 }}\nof x '}]


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
    expected = ours.apply_chat_template(
        messages + ASKED, add_generation_prompt=True, return_dict=False, **chat.template_options
    )
    assert render_prompt(ours, ASKED[0]["content"], chat) == expected
    assert len(expected) > 20


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
        render_prompt(tokenizer(), "x", Chat(template=template))
