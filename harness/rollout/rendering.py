"""The rendering of prompts as tokens, the same in training, filtering and evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.base.errors import UserError, short
from harness.base.task import Problem, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Chat:
    """Settings of a model's prompts and responses that override those of its folder and of the task."""

    system: str | None = None  # the system prompt
    instruction: str | None = None  # instead of the instruction at the end of a task's problems
    template: str | None = None  # a Jinja chat template instead of the tokenizer's; empty: plain text
    template_options: dict[str, Any] = field(default_factory=dict)  # such as enable_thinking: false
    end_tokens: list[str] = field(default_factory=list)  # that end a response, instead of the folder's

    def identity(self) -> dict[str, Any]:
        """Return the settings that override something."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value not in (None, {}, [])}


PLAIN = Chat()


def with_instruction(task: Task, chat: Chat) -> Task:
    """Return the task with the model's instruction; unchanged if the task has none, such as Countdown."""
    if chat.instruction is None or not getattr(task, "instruction", ""):
        return task
    changed: Any = task
    if "instruction" not in {option.name for option in dataclasses.fields(changed)}:
        raise UserError(
            f"task {task.name} has an instruction that is not an option, which the model's instruction cannot replace; "
            "declare it in the task's class as `instruction: str = ...`"
        )
    return dataclasses.replace(changed, instruction=chat.instruction)


def render_prompt(tokenizer: PreTrainedTokenizerBase, problem: Problem, chat: Chat = PLAIN) -> list[int]:
    """Return the tokens of a problem's prompt after its worked examples, in the model's chat template if it has one.

    Plain text is laid out as lm-eval does by default, so that its own command shows the same prompts.
    """
    # The tokenizer would warn about prompts longer than the model's context; the caller checks their length.
    silent = {"verbose": False}
    if not chat_template(tokenizer, chat):
        paragraphs = [chat.system] if chat.system else []
        paragraphs += [f"{prompt} {response}" for prompt, response in problem.shots]
        return list(tokenizer("\n\n".join([*paragraphs, problem.prompt]), **silent)["input_ids"])
    messages = [{"role": "system", "content": chat.system}] if chat.system else []
    for prompt, response in problem.shots:
        messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]
    messages.append({"role": "user", "content": problem.prompt})
    # The template has written the special tokens.
    return list(tokenizer(render_chat(tokenizer, messages, chat), add_special_tokens=False, **silent)["input_ids"])


def chat_template(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> Any:
    """Return the chat template of a model; empty or None for plain text."""
    return getattr(tokenizer, "chat_template", None) if chat.template is None else chat.template


def render_chat(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], chat: Chat, *, prompts: bool = True
) -> str:
    """Return a conversation in the chat template; `prompts`: with what begins the next answer."""
    try:
        text: str = tokenizer.apply_chat_template(
            messages,
            chat_template=chat.template,
            tokenize=False,
            add_generation_prompt=prompts,
            **chat.template_options,
        )
    except Exception as error:  # a template is a program, and may raise any type
        reason = short(f"{type(error).__name__}: {error}")
        raise UserError(f"the chat template of {tokenizer.name_or_path} cannot render a prompt: {reason}") from error
    return text


def count_unread(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], chat: Chat = PLAIN) -> int:
    """Return the number of prompts of which the tokenizer leaves out letters or digits.

    Worked examples are left out: their letters do not show whether those of the problem were read.
    """
    unread = 0
    for prompt in prompts:
        alone = render_prompt(tokenizer, Problem("", prompt, ""), chat)
        read = set(tokenizer.decode(alone, skip_special_tokens=True))
        unread += any(character.isalnum() and character not in read for character in prompt)
    return unread
