"""Options of methods that change over the steps of a run, such as `coefficient=linear(0.01, 0)`; imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast, get_args

from harness.base import registry
from harness.base.errors import UserError, shown
from harness.base.files import hints_of

T = TypeVar("T")
# Options that a run reads once: rates of optimizers, and the initial value of a memory.
FIXED = ("lr", "critic_lr", "start")


@dataclass(frozen=True)
class Linear:
    """A number that changes by the same amount from step to step."""

    first: float
    last: float

    @classmethod
    def parse(cls, written: str, key: str) -> Linear:
        ends = [registry.scalar(part.strip(), key) for part in registry.split(written[len("linear(") : -1], ",")]
        numbers = [float(end) for end in ends if isinstance(end, int | float) and not isinstance(end, bool)]
        if len(ends) != 2 or len(numbers) != 2 or not all(map(math.isfinite, numbers)):
            raise UserError(f"{key} is {shown(written)}; write linear(FIRST, LAST) with two finite numbers")
        return cls(*numbers)

    def at(self, share: float) -> float:
        """Return the value after this share of the way."""
        # From the nearer end, so that both ends, and equal ones in between, are exact.
        change = self.last - self.first
        return self.first + share * change if share < 0.5 else self.last - (1 - share) * change

    def __str__(self) -> str:
        return f"linear({self.first}, {self.last})"


def scheduled(cls: type[T], name: str, values: Mapping[str, Any]) -> tuple[T, dict[str, Linear]]:
    """Build a component with the values of the first step, and return its options that change."""
    hints, schedules = hints_of(cast(Any, cls)), {}
    for key, value in values.items():
        # An option of another type, or an unknown one, is refused by its schema.
        numeric = float in (hints.get(key), *get_args(hints.get(key)))
        if numeric and isinstance(value, str) and registry.LINEAR.fullmatch(value):
            if key in FIXED:
                raise UserError(f"{name}.{key} is {shown(value)}, but it is the same in all steps; write one number")
            schedules[key] = Linear.parse(value, f"{name}.{key}")
    first = {key: schedule.first for key, schedule in schedules.items()}
    last = {key: schedule.last for key, schedule in schedules.items()}
    if schedules:
        registry.built(cls, name, {**values, **last})  # refuses values that are not allowed at the end
    return registry.built(cls, name, {**values, **first}), schedules
