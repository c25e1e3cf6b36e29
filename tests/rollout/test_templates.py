"""Chat templates are untrusted programs: they render as in transformers, within limits."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from harness.base.errors import UserError
from harness.rollout import templates
from harness.rollout.rendering import Chat, render_prompt
from harness.rollout.templates import render_template

pytestmark = [pytest.mark.processes, pytest.mark.slow]

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
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", chat_template=CHAT)


@pytest.mark.parametrize("chat", [Chat(), Chat(system="Be short."), Chat(template_options={"thinking": True})])
def test_a_prompt_has_the_tokens_that_transformers_gives_it(chat: Chat) -> None:
    ours = tokenizer()
    messages = [{"role": "system", "content": chat.system}] if chat.system else []
    expected = ours.apply_chat_template(
        messages + ASKED, add_generation_prompt=True, return_dict=False, **chat.template_options
    )
    assert render_prompt(ours, ASKED[0]["content"], chat) == expected
    assert len(expected) > 20


@pytest.fixture(scope="module")
def one_second() -> Iterator[None]:
    """A renderer with a limit of one second for each prompt."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(templates, "LIMIT_S", 1)
        templates.renderer.cache_clear()
        yield
    templates.renderer.cache_clear()


@pytest.mark.usefixtures("one_second")
@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{{ (9 ** 99999) ** 9999 }}", "more than 1 s for one prompt"),  # one instruction, which nothing interrupts
        ("{{ 'a' * 10 ** 11 }}", "MemoryError"),
        ("{{ ('a' * (3 * 10 ** 9)) | length }}", "MemoryError"),  # which most machines have
        ("{{ raise_exception('no system prompt') }}", "TemplateError: no system prompt"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
    ],
)
def test_a_template_that_fails_is_one_sentence_and_the_next_one_renders(template: str, sentence: str) -> None:
    with pytest.raises(UserError, match=rf"^the chat template of /models/m cannot render a prompt: .*{sentence}"):
        render_template(template, ASKED, {}, "/models/m")
    assert render_template("{{ messages[0].content }}", ASKED, {}, "m") == ASKED[0]["content"].rstrip("\n")


@pytest.mark.usefixtures("one_second")
def test_a_loop_ends_at_the_limit_of_its_own_time() -> None:
    """Its CPU time, so that the test may take longer on a busy machine, but never an hour."""
    before = os.times().children_user
    start = time.monotonic()
    with pytest.raises(UserError, match=f"it takes more than {templates.LIMIT_S} s for one prompt"):
        render_template(
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", ASKED, {}, "m"
        )
    assert time.monotonic() - start >= 0.5
    assert os.times().children_user - before < templates.LIMIT_S + 5


@pytest.mark.parametrize(
    ("name", "content", "begins"),
    [
        ("chat_template.jinja", "x", True),
        ("tokenizer_config.json", '{"chat_template": "x"}', True),
        ("tokenizer_config.json", "{}", False),
        ("config.json", "{}", False),
    ],
)
def test_the_process_begins_early_where_a_folder_has_a_template(
    name: str, content: str, begins: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[int]()
    monkeypatch.setattr(templates, "renderer", started.append)
    (tmp_path / name).write_text(content)
    templates.warm_up(tmp_path)
    assert started == [os.getpid()] * begins
