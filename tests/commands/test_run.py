"""How many cells `entrobench run` puts side by side where nobody says it."""

from __future__ import annotations

import pytest

from harness import config
from harness.commands import run
from harness.plan.machine import Device, Machine

GPU = Device("any", 80 * 2**30)


@pytest.mark.parametrize(
    ("cores", "overrides", "jobs"),
    [
        (1, [], 1),
        (2, [], 2),
        (8, ["hardware.threads=2"], 4),
        (8, ["hardware.threads=3"], 2),
        (8, ["hardware.ranks=2"], 4),
        (16, ["hardware.threads=3", "hardware.ranks=2"], 2),
        (2, ["hardware.threads=4"], 1),
        (None, [], 1),
    ],
)
def test_cells_share_the_cores(
    cores: int | None, overrides: list[str], jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config.load("demo", overrides)
    monkeypatch.setattr(run.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(run, "this_machine", lambda config: Machine(1, cores or 1, 1))
    assert run.default_jobs(settings) == jobs


def test_a_cell_has_the_gpu_alone_and_a_cell_on_the_cpu_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(run, "this_machine", lambda config: Machine(1, 8, 1, (GPU,)))
    for device, jobs in (("auto", 1), ("cuda", 1), ("cpu", 8)):
        assert run.default_jobs(config.load("demo", [f"hardware.device={device}"])) == jobs
