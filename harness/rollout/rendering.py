"""The one way from a problem to the tokens that a model is given, in training, filtering and evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.base.task import Task
from harness.rollout.templates import render_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Chat:
    """How a model is spoken to, where neither its tokenizer nor the task is to decide."""

    system: str | None = None  # the system prompt
    instruction: str | None = None  # in place of the one that a task ends its problems with
    template: str | None = None  # a Jinja chat template in place of the tokenizer's; empty: plain text
    template_options: dict[str, Any] = field(default_factory=dict)  # of the template, such as enable_thinking: false

    def identity(self) -> dict[str, Any]:
        """Returns the settings that are given here, without those left to tokenizer and task."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value not in (None, {})}


PLAIN = Chat()


def with_instruction(task: Task, chat: Chat) -> Task:
    """Returns the task with the model's instruction; a task without any, such as Countdown, stays as it is."""
    if chat.instruction is None or not getattr(task, "instruction", ""):
        return task
    changed: Any = task
    return dataclasses.replace(changed, instruction=chat.instruction)


def render_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str, chat: Chat = PLAIN) -> list[int]:
    """Returns the tokens of a problem's prompt, in the chat template of the model if it has one."""
    template = getattr(tokenizer, "chat_template", None) if chat.template is None else chat.template
    silent = {"verbose": False}  # on length: whoever samples knows better how much room there is
    if not template:
        return list(tokenizer(f"{chat.system}\n\n{prompt}" if chat.system else prompt, **silent)["input_ids"])
    messages = [{"role": "system", "content": chat.system}] if chat.system else []
    messages.append({"role": "user", "content": prompt})
    # As transformers' apply_chat_template does it, but for the process that renders.
    options = {**tokenizer.special_tokens_map, **chat.template_options}
    text = render_template(tokenizer.get_chat_template(chat.template), messages, options, tokenizer.name_or_path)
    return list(tokenizer(text, add_special_tokens=False, **silent)["input_ids"])


def count_unread(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], chat: Chat = PLAIN) -> tuple[int, int]:
    """Counts the prompts of which letters or digits are lost since the tokenizer has no token for them.

    Returns how many lose some, and how many lose all: of those, the model reads what its template says and no more.
    """

    def read(prompt: str) -> set[str]:
        return set(tokenizer.decode(render_prompt(tokenizer, prompt, chat), skip_special_tokens=True))

    frame = read("")
    some = everything = 0
    for prompt in prompts:
        written, seen = {c for c in prompt if c.isalnum()}, read(prompt)
        some += not written <= seen
        everything += bool(written - frame) and not (written - frame) & seen
    return some, everything
