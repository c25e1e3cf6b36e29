"""Records of a real cell, damaged in every way: they are named, and the cell ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from trainers import records

from harness import cell as process
from harness import config, matrix
from harness.base.errors import Damaged
from harness.commands import sync
from harness.launch.launcher import prepare
from harness.matrix import Cell
from harness.record import made, sums
from harness.record.log import MetricsLog
from harness.record.made import Made
from harness.record.state import State
from harness.report import leaderboard
from harness.report.board import Board

pytestmark = pytest.mark.slow

SHORT = ["train.steps=5", "train.prompts=4", "train.group=4", "eval.problems=3", "eval.samples=2", "eval.k=2"]
SHORT += ["methods=[grpo]", "checkpoint.every=2"]
MODEL = "model/model.safetensors"


def cell_in(results: Path) -> Cell:
    [found] = matrix.cells(config.load("smoke", [*SHORT, f"results={results}"]))
    return found


def run(cell: Cell) -> None:
    """Does what a launcher and the process of a cell do."""
    prepare(cell)
    process.main(str(cell.folder), wait=0)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns results with one cell that is done."""
    results = tmp_path_factory.mktemp("ran")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "write_log", lambda place: None)
        run(cell_in(results))
    return results


@pytest.fixture
def cell(ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cell:
    monkeypatch.setattr(process, "write_log", lambda place: None)
    return cell_in(Path(shutil.copytree(ran, tmp_path / "results")))


def interrupted(cell: Cell) -> None:
    """Makes a cell that is done one that was killed after its fourth step, with checkpoints of the second and that."""
    folder = cell.folder
    fifth = folder / "checkpoints" / "step-000005"
    for step in (2, 4):
        shutil.copytree(fifth, folder / "checkpoints" / f"step-{step:06d}")
    shutil.rmtree(fifth)
    for path in folder.glob("*/*-000005.json*"):
        path.unlink()
    (folder / "sums.json").unlink()
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:5]))
    State("running", durable_step=4, seconds=9.0).write(folder)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    """As far as the middle of its last line but one, if it has several."""
    size, last = path.stat().st_size, path.read_bytes().splitlines()[-1]
    os.truncate(path, max(size - len(last) * 3 // 2, size // 2))


def garble(path: Path) -> None:
    """Leaves garbage in the last line but one, and the size as it was."""
    *before, line, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*before, b"\x00\xff{" + line[3:], last]))


def tamper(path: Path) -> None:
    """Makes one answer right that was wrong, or the other way round."""
    content = path.read_text()
    place = content.index('"right": [[') + len('"right": [[')
    path.write_text(content[:place] + str(1 - int(content[place])) + content[place + 1 :])


