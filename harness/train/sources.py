"""The components of a cell, for whoever asks for their source; imports no torch."""

from __future__ import annotations

import baselines
import tasks
from harness import composition
from harness.composition import Method
from harness.record import made
from harness.record.spec import CellSpec


def components(spec: CellSpec) -> dict[str, type]:
    """Returns the classes of a cell's method and tasks, by their names."""
    config = spec.config
    methods = baselines.table(config.plugins)
    method = Method.of(spec.method, methods, config.method_options)
    built = [tasks.build(each, config.plugins) for each in (spec.task, *config.eval.tasks)]
    return made.named([*method.components, *built], composition.components(methods), tasks.table(config.plugins))
