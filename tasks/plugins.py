"""Checks of tasks from outside the repository: the class, and the lm-eval file in the same folder."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.base.errors import UserError
from harness.base.files import YAML_LOADER
from harness.base.schema import number, typed
from harness.base.task import SPLITS

ATTRIBUTES = ("name", "splits", "problems", "verdicts", "answers", "flags")  # of the class of a task
# The keys of an lm-eval file that entrobench reads; all others are for lm-eval's own command.
KEYS = ("task", "test_split", "output_type", "doc_to_text", "doc_to_target", "repeats")
GENERATION_KEYS = ("until", "temperature", "max_gen_toks")
FIXED_VALUES = {"output_type": "generate_until", "doc_to_text": "prompt", "doc_to_target": "answer"}


@dataclass(frozen=True)
class LmEvalNumbers:
    """The numbers in an lm-eval file, with their bounds."""

    repeats: int = number(1, least=1)
    temperature: float = number(0, least=0)
    max_gen_toks: int = number(1, least=1)


class PlainLoader(YAML_LOADER):  # type: ignore[misc, valid-type]
    """A YAML loader for lm-eval's files that does not import the functions that they name."""


PlainLoader.add_constructor("!function", lambda loader, node: node.value)


def read_lm_eval_file(file: Path) -> dict[str, Any]:
    """Return the content of an lm-eval file, merged with the files that it includes."""
    settings = yaml.load(file.read_text("utf-8"), PlainLoader)
    if not isinstance(settings, dict):
        raise UserError(f"{file} must contain a mapping of keys")
    included = settings.pop("include", None)
    if not included:
        return settings
    return read_lm_eval_file(file.parent / included) | settings


def check_task_plugin(name: str, cls: Any, plugin: str) -> None:
    """Raise UserError if a plugin's class is not a task, or its lm-eval file lacks a key."""
    who = f"task {name!r} of plugin {plugin}"
    if not isinstance(cls, type):
        raise UserError(f"{who} is {cls!r}; it must be a class")
    missing = [attribute for attribute in ATTRIBUTES if not hasattr(cls, attribute)]
    if missing:
        raise UserError(f"{who} has no {', no '.join(missing)}; a task has {', '.join(ATTRIBUTES)}")
    task: Any = cls
    parameters = getattr(task, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        raise UserError(f"{who} is not a frozen dataclass; write @dataclass(frozen=True) above class {cls.__name__}")
    if task.name != name:
        raise UserError(f"{who} is called {task.name!r} in its class; the two names must be the same")
    if not isinstance(task.splits, tuple) or not task.splits or not set(task.splits) <= set(SPLITS):
        raise UserError(f"splits of {who} is {task.splits!r}; it must be a tuple of some of {', '.join(SPLITS)}")
    check_lm_eval_file(Path(inspect.getfile(cls)).with_name(f"{name}.yaml"), task, who)


def check_lm_eval_file(file: Path, task: Any, who: str) -> None:
    """Raise UserError if the lm-eval file of a task is missing, incomplete, or does not fit the class."""
    try:
        settings = read_lm_eval_file(file)
    except FileNotFoundError as error:
        place = "in the folder of its class" if error.filename == str(file) else f"which {file.name} includes"
        raise UserError(f"{who} lacks the lm-eval file {error.filename}, {place}") from error
    except yaml.YAMLError as error:
        raise UserError(f"the lm-eval file {file} of {who} is not valid YAML: {str(error).splitlines()[0]}") from error
    generation = settings.get("generation_kwargs") or {}
    if not isinstance(generation, dict):
        raise UserError(f"generation_kwargs is {generation!r} in {file} of {who}; it must be a mapping of keys")
    missing = [key for key in KEYS if key not in settings]
    missing += [f"generation_kwargs.{key}" for key in GENERATION_KEYS if key not in generation]
    if missing:
        raise UserError(f"the lm-eval file {file} of {who} is not complete; it lacks {', '.join(missing)}")
    for key, value in {"task": task.name, **FIXED_VALUES}.items():
        if settings[key] != value:
            raise UserError(f"{key} is {settings[key]!r} in {file} of {who}; allowed: {value}")
    if settings["test_split"] not in task.splits:
        allowed = ", ".join(task.splits)
        raise UserError(f"test_split is {settings['test_split']!r} in {file} of {who}; allowed: {allowed}")
    numbers = {
        "repeats": settings["repeats"],
        "temperature": generation["temperature"],
        "max_gen_toks": generation["max_gen_toks"],
    }
    typed(LmEvalNumbers(), numbers, f"{file}: ")
