"""The measured steps of the largest cell, compared with the closed form."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from cells import write_cell

from harness import config, matrix
from harness.base.errors import UserError
from harness.launch.machine import this_machine
from harness.plan import cost, probe
from harness.plan.estimate import plan_for

SMALL = ["methods=[grpo,ppo]", "seeds=[0]", "train.steps=50"]


def test_the_largest_cell_is_measured_and_all_is_scaled(tmp_path: Path) -> None:
    settings = config.load_config("demo", [*SMALL, f"results={tmp_path}"])
    cells = matrix.cells(settings)
    plan = plan_for(settings, cells, this_machine(settings))
    cell = probe.largest_cell(plan)
    assert cell.method == "ppo", "which has a critic"
    short = probe.short_cell(cell, tmp_path / "elsewhere")
    assert (short.spec.config.train.steps, short.spec.config.eval.problems) == (3, 1)
    assert short.folder.is_relative_to(tmp_path / "elsewhere")
    steps = []
    for seconds in (0.0, 9.0, 2.0, 4.0):  # the first step takes longer than others
        times = {"time/update_s": seconds, "time/judging_s": 50.0, "time/evaluate_s": 60.0}
        steps.append(times | {"responses/length": 10.0})
    write_cell(short.folder, short.spec, steps=steps)
    found = probe.read_probe(cell, short, plan)
    own = next(each for each in plan.footprints if "ppo" in each.methods)
    closed = cost.step_seconds(own.shape, settings, own.needs, 4, cost.SPEEDS["cpu"], cost.EMBEDDED)
    assert (found.measured, found.assumed, found.length, found.allowed) == (3.0, closed, 10.0, 20)
    said = probe.probe_lines(found, plan)
    assert said[0].endswith(f"so it is off by a factor of {3.0 / closed:.2g}")
    assert plan.assumed is not None
    assert f"2 cells will take about {round(3.0 / closed * plan.assumed) // 60} min" in said[1]


def test_a_cell_that_fails_is_no_measurement(tmp_path: Path) -> None:
    settings = config.load_config("demo", [*SMALL, f"results={tmp_path}"])
    cells = matrix.cells(settings)
    plan = plan_for(settings, cells, this_machine(settings))
    write_cell(cells[0].folder, cells[0].spec, "failed", reason="out of memory")
    with pytest.raises(UserError, match="the measured cell, grpo seed 0, failed: out of memory"):
        probe.read_probe(cells[0], cells[0], plan)
    with pytest.raises(UserError, match="--probe measures a missing cell, but there is none"):
        probe.largest_cell(dataclasses.replace(plan, progress=[]))
