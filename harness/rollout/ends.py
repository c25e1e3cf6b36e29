"""The tokens that end a response of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.base import files
from harness.base.errors import UserError, short, shown
from harness.rollout.rendering import PLAIN, Chat, chat_template, render_chat

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ANSWER = "Seven."  # of an assistant's turn that a template renders
REMEDY = "correct eos_token there, or name end_tokens in a model file (docs/add-a-task.md)"


def end_tokens(tokenizer: PreTrainedTokenizerBase, folder: Path, chat: Chat = PLAIN) -> tuple[int, ...]:
    """Return the tokens that end a response: those of the model's file, or else all that its folder names.

    UserError if there are none, or if the folder's chat template ends no turn with one of them: the model would not
    end its responses with one either.
    """
    if chat.end_tokens:
        vocabulary = tokenizer.get_vocab()
        for token in chat.end_tokens:
            if token not in vocabulary:
                raise UserError(f"end_tokens has {shown(token)}, which is no token of the model")
        return tuple(vocabulary[token] for token in chat.end_tokens)
    ends = dict.fromkeys(tokens_of_folder(folder))
    if tokenizer.eos_token_id is not None:  # first
        ends = {tokenizer.eos_token_id: None, **ends}
    if not ends:
        raise UserError(f"no token ends a response of the model {short(str(folder))}; {REMEDY}")
    closing = None if chat.template is not None else text_after_answer(tokenizer, chat)
    if closing is not None and not ends.keys() & set(tokenizer(closing, add_special_tokens=False)["input_ids"]):
        names = ", ".join(tokenizer.convert_ids_to_tokens([*ends]))
        raise UserError(
            f"the chat template of the model {short(str(folder))} writes {shown(closing)} after an answer, and "
            f"responses end with {names}; {REMEDY}"
        )
    return tuple(ends)


def end_of_answer(tokenizer: PreTrainedTokenizerBase, folder: Path, chat: Chat) -> int:
    """Return the token that ends a response to train on: one that the chat template writes, or else the first."""
    ends = end_tokens(tokenizer, folder, chat)
    closing = text_after_answer(tokenizer, chat) or ""
    written = tokenizer(closing, add_special_tokens=False)["input_ids"]
    return next((token for token in written if token in ends), ends[0])


def tokens_of_folder(folder: Path) -> list[int]:
    """Return the end tokens that generation_config.json names: one or several, such as those of Llama 3."""
    path = folder / "generation_config.json"
    settings = files.read_json(path) if path.is_file() else {}
    named = settings.get("eos_token_id") if isinstance(settings, dict) else None
    tokens = named if isinstance(named, list) else [named]
    return [token for token in tokens if type(token) is int]


def text_after_answer(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> str | None:
    """Return the text that the chat template writes after an answer; None if it writes no answers."""
    if not chat_template(tokenizer, chat):
        return None
    turns = [{"role": "user", "content": "3 + 4 ="}, {"role": "assistant", "content": ANSWER}]
    _, answer, closing = render_chat(tokenizer, turns, chat, prompts=False).rpartition(ANSWER)
    return closing if answer else None
