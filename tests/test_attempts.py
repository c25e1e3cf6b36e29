"""No number is stale, end to end: edited methods, cells that run again, results that are moved."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import run_command

from harness import config, runs
from harness.base import files
from harness.config import Config
from harness.matrix import cells
from harness.rollout import models
from harness.table.frames import BASE_MODEL
from harness.table.leaderboard import LeaderboardRow
from harness.tracking.store import store

pytestmark = [pytest.mark.processes, pytest.mark.slow]

# Its behavior depends on its source, and on a file next to it that is not source code.
PLUGIN = """from dataclasses import dataclass
from pathlib import Path

from entrobench import Control


@dataclass(frozen=True)
class Mine(Control):
    def weights(self, old, advantages_T, batch):
        return FACTOR * float((Path(__file__).parent / "beside.txt").read_text())


METHODS = {"mine": Mine}
"""
TINY = ["methods=[grpo,mine]", "plugins=[made_by_me]", "train.steps=2", "train.prompts=8", "train.group=8"]
TINY += ["train.lr=1e-2", "eval.problems=8", "eval.samples=8", "eval.k=2", "checkpoint.every=1"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, put_store: Callable[[Path], None]) -> Path:
    """Return a folder with the plugin, in which the matrix was run."""
    folder = tmp_path_factory.mktemp("ran")
    put_store(folder / "results")
    (folder / "beside.txt").write_text("1")
    write(folder, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        said = entrobench("run", folder)
    model = models.resolve("countdown-tiny")
    assert said.splitlines()[:2] == [
        f"base model countdown-tiny: {model.digest(model.folder())[:12]}",
        "matrix smoke: 2 cells, 0 done before, 2 to run",
    ]
    return folder


@pytest.fixture
def folder(ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of that folder, whose plugin this process can import."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "made_by_me", raising=False)
    return Path(shutil.copytree(ran, tmp_path, dirs_exist_ok=True))


def write(folder: Path, factor: int) -> None:
    (folder / "made_by_me.py").write_text(PLUGIN.replace("FACTOR", str(factor)))


def entrobench(command: str, folder: Path, *options: str, results: str = "results") -> str:
    """Return the output of a command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        return run_command(command, "smoke", *TINY, f"results={folder / results}", *options)


def settings(folder: Path, results: str = "results") -> Config:
    return config.load_config("smoke", [*TINY, f"results={folder / results}"])


def table(folder: Path, results: str = "results") -> dict[str, LeaderboardRow]:
    ours = settings(folder, results)
    return {row.method: row for row in runs.matrix_rows(ours, cells(ours)) if row.method != BASE_MODEL}


def runs_of(folder: Path, key: str) -> list[dict[str, str]]:
    """Return the tags of the runs of a cell, the oldest first."""
    with store(settings(folder).tracking_uri, write=False) as client:
        experiment = client.get_experiment_by_name("smoke").experiment_id
        runs_of_cell = client.search_runs([experiment], f"tags.cell = '{key}'", order_by=["attributes.start_time ASC"])
    return [run.data.tags for run in runs_of_cell]


def test_run_after_an_edit_of_a_method(folder: Path) -> None:
    grpo, mine = cells(settings(folder))
    first = table(folder)
    assert first["mine"].entropy_final == first["grpo"].entropy_final, "a factor of 1 changes nothing"
    before = {path: path.read_bytes() for path in mine.folder.rglob("*") if path.is_file()}

    write(folder, 0)  # it learns nothing from now on
    same, edited = cells(settings(folder))
    assert (same.id == grpo.id, edited.id == mine.id) == (True, False)
    assert (edited.progress().state, table(folder)["mine"].seeds_done) == ("planned", 0)
    assert "1 cell of an earlier version of mine" in entrobench("status", folder)
    said = entrobench("run", folder)
    assert "1 done before, 1 to run" in said
    second = table(folder)
    assert second["grpo"] == first["grpo"]
    assert second["mine"].entropy_final != first["mine"].entropy_final
    assert {path: path.read_bytes() for path in before} == before
    assert "1 run of an earlier version of mine is left out." in entrobench("leaderboard", folder)

    write(folder, 1)  # the edit is undone
    assert "2 done before, 0 to run" in entrobench("run", folder)
    assert table(folder) == first
    assert "1 cell of an earlier version of mine" in entrobench("status", folder)
    assert [len(runs_of(folder, cell.id)) for cell in (grpo, mine, edited)] == [1, 1, 1]


def test_matrix_rows_of_a_cell_that_ran_again(folder: Path) -> None:
    _, mine = cells(settings(folder))
    first = table(folder)["mine"]
    shutil.rmtree(mine.folder)
    (folder / "beside.txt").write_text("0")
    assert "1 done before, 1 to run" in entrobench("run", folder)
    second = table(folder)["mine"]
    assert second.entropy_final != first.entropy_final
    last = files.read_json(mine.folder / "evals" / "countdown-000002.json")["right"]
    assert second.avg_at_k is not None
    assert second.avg_at_k.mean == pytest.approx(sum(map(sum, last)) / 64)
    assert len({each["attempt"] for each in runs_of(folder, mine.id)}) == 2


def test_results_copied_and_moved(folder: Path) -> None:
    original = table(folder)
    (folder / "elsewhere").mkdir()
    shutil.copytree(folder / "results", folder / "elsewhere" / "copy")
    before = {path: path.read_bytes() for path in (folder / "results").rglob("*") if path.is_file()}
    assert table(folder, "elsewhere/copy") == original
    shutil.rmtree(folder / "elsewhere/copy/mlartifacts/smoke")
    assert "holds the records of 2 cells" in entrobench("sync", folder, results="elsewhere/copy")
    assert {path: path.read_bytes() for path in (folder / "results").rglob("*") if path.is_file()} == before

    (folder / "results").rename(folder / "elsewhere" / "moved")
    for place in ("elsewhere/copy", "elsewhere/moved"):
        assert table(folder, place) == original
        assert "holds the records of 2 cells" in entrobench("sync", folder, results=place)
        assert table(folder, place) == original
        assert f"{place}/smoke/report/report.html" in entrobench("report", folder, results=place)
