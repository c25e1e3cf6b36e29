"""How many cells `entrobench run` puts side by side where nobody says it."""

from __future__ import annotations

import pytest

from harness import config
from harness.base.errors import UserError
from harness.commands import run
from harness.plan.machine import Device, Machine
from harness.rollout import models

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
    monkeypatch.setattr(run, "this_machine", lambda config: Machine(1, cores or 1, 1))
    assert run.local(settings, None).jobs == jobs
    assert run.local(settings, 3).jobs == 3


@pytest.mark.parametrize(
    ("overrides", "jobs"),
    [([], 4), (["hardware.ranks=3", "train.prompts=9"], 1), (["hardware.share=0.3"], 12), (["hardware.device=cpu"], 8)],
)
def test_cells_share_the_gpus(overrides: list[str], jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "this_machine", lambda config: Machine(1, 8, 1, (GPU,) * 4))
    monkeypatch.setattr(run.devices, "gpus", lambda: ["a", "b", "c", "d"])
    found = run.local(config.load("demo", ["hardware.device=cuda", *overrides]), None)
    assert (found.jobs, found.pool is None) == (jobs, "hardware.device=cpu" in overrides)


def test_the_base_models_are_named_by_their_digests() -> None:
    settings = config.load("smoke", [])
    model = models.resolve("countdown-tiny")
    assert run.fetch_models(settings) == {"countdown-tiny": model.digest(model.folder())}


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "this_machine", lambda config: Machine(1, 8, 1, (GPU,) * 4))
    monkeypatch.setattr(run.devices, "gpus", lambda: ["a", "b"])
    with pytest.raises(UserError, match=r"hardware.ranks is 4, and each needs a GPU of its own; here are 2"):
        run.local(config.load("demo", ["hardware.device=cuda", "hardware.ranks=4"]), None)
