"""The components of a cell, for whoever asks for their source; imports no torch."""

from __future__ import annotations

import baselines
import tasks
from harness import composition
from harness.cells import provenance
from harness.cells.spec import CellSpec
from harness.composition import Method


def components(spec: CellSpec) -> dict[str, type]:
    """Returns the classes of a cell's method and tasks, by their names."""
    config = spec.config
    methods = baselines.table(config.plugins)
    method = Method.of(spec.method, methods, config.method_options)
    built = [tasks.build_task(each, config.plugins) for each in (spec.task, *config.eval.tasks)]
    table = tasks.task_table(config.plugins)
    return provenance.named([*method.components, *built], composition.components(methods), table)
