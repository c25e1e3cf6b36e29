"""The registry of tasks: one folder per task, and the table TASKS."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.base import identities, registry
from harness.base.errors import UserError, nearest, shown
from harness.base.plugins import extend_table
from harness.base.schema import typed
from harness.base.task import SPLITS, Described, Problem, Recipe, Task, Verdict, Verifier, check_split, evaluation_name
from tasks.aime24 import AIME24
from tasks.aime25 import AIME25
from tasks.amc23 import AMC23
from tasks.coloring import Coloring
from tasks.coloring.recipe import ColoringRecipe
from tasks.countdown import Countdown
from tasks.countdown.recipe import CountdownRecipe
from tasks.dapo500 import DAPO500
from tasks.dapo_math import DapoMath
from tasks.gsm8k import GSM8K
from tasks.lists import Lists
from tasks.math500 import MATH500
from tasks.plugins import check_task_plugin, read_lm_eval_file
from tasks.problems import OwnProblems
from tasks.rg import Rg
from tasks.sentences import Sentences
from tasks.sorting import Sorting

__all__ = [
    "RECIPES",
    "SPLITS",
    "TASKS",
    "Problem",
    "Recipe",
    "Task",
    "Verdict",
    "Verifier",
    "build_task",
    "check_split",
    "descriptions",
    "evaluation_name",
    "lm_eval_file",
    "lm_eval_settings",
    "model_recipe",
    "names_file",
    "problem_digests",
    "task_in",
    "task_table",
]

TASKS: dict[str, type[Task]] = {
    "aime24": AIME24,
    "aime25": AIME25,
    "amc23": AMC23,
    "coloring": Coloring,
    "countdown": Countdown,
    "dapo500": DAPO500,
    "dapo_math": DapoMath,
    "gsm8k": GSM8K,
    "lists": Lists,
    "math500": MATH500,
    "problems": OwnProblems,
    "rg": Rg,
    "sentences": Sentences,
    "sorting": Sorting,
}

RECIPES: dict[str, type[Recipe]] = {
    "coloring": ColoringRecipe,
    "countdown": CountdownRecipe,
}  # of small base models, by task

FILES = (".jsonl", ".json", ".csv", ".parquet")  # the ends of files of problems


def task_table(plugins: Iterable[str] = ()) -> dict[str, type[Task]]:
    """Return all tasks by name: TASKS, and the tasks of installed packages (entry points) and plugin modules."""
    return extend_table("task", TASKS, "TASKS", plugins, check_task_plugin)


def build_task(spec: str, plugins: Iterable[str] = ()) -> Task:
    """Return the task of a spec such as `countdown(count=4)`."""
    return task_in(task_table(plugins), spec)


def task_in(table: Mapping[str, type[Task]], spec: str) -> Task:
    """Return the task of a spec, of those in a table."""
    if spec not in table and names_file(spec):
        raise UserError(f'{shown(spec)} is a file, and no task; write "problems(file={shown(spec)})"')
    return registry.build("task", table, spec)


def names_file(text: str) -> bool:
    """Return whether a text names a file of problems, which need not exist."""
    return text.lower().endswith(FILES) or os.path.isfile(text)  # not of pathlib, which raises for a long text


def problem_digests(trained: str, evaluated: Sequence[str], split: str, build: Callable[[str], Task]) -> dict[str, str]:
    """Return the digests of the problems that a cell uses of plugins' tasks, by the specs of the tasks.

    A plugin may read its problems from a file, which no digest of code follows. Problems of our own tasks are made by
    code, or have a fingerprint.
    """
    digests = {}
    for spec in {trained, *evaluated}:
        task = build(spec)
        if type(task) in TASKS.values():
            continue
        problems: dict[str, list[Any]] = {}
        if spec == trained:
            problems["train"] = [problem.identity() for problem in task.problems("train")]
        if spec in evaluated:
            problems[split] = [problem.identity() for problem in task.problems(split)]
        digests[spec] = identities.key(problems)
    return digests


def descriptions(specs: Iterable[str], plugins: Iterable[str] = ()) -> list[str]:
    """Return a sentence on each of the user's data sets among tasks."""
    built = [build_task(spec, plugins) for spec in dict.fromkeys(specs)]
    return [task.about() for task in built if isinstance(task, Described)]


def model_recipe(settings: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a model's file, such as `{task: countdown(count=4), hidden: 32}`."""
    if settings.get("task") is None:
        raise UserError(f"recipe.task is missing; allowed: {', '.join(RECIPES)}")
    name = build_task(str(settings["task"])).name
    if name not in RECIPES:
        raise UserError(f"recipe.task is {name!r}, a task without recipes; {nearest(name, RECIPES)}")
    recipe: Recipe = typed(RECIPES[name](), dict(settings), "recipe.")
    return recipe


def lm_eval_file(task: Task) -> Path:
    """Return the path of the task's lm-eval file, in the folder of its class."""
    return Path(inspect.getfile(type(task))).with_name(f"{task.name}.yaml")


def lm_eval_settings(task: Task) -> Mapping[str, Any]:
    """Return the content of the task's lm-eval file, read without lm-eval."""
    return read_lm_eval_file(lm_eval_file(task))
