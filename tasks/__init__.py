"""The tasks: one folder each, and one explicit table."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from harness.base import registry
from harness.base.errors import UserError, nearest
from harness.base.schema import typed
from harness.base.task import SPLITS, Problem, Recipe, Task, Verdict, Verifier, check_split
from tasks.aime24 import AIME24
from tasks.aime25 import AIME25
from tasks.amc23 import AMC23
from tasks.countdown import Countdown
from tasks.countdown.offer import BaseModel
from tasks.dapo500 import DAPO500
from tasks.dapo_math import DapoMath
from tasks.gsm8k import GSM8K
from tasks.math500 import MATH500

__all__ = [
    "RECIPES",
    "SPLITS",
    "TASKS",
    "Problem",
    "Recipe",
    "Task",
    "Verdict",
    "Verifier",
    "build",
    "check_split",
    "folder",
    "recipe",
    "settings",
]

TASKS: dict[str, type[Task]] = {
    "aime24": AIME24,
    "aime25": AIME25,
    "amc23": AMC23,
    "countdown": Countdown,
    "dapo500": DAPO500,
    "dapo_math": DapoMath,
    "gsm8k": GSM8K,
    "math500": MATH500,
}

RECIPES: dict[str, type[Recipe]] = {"countdown": BaseModel}  # of the tasks that small models are made for here


def build(spec: str) -> Task:
    """Builds the task of a specification such as `countdown(count=4)`."""
    return registry.build("task", TASKS, spec)


def recipe(given: Mapping[str, Any]) -> Recipe:
    """Reads the recipe in a model's file, such as `{task: countdown(count=4), hidden: 32}`."""
    if given.get("task") is None:
        raise UserError(f"recipe.task is missing; allowed: {', '.join(RECIPES)}")
    name = build(str(given["task"])).name
    if name not in RECIPES:
        raise UserError(f"recipe.task is {name!r}, a task that no model is made for; {nearest(name, RECIPES)}")
    stated: Recipe = typed(RECIPES[name](), dict(given), "recipe.")
    return stated


def folder(task: Task) -> Path:
    """Returns the folder in which the task's class is written, and its lm-eval file beside it."""
    return Path(inspect.getfile(type(task))).parent


class PlainLoader(yaml.SafeLoader):
    """Reads lm-eval's files without importing what they name."""


PlainLoader.add_constructor("!function", lambda loader, node: node.value)


def settings(task: Task) -> Mapping[str, Any]:
    """Reads the task's lm-eval file, for those who start without lm-eval."""
    return read(folder(task) / f"{task.name}.yaml")


def read(file: Path) -> dict[str, Any]:
    given = yaml.load(file.read_text(), PlainLoader)
    included = given.pop("include", None)
    return (read(file.parent / included) if included else {}) | given
