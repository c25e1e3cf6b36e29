"""Options of methods that change over the steps of a run, such as `coefficient=linear(0.01, 0)`; imports no torch."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast, get_args

from harness.base import registry
from harness.base.errors import UserError, shown
from harness.base.files import hints_of
from harness.methods.verbs import Control

T = TypeVar("T")
FIXED = ("lr", "critic_lr", "base_share")  # rates, which optimizers read once, and a count that gives each its turn


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
                raise fixed(f"{name}.{key}", value)
            schedules[key] = Linear.parse(value, f"{name}.{key}")
    first = {key: schedule.first for key, schedule in schedules.items()}
    last = {key: schedule.last for key, schedule in schedules.items()}
    if schedules:
        registry.built(cls, name, {**values, **last})  # refuses values that are not allowed at the end
    component = registry.built(cls, name, {**values, **first})
    for key, schedule in schedules.items():
        if isinstance(component, Control) and begins_memory(component, key, schedule.last):
            raise fixed(f"{name}.{key}", values[key])
    return component, schedules


def begins_memory(control: Control, option: str, last: float) -> bool:
    """Return whether the memory of a control begins with an option, whose later values would then change nothing."""
    at_first, at_last = copy.copy(control), copy.copy(control)  # a memory is made when it is first read
    object.__setattr__(at_last, option, last)
    return at_first.state() != at_last.state()


def fixed(option: str, value: Any) -> UserError:
    return UserError(f"{option} is {shown(value)}, but it is the same in all steps; write one number")
