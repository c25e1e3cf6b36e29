"""The tasks: one folder each, and one explicit table."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

from harness import registry
from tasks.countdown import Countdown
from tasks.task import SPLITS, Problem, Task, Verdict

__all__ = ["SPLITS", "TASKS", "Problem", "Task", "Verdict", "build", "spec"]

TASKS: dict[str, type[Task]] = {
    "countdown": Countdown,
}


def build(spec: str) -> Task:
    """`countdown(count=4)` -> the task."""
    return registry.build("task", TASKS, spec)


def spec(task: Task) -> str:
    """The task -> `countdown(count=4, largest=12, target=60)`."""
    options = dataclasses.asdict(cast(Any, task))
    return f"{task.name}({', '.join(f'{key}={value}' for key, value in options.items())})"
