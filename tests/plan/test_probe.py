"""The measured steps of the largest cell, and the time of the matrix at that speed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from cells import write_cell

from harness import config, matrix
from harness.base.errors import UserError
from harness.base.units import about_duration
from harness.launch.machine import this_machine
from harness.plan import probe
from harness.plan.estimate import plan_for
from harness.plan.show import side_by_side_line

SMALL = ["methods=[grpo,ppo]", "seeds=[0]", "train.steps=50"]


def test_read_probe_scales_the_largest_cell(tmp_path: Path) -> None:
    settings = config.load_config("demo", [*SMALL, f"results={tmp_path}", "stop.tokens=1"])
    cells = matrix.cells(settings)
    plan = plan_for(settings, cells, this_machine(settings))
    cell = probe.largest_cell(plan)
    assert cell.method == "ppo", "which has a critic"
    short = probe.short_cell(cell, tmp_path / "elsewhere")
    assert (short.spec.config.train.steps, short.spec.config.eval.problems) == (3, 1)
    assert short.spec.config.stop == config.Stop(), "all of its steps are measured"
    assert short.folder.is_relative_to(tmp_path / "elsewhere")
    steps = []
    for seconds in (0.0, 9.0, 2.0, 4.0):  # the first step takes longer than others
        times = {"time/update_s": seconds, "time/rollout_s": 7.68, "time/judging_s": 50.0, "time/evaluate_s": 60.0}
        steps.append(times | {"responses/length": 10.0})
    write_cell(short.folder, short.spec, steps=steps, seconds=3 * 7.68 + 15 + 5.5)
    measured = probe.read_probe(short)
    assert (measured.step, measured.prompts) == (pytest.approx(10.68), 48)
    assert (measured.response, measured.length, measured.start) == pytest.approx((0.01, 10.0, 5.5))
    work = 50 * 10.68 + 3 * 256 * 32 * 0.01  # three evaluations
    cell_seconds, shorter = work + 5.5, work / 2 + 5.5
    assert measured.seconds(settings) == pytest.approx(cell_seconds)
    assert measured.seconds(settings, 5) == pytest.approx(shorter)
    fewer = config.load_config("demo", [*SMALL, "train.prompts=12"])
    assert measured.seconds(fewer) == pytest.approx(cell_seconds - 0.75 * 50 * 10.68)
    lines = probe.probe_lines(measured, plan)
    assert lines[0].endswith("took 10.7 s with responses of 10 tokens, of 20 at most")
    assert lines[1].endswith(f"2 cells will take {about_duration(2 * cell_seconds)} one after the other")
    assert lines[2] == side_by_side_line(plan, 2 * cell_seconds)
    scaled = probe.probe_lines(measured, plan, 5)[1]
    assert scaled == (
        f"at that speed and 5 tokens a response, 2 cells will take {about_duration(2 * shorter)} one after the other"
    )


def test_read_probe_of_a_failing_cell(tmp_path: Path) -> None:
    settings = config.load_config("demo", [*SMALL, f"results={tmp_path}"])
    cells = matrix.cells(settings)
    plan = plan_for(settings, cells, this_machine(settings))
    write_cell(cells[0].folder, cells[0].spec, "failed", reason="out of memory")
    with pytest.raises(UserError, match="the measured cell, grpo seed 0, failed: out of memory"):
        probe.read_probe(cells[0])
    with pytest.raises(UserError, match="--probe measures a missing cell, but there is none"):
        probe.largest_cell(dataclasses.replace(plan, progress=[]))
