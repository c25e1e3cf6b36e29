"""The components of a cell, for whoever asks for their source; imports no torch."""

from __future__ import annotations

from typing import Protocol

import baselines
import tasks
from harness import composition
from harness.composition import Method
from harness.config import Config
from harness.record import made


class Whole(Protocol):
    """A cell as the matrix has it, or as its folder does."""

    @property
    def config(self) -> Config: ...
    @property
    def method(self) -> str: ...
    @property
    def task(self) -> str: ...


def components(cell: Whole) -> dict[str, type]:
    """Returns the classes of a cell's method and tasks, by their names."""
    config = cell.config
    methods = baselines.table(config.plugins)
    method = Method.of(cell.method, methods, config.method_options)
    built = [tasks.build(spec, config.plugins) for spec in (cell.task, *config.eval.tasks)]
    return made.named([*method.components, *built], composition.components(methods), tasks.table(config.plugins))
