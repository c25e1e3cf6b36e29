"""The key of a cell: its value at each axis of the matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FACTORS = ("method", "task", "model", "seed")  # the axes of every matrix


@dataclass(frozen=True)
class CellKey:
    """A method on a task with a model and a seed, in one setting of the further axes; unique within a matrix."""

    method: str
    task: str  # the task that is trained on
    model: str
    seed: int
    setting: tuple[tuple[str, Any], ...] = ()  # the keys of the configuration's further axes with their values

    def factors(self) -> dict[str, Any]:
        """Return the values at the axes that every matrix has."""
        return {name: getattr(self, name) for name in FACTORS}

    def columns(self) -> dict[str, Any]:
        """Return the values at all axes, in the order of a table's columns."""
        return {"method": self.method, "task": self.task, "model": self.model, **dict(self.setting), "seed": self.seed}

    def tags(self) -> dict[str, str]:
        """Return the factors as the tags of an MLflow run."""
        return {name: str(value) for name, value in self.factors().items()}

    @property
    def run_name(self) -> str:
        """The name of its run in MLflow and in Weights & Biases."""
        return f"{self.method} s{self.seed}"
