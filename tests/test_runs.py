"""The number of cells that `entrobench run` runs at once, and what it prints around them."""

from __future__ import annotations

from pathlib import Path

import pytest
from boards import NO_STORE, smoke_matrix

from harness import config, runs
from harness.base.errors import UserError
from harness.commands.run import mlflow_hint
from harness.launch.machine import Device, Machine
from harness.matrix import Cell
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
def test_local_launcher_by_cores(
    cores: int | None, overrides: list[str], jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config.load_config("demo", overrides)
    monkeypatch.setattr(runs, "this_machine", lambda config: Machine(1, cores or 1, 1))
    assert runs.local_launcher(settings, None).jobs == jobs
    assert runs.local_launcher(settings, 3).jobs == 3


@pytest.mark.parametrize(
    ("overrides", "jobs"),
    [([], 4), (["hardware.ranks=3", "train.prompts=9"], 1), (["hardware.share=0.3"], 12), (["hardware.device=cpu"], 8)],
)
def test_local_launcher_by_gpus(overrides: list[str], jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "this_machine", lambda config: Machine(1, 8, 1, (GPU,) * 4))
    monkeypatch.setattr(runs.devices, "gpus", lambda: ["a", "b", "c", "d"])
    launcher = runs.local_launcher(config.load_config("demo", ["hardware.device=cuda", *overrides]), None)
    assert (launcher.jobs, launcher.gpus is None) == (jobs, "hardware.device=cpu" in overrides)


def test_fetch_models() -> None:
    settings = config.load_config("smoke", [])
    model = models.resolve("countdown-tiny")
    assert runs.fetch_models(settings) == {"countdown-tiny": model.digest(model.folder())}


def test_run_matrix_retries_failed_and_damaged_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = smoke_matrix(tmp_path, NO_STORE)
    runs.claim(made.config)
    failed, damaged, *_ = made.write_all().cells
    made.write(failed, state="failed")
    record = next(damaged.folder.glob("evals/*.json"))
    record.write_bytes(record.read_bytes().replace(b"0", b"1", 1))
    announced = []

    def announce_and_end(*given: list[Cell]) -> None:
        announced.extend(given[-1])
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "announce", announce_and_end)
    with pytest.raises(KeyboardInterrupt):
        runs.run_matrix(made.config, retry_failed=True)
    assert announced == [failed, damaged]


def test_run_matrix_refuses_the_store_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "foo:bar")
    with pytest.raises(UserError, match=r"^the MLflow store at \*\*\* has no scheme in its address"):
        runs.run_matrix(config.load_config("smoke", [f"results={tmp_path}"]))
    assert not any(tmp_path.iterdir())


def test_local_launcher_refuses_more_than_this_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "this_machine", lambda config: Machine(1, 8, 1, (GPU,) * 4))
    monkeypatch.setattr(runs.devices, "gpus", lambda: ["a", "b"])
    with pytest.raises(UserError, match=r"hardware.ranks is 4, and each rank needs its own GPU, but this .* 2 GPUs"):
        runs.local_launcher(config.load_config("demo", ["hardware.device=cuda", "hardware.ranks=4"]), None)
    with pytest.raises(UserError, match=r"hardware.nodes is 2; allowed: 1, since one machine starts"):
        runs.local_launcher(config.load_config("demo", ["hardware.nodes=2"]), None)


RUNS = ":5000/#/experiments/3/runs?workflowType=machine_learning"


@pytest.mark.parametrize(
    ("uri", "experiment", "hint"),
    [
        (
            "sqlite:///a.db",
            "3",
            f"mlflow ui --backend-store-uri sqlite:///a.db, which shows them at http://127.0.0.1{RUNS}",
        ),
        ("http://tracking.local:5000/", "3", f"MLflow at http://tracking.local{RUNS}"),
        ("HTTPS://tracking.local", None, "MLflow at HTTPS://tracking.local"),
        ("databricks", "3", "MLflow at databricks"),
    ],
)
def test_mlflow_hint(uri: str, experiment: str | None, hint: str) -> None:
    assert mlflow_hint(uri, experiment) == hint
