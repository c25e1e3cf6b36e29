"""The tasks: one folder each, and one explicit table."""

from __future__ import annotations

from harness import registry
from tasks.countdown import Countdown
from tasks.task import SPLITS, Problem, Task, Verdict

__all__ = ["SPLITS", "TASKS", "Problem", "Task", "Verdict", "build"]

TASKS: dict[str, type[Task]] = {
    "countdown": Countdown,
}


def build(spec: str) -> Task:
    """`countdown(count=4)` -> the task."""
    return registry.build("task", TASKS, spec)