def flip(path: Path) -> None:
    """Changes one bit of the last weight."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


GOES_ON, ANEW = "the cell goes on", "the cell begins anew, and the earlier attempt is kept in"
HARM = [
    ("state.json", empty, GOES_ON),
    ("state.json", Path.unlink, GOES_ON),
    ("sums.json", empty, GOES_ON),
    ("metrics.jsonl", Path.unlink, ANEW),
    ("metrics.jsonl", cut, ANEW),
    ("metrics.jsonl", garble, ANEW),
    ("evals/countdown-000005.json", cut, ANEW),
    ("evals/countdown-000000.json", Path.unlink, ANEW),
    ("evals/countdown-000005.json", tamper, ANEW),
    ("samples/evaluate-countdown-000005.jsonl", cut, ANEW),
    (MODEL, cut, GOES_ON),
    (MODEL, flip, GOES_ON),
]


@pytest.mark.parametrize(("name", "harm", "then"), HARM)
def test_a_cell_that_was_done_is_named_and_done_again(
    name: str, harm: Callable[[Path], None], then: str, cell: Cell, capsys: pytest.CaptureFixture[str]
) -> None:
    before, first = records(cell.folder), Made.read(cell.folder)
    model = (cell.folder / MODEL).read_bytes()
    harm(cell.folder / name)
    if harm not in (tamper, garble, flip):  # what has its size is not seen at a glance
        now = cell.progress()
        assert (now.state, now.metrics) == ("failed", {})
        assert str(now.reason).startswith(f"{cell.folder / name} is damaged: ")
    run(cell)
    said = (cell.folder / "log.txt").read_text()
    assert f"warning: {cell.folder / name} is damaged: " in said
    assert then in said
    assert cell.progress().state == "done"
    assert records(cell.folder) == before
    assert (cell.folder / MODEL).read_bytes() == model
    assert not list(sums.changed(cell.folder))
    again = Made.read(cell.folder)
    assert (again == first) == (then == GOES_ON)
    assert len(made.earlier(cell.folder)) == (then == ANEW)


@pytest.mark.parametrize(
    ("name", "harm", "kept"),
    [
        ("state.json", empty, 4),
        ("metrics.jsonl", garble, 2),
        ("metrics.jsonl", cut, 2),
        ("metrics.jsonl", Path.unlink, None),
        ("evals/countdown-000000.json", cut, None),
        ("made.json", empty, None),
        ("config.yaml", empty, 4),
        ("config.yaml", Path.unlink, 4),
    ],
)
def test_a_cell_that_was_killed_goes_on_from_its_last_good_state(
    name: str, harm: Callable[[Path], None], kept: int | None, cell: Cell
) -> None:
    """By the checkpoint that all steps before are there for; None: there is none, and it begins anew."""
    interrupted(cell)
    harm(cell.folder / name)
    prepare(cell)
    saved = {int(path.name.removeprefix("step-")) for path in (cell.folder / "checkpoints").glob("step-*")}
    if name == "made.json":
        noted = Made.read(cell.folder)
        assert noted is not None
        assert noted.sources == {}, "which is no source of the present, so the process sets aside what it made"
        return
    assert saved == ({step for step in (2, 4) if step <= kept} if kept else set())
    assert State.read(cell.folder).state == ("running" if kept else "planned")
    if name != "config.yaml":
        assert (GOES_ON if kept else ANEW) in (cell.folder / "log.txt").read_text()
    assert cell.spec == type(cell.spec).read(cell.folder)
    if kept == 2:
        assert State.read(cell.folder).durable_step == 2
        assert [line["step"] for line in MetricsLog(cell.folder).read()] == [0, 1, 2]
        assert (cell.folder / "metrics.damaged").exists() == (harm is garble)


def test_a_cell_that_is_damaged_is_a_hole_that_the_table_counts(cell: Cell, mlflow_uri: str) -> None:
    """What MLflow does not hold yet is not sent; what it holds and is no more what was sent is no result."""
    cell.config.tracking.uri = mlflow_uri
    board = Board.of_config(cell.config, [cell])

    def seeds() -> list[tuple[int, int]]:
        rows = leaderboard.rows(mlflow_uri, board.experiment, board.expected, board.baseline, board.ks)
        return [(row.seeds_done, row.seeds_expected) for row in rows if row.method != leaderboard.BASE_MODEL]

    whole = (cell.folder / "evals" / "countdown-000005.json").read_bytes()
    tamper(cell.folder / "evals" / "countdown-000005.json")
    assert sync.sync(cell.config, [cell]) == 1
    assert seeds() == [(0, 1)]
    (cell.folder / "evals" / "countdown-000005.json").write_bytes(whole)
    assert sync.sync(cell.config, [cell]) == 0
    assert seeds() == [(1, 1)]
    [outcome] = cell.config.folder.parent.parent.glob("mlartifacts/*/*/artifacts/outcome.json")
    told = json.loads(outcome.read_text())
    for harm in (cut, lambda path: path.write_text(json.dumps(told | {"tokens": 1.0}))):
        harm(outcome)
        assert seeds() == [(0, 1)]
        assert sync.sync(cell.config, [cell]) == 0
        assert seeds() == [(1, 1)]


def test_a_model_is_read_again_if_it_was_written_since_and_may_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    for path in (tmp_path / "metrics.jsonl", tmp_path / MODEL):
        path.write_text("as it was")
    sums.write(tmp_path)
    read: list[str] = []
    digest = sums.digest

    def noting(path: Path) -> str:
        read.append(path.name)
        return digest(path)

    monkeypatch.setattr(sums, "digest", noting)
    assert not list(sums.changed(tmp_path))
    (tmp_path / MODEL).touch()
    assert not list(sums.changed(tmp_path))
    assert read == ["metrics.jsonl", "metrics.jsonl", "model.safetensors"]
    (tmp_path / MODEL).unlink()
    assert [name for _, name in sums.changed(tmp_path)] == [MODEL]
    (tmp_path / "model").rmdir()
    sums.check_sizes(tmp_path)
    assert not list(sums.changed(tmp_path))


def test_sums_that_are_no_sums_are_named(tmp_path: Path) -> None:
    for wrong in ("", "[]", '{"a": 1}', '{"a": ["x", "y"]}'):
        (tmp_path / "sums.json").write_text(wrong)
        with pytest.raises(Damaged, match=r"sums\.json is damaged: "):
            sums.check_sizes(tmp_path)
