"""A thousand or two thousand cells, with 500 points each: status, plan and leaderboard answer within a second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import scipy.special  # noqa: F401  loaded before the clock runs, as all else that is imported

import harness.plan.estimate
import harness.plan.show
import harness.table.formats  # noqa: F401
from benchmarks import leaderboard as invented
from harness import cli, config
from harness.cells import checksums, log
from harness.cells.provenance import Made
from harness.cells.state import State
from harness.matrix import Cell, cells
from harness.table import publish
from harness.table.board import Board
from harness.table.experiment import Experiment
from harness.table.frames import read_frames
from harness.table.leaderboard import leaderboard_rows
from harness.tracking.artifacts import FOLDER
from harness.tracking.reader import reader
from harness.tracking.store import store

pytestmark = pytest.mark.slow

STEPS, METRICS = 10, 50
WITHIN = 2.0  # CPU seconds without imports: measured below 1 for 2,002 cells, but processors differ


def leave(matrix: Sequence[Cell]) -> None:
    """Write the folders of done cells."""
    metrics = {f"measure/{number}": 0.5 for number in range(METRICS - 1)} | {"entropy/mean": 1.0}
    lines = [log.sealed_line({"step": step, "time": 1e9, "metrics": metrics}) for step in range(STEPS)]
    for number, cell in enumerate(matrix):
        (cell.folder / "evals").mkdir(parents=True)
        (cell.folder / log.FILE).write_text("".join(lines))
        for step in (0, STEPS - 1):
            (cell.folder / "evals" / f"countdown-{step:06d}.json").write_text("{}")
        State("done", durable_step=STEPS - 1, device="cpu").write(cell.folder)
        Made(f"{number:032x}", 1e9, None, None, None, cell.sources, {}, "a processor", "cpu").write(cell.folder)
        checksums.write_checksums(cell.folder)


@pytest.fixture(scope="module", params=[143, pytest.param(286, marks=pytest.mark.long)])
def seeds(request: pytest.FixtureRequest) -> int:
    """Return the number of seeds, each with the seven methods of the demo."""
    number: int = request.param
    return number


@pytest.fixture(scope="module")
def settings(seeds: int, tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> list[str]:
    """Return the settings of a matrix with made-up results, in folders and in MLflow."""
    results = tmp_path_factory.mktemp("results")
    given = [f"results={results}", f"seeds=[{','.join(map(str, range(seeds)))}]"]
    ours = config.load_config("demo", given)
    matrix = cells(ours)
    (results / "mlflow.db").write_bytes(migrated.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)  # waiting for the disk would take minutes
        patch.setattr(invented, "STEPS", 500)
        invented.invent(ours, matrix, ours.tracking_uri, results / FOLDER)
        leave(matrix)
    plan = Board.of_config(ours, matrix)
    with store(ours.tracking_uri, write=True) as client, reader(ours.tracking_uri) as source:
        experiment = Experiment(source, ours.name, ours.tracking_uri)
        rows = leaderboard_rows(read_frames(experiment, plan.expected, plan.baseline), plan.baseline, plan.ks)
        publish.MatrixSummary.of(plan, experiment, rows).write(client, experiment)
    return given


@pytest.fixture
def call(settings: list[str], capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple[str, float]]:
    """Call a command twice; return its output and the lower number of CPU seconds."""

    def called(command: str) -> tuple[str, float]:
        arguments, seconds = cli.parse_command([command, "demo", *settings]), []
        for _ in range(2):
            capsys.readouterr()
            began = time.process_time()
            assert arguments.call(arguments) in (0, None)
            seconds.append(time.process_time() - began)
        return capsys.readouterr().out, min(seconds)

    return called


def test_status(seeds: int, call: Callable[[str], tuple[str, float]]) -> None:
    said, seconds = call("status")
    assert said.count(" done ") == 7 * seeds
    assert seconds < WITHIN


def test_plan(seeds: int, call: Callable[[str], tuple[str, float]]) -> None:
    said, seconds = call("plan")
    assert f"done   {7 * seeds}\n" in said
    assert seconds < WITHIN


def test_leaderboard(seeds: int, call: Callable[[str], tuple[str, float]]) -> None:
    said, seconds = call("leaderboard")
    assert said.count(f" {seeds}") >= 7
    assert seconds < WITHIN
