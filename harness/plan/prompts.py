"""The tokens of the longest prompt, counted with the file of the model's tokenizer alone, without torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tokenizers import Tokenizer

from harness.base.errors import UserError, short
from harness.config import Config
from harness.rollout.models import Model
from tasks import Problem, Task
from tasks.data.sets import SETS

MESSAGE = 8  # tokens that a chat template writes around a message, at most
SYSTEM = 32  # tokens of a system prompt that a template has of its own


def with_longest_prompt(config: Config, model: Model, tasks_with_splits: Iterable[tuple[Task, str]]) -> Config:
    """Return the configuration with the longest prompt as the limit of prompts, unless it has a limit.

    Problem sets that are downloaded are not read for this.
    """
    folder = model.present_folder()
    if config.rollout.max_prompt_tokens is not None or folder is None or not (folder / "tokenizer.json").exists():
        return config
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises no other type
        reason = short(str(error))
        raise UserError(f"model {model.name!r}: {folder / 'tokenizer.json'} is no tokenizer ({reason})") from error
    system = model.chat.system or ""
    most = 0
    for task, split in tasks_with_splits:
        if task.name in SETS:
            continue
        problem = max(task.problems(split), key=characters, default=None)
        if problem is not None:
            messages = [system, *(text for shot in problem.shots for text in shot), problem.prompt]
            tokens = sum(len(tokenizer.encode(text).ids) + MESSAGE for text in messages)
            most = max(most, SYSTEM + tokens)
    return dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, max_prompt_tokens=most or None))


def characters(problem: Problem) -> int:
    return len(problem.prompt) + sum(map(len, (text for shot in problem.shots for text in shot)))
