"""The tasks: one folder each, and one explicit table."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.base import registry
from harness.base.errors import UserError, nearest
from harness.base.plugins import extended
from harness.base.schema import typed
from harness.base.task import SPLITS, Problem, Recipe, Task, Verdict, Verifier, check_split, evaluation_name
from tasks.aime24 import AIME24
from tasks.aime25 import AIME25
from tasks.amc23 import AMC23
from tasks.countdown import Countdown
from tasks.countdown.offer import BaseModel
from tasks.dapo500 import DAPO500
from tasks.dapo_math import DapoMath
from tasks.gsm8k import GSM8K
from tasks.math500 import MATH500
from tasks.offered import check, read

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
    "evaluation_name",
    "file",
    "recipe",
    "settings",
    "table",
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


def table(plugins: Iterable[str] = ()) -> dict[str, type[Task]]:
    """Returns all tasks by name: TASKS, those of installed packages (entry points), and those of plugin modules."""
    return extended("task", TASKS, "TASKS", plugins, check)


def build(spec: str, plugins: Iterable[str] = ()) -> Task:
    """Builds the task of a specification such as `countdown(count=4)`."""
    return registry.build("task", table(plugins), spec)


def recipe(given: Mapping[str, Any]) -> Recipe:
    """Reads the recipe in a model's file, such as `{task: countdown(count=4), hidden: 32}`."""
    if given.get("task") is None:
        raise UserError(f"recipe.task is missing; allowed: {', '.join(RECIPES)}")
    name = build(str(given["task"])).name
    if name not in RECIPES:
        raise UserError(f"recipe.task is {name!r}, a task that no model is made for; {nearest(name, RECIPES)}")
    stated: Recipe = typed(RECIPES[name](), dict(given), "recipe.")
    return stated


def file(task: Task) -> Path:
    """Returns the task's lm-eval file, beside the file in which its class is written."""
    return Path(inspect.getfile(type(task))).with_name(f"{task.name}.yaml")


def settings(task: Task) -> Mapping[str, Any]:
    """Reads the task's lm-eval file, for those who start without lm-eval."""
    return read(file(task))
