"""Records of a real cell, damaged in every way: they are named, and the cell ends with the same results."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from trainers import records

from harness import config, matrix, runs
from harness.base import files, seal
from harness.base.errors import Damaged
from harness.cells import checksums, repair, state
from harness.cells.log import MetricsLog
from harness.cells.provenance import Made
from harness.cells.state import State
from harness.launch import cell as process
from harness.launch.launcher import prepare_cell
from harness.matrix import Cell
from harness.table.frames import BASE_MODEL

pytestmark = pytest.mark.slow

SHORT = ["train.steps=5", "train.prompts=4", "train.group=4", "eval.problems=3", "eval.samples=2", "eval.k=2"]
SHORT += ["methods=[grpo]", "checkpoint.every=2", "checkpoint.keep_last=true"]
MODEL = "model/model.safetensors"


def cell_in(results: Path, *overrides: str) -> Cell:
    [found] = matrix.cells(config.load_config("smoke", [*SHORT, f"results={results}", *overrides]))
    return found


def run(cell: Cell) -> None:
    """Does what a launcher and the process of a cell do."""
    prepare_cell(cell)
    process.main(str(cell.folder), wait=0)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return results with one cell that is done."""
    results = tmp_path_factory.mktemp("ran")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "write_log", lambda place: None)
        run(cell_in(results))
    return results


@pytest.fixture
def cell(ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cell:
    monkeypatch.setattr(process, "write_log", lambda place: None)
    return cell_in(Path(shutil.copytree(ran, tmp_path / "results")))


@contextmanager
def same_results(cell: Cell) -> Iterator[None]:
    """Run a cell after what is done to it, and check that it has the results that it had before."""
    before, model = records(cell.folder), (cell.folder / MODEL).read_bytes()
    yield
    run(cell)
    assert (cell.progress().state, records(cell.folder)) == ("done", before)
    assert (cell.folder / MODEL).read_bytes() == model
    assert not list(checksums.changed_records(cell.folder))


@contextmanager
def started_over(cell: Cell) -> Iterator[None]:
    """Prepare a cell after what is done to it, and check that nothing is left of its attempt."""
    yield
    prepare_cell(cell)
    assert {path.name for path in cell.folder.iterdir()} <= {*repair.STAYING}


def interrupted(cell: Cell) -> None:
    """Turn a done cell into one killed after its fourth step, with checkpoints of steps 2 and 4."""
    folder = cell.folder
    fifth = folder / "checkpoints" / "step-000005"
    files_of = checksums.read_seal(fifth, cell.id)
    for step in (2, 4):
        copy = shutil.copytree(fifth, folder / "checkpoints" / f"step-{step:06d}")
        checksums.write_seal(copy, cell.id, step, files_of)
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
    """Write garbage into the last line but one, without changing the size."""
    *before, line, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*before, b"\x00\xff{" + line[3:], last]))


def tamper(path: Path, key: str = '"right": [[') -> None:
    """Change one wrong answer to right, or vice versa, or the first number of another key."""
    content = path.read_text()
    place = content.index(key) + len(key)
    path.write_text(f"{content[:place]}{1 - int(content[place])}{content[place + 1 :]}")


def miscount(path: Path) -> None:
    """Change how many distinct right answers the first problem has, which is not compared with logged scores."""
    tamper(path, '"right_distinct": [')


def flip(path: Path) -> None:
    """Changes one bit of the last weight."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def digit(path: Path) -> None:
    """Changes one digit of the first number behind a point, in the last line but one if there are several."""
    lines = path.read_bytes().splitlines(keepends=True)
    number = max(len(lines) - 2, 0)
    place = lines[number].index(b".") + 1
    other = b"1" if lines[number][place : place + 1] != b"1" else b"2"
    lines[number] = lines[number][:place] + other + lines[number][place + 1 :]
    path.write_bytes(b"".join(lines))


def key(path: Path) -> None:
    """Changes a letter of a key of the configuration."""
    path.write_text(path.read_text().replace("threads: 1", "threads: 9").replace("max:", "maX:", 1))


def answer(path: Path) -> None:
    """Changes an answer, and seals it again."""
    tamper(path)
    rest = json.loads(path.read_bytes())
    del rest["sum"]
    path.write_text(seal.close_json(json.dumps(rest)))


WRITTEN = "it is written again, with the hardware of the present configuration"
RESUMES, AGAIN = "the cell resumes", "training starts at step 0"
HARM = [
    ("state.json", empty, RESUMES),
    ("state.json", Path.unlink, RESUMES),
    ("sums.json", empty, RESUMES),
    ("sums.json", Path.unlink, RESUMES),
    ("config.yaml", key, WRITTEN),
    ("metrics.jsonl", digit, AGAIN),
    ("metrics.jsonl", Path.unlink, AGAIN),
    ("metrics.jsonl", cut, AGAIN),
    ("evals/countdown-000005.json", cut, AGAIN),
    ("evals/countdown-000000.json", Path.unlink, AGAIN),
    ("evals/countdown-000005.json", tamper, AGAIN),
    ("samples/evaluate-countdown-000005.jsonl", cut, AGAIN),
    ("made.json", empty, AGAIN),
    ("made.json", Path.unlink, AGAIN),
    (MODEL, cut, RESUMES),
    (MODEL, flip, RESUMES),
]


@pytest.mark.parametrize(("name", "harm", "then"), HARM)
def test_run_repairs_a_done_cell(name: str, harm: Callable[[Path], None], then: str, cell: Cell) -> None:
    first = Made.read(cell.folder)
    outcome = started_over if then == AGAIN and harm is not tamper else same_results
    with outcome(cell):
        harm(cell.folder / name)
        if harm not in (tamper, garble, flip, digit, key):  # what has its size is not seen at a glance
            now = cell.progress()
            assert (now.state, now.metrics) == ("failed", {})
            assert str(now.reason).startswith(f"{cell.folder / name} is damaged: ")
    said = (cell.folder / "log.txt").read_text()
    assert f"warning: {cell.folder / name} is damaged: " in said
    assert then in said
    assert (Made.read(cell.folder) == first) == (then != AGAIN)


@pytest.mark.parametrize(
    ("name", "harm", "kept"),
    [
        ("state.json", empty, 4),
        ("metrics.jsonl", garble, 2),
        ("metrics.jsonl", cut, 2),
        ("metrics.jsonl", digit, 2),
        ("evals/countdown-000000.json", tamper, None),
        ("evals/countdown-000000.json", answer, None),
        ("evals/countdown-000000.json", miscount, None),
        ("metrics.jsonl", Path.unlink, None),
        ("evals/countdown-000000.json", cut, None),
        ("made.json", empty, None),
        ("config.yaml", empty, 4),
        ("config.yaml", Path.unlink, 4),
    ],
)
def test_prepare_cell_killed_and_damaged(name: str, harm: Callable[[Path], None], kept: int | None, cell: Cell) -> None:
    """By the checkpoint that all steps before are there for; None: there is none, and training starts at step 0."""
    interrupted(cell)
    harm(cell.folder / name)
    prepare_cell(cell)
    saved = {int(path.name.removeprefix("step-")) for path in (cell.folder / "checkpoints").glob("step-*")}
    assert saved == ({step for step in (2, 4) if step <= kept} if kept else set())
    assert State.read(cell.folder).state == ("running" if kept else "planned")
    if name != "config.yaml":
        assert (RESUMES if kept else AGAIN) in (cell.folder / "log.txt").read_text()
    assert cell.spec == type(cell.spec).read(cell.folder)
    if kept == 2:
        assert State.read(cell.folder).durable_step == 2
        assert [line["step"] for line in MetricsLog(cell.folder).read()] == [0, 1, 2]


def test_matrix_rows_with_a_damaged_cell(cell: Cell, mlflow_uri: str) -> None:
    """A missing file is not sent; a file in MLflow that differs from the one sent is not a result."""
    cell.config.tracking.uri = mlflow_uri

    def seeds() -> list[tuple[int, int]]:
        rows = runs.matrix_rows(cell.config, [cell])
        return [(row.seeds_done, row.seeds_expected) for row in rows if row.method != BASE_MODEL]

    whole = (cell.folder / "evals" / "countdown-000005.json").read_bytes()
    tamper(cell.folder / "evals" / "countdown-000005.json")
    assert runs.sync_matrix(cell.config, [cell])[1] == 1
    assert seeds() == [(0, 1)]
    (cell.folder / "evals" / "countdown-000005.json").write_bytes(whole)
    assert runs.sync_matrix(cell.config, [cell])[1] == 0
    assert seeds() == [(1, 1)]
    [outcome] = cell.config.folder.parent.parent.glob("mlartifacts/*/*/artifacts/outcome.json")
    record = json.loads(outcome.read_text())
    for harm in (cut, lambda path: path.write_text(json.dumps(record | {"tokens": 1.0}))):
        harm(outcome)
        assert seeds() == [(0, 1)]
        assert runs.sync_matrix(cell.config, [cell])[1] == 0
        assert seeds() == [(1, 1)]


@pytest.mark.parametrize("lacking", ["a step", "an evaluation"])
def test_run_of_a_cell_without_checkpoints(lacking: str, cell: Cell) -> None:
    """Its sums and its checkpoint are gone, too: only the records themselves can tell."""
    with started_over(cell):
        shutil.rmtree(cell.folder / "checkpoints")
        (cell.folder / "sums.json").unlink()
        if lacking == "a step":
            lines = (cell.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
            (cell.folder / "metrics.jsonl").write_text("".join(lines[:-1]))
        else:
            (cell.folder / "evals" / "countdown-000005.json").unlink()


def test_done_cell_keeps_no_checkpoint_unless_asked(cell: Cell, tmp_path: Path) -> None:
    before, model = records(cell.folder), (cell.folder / MODEL).read_bytes()
    assert [path.name for path in (cell.folder / "checkpoints").iterdir()] == ["step-000005"]
    usual = cell_in(tmp_path, "checkpoint.keep_last=false")
    for _ in range(2):
        run(usual)
        assert not list((usual.folder / "checkpoints").iterdir())
        assert (usual.progress().state, records(usual.folder)) == ("done", before)
        assert (usual.folder / MODEL).read_bytes() == model
        flip(usual.folder / MODEL)  # it is made again by training


def test_run_of_a_cell_that_says_done_too_early(cell: Cell) -> None:
    with same_results(cell):
        interrupted(cell)
        state.change(cell.folder, state="done")
        now = cell.progress()
        assert (now.state, str(now.reason).partition(" is damaged")[0]) == ("failed", str(cell.folder / "sums.json"))
        shutil.rmtree(cell.folder / "checkpoints")  # which are copies of the last one


def test_run_with_a_checkpoint_of_another_cell(cell: Cell) -> None:
    fourth = cell.folder / "checkpoints" / "step-000004"
    with same_results(cell):
        interrupted(cell)
        checksums.write_seal(fourth, "0123456789ab", 4, checksums.read_seal(fourth, cell.id))
        shutil.rmtree(cell.folder / "checkpoints" / "step-000002")
    said = (cell.folder / "log.txt").read_text()
    assert f"{fourth} is damaged: it is of the cell 0123456789ab, not of {cell.id}" in said


def test_start_over_of_a_stopped_cell(tmp_path: Path) -> None:
    for name in ("stop", "metrics.jsonl", "state.json"):
        (tmp_path / name).touch()
    repair.start_over(tmp_path, "a reason")
    assert {path.name for path in tmp_path.iterdir()} == {"stop", "log.txt", "mlflow.lock"}


def test_start_over_killed_at_any_file(cell: Cell, tmp_path: Path) -> None:
    """The next run ends with the same results, whatever was deleted before."""
    before = records(cell.folder)
    doomed = [path for path in cell.folder.iterdir() if path.name not in repair.STAYING]
    for count in range(1, len(doomed) + 1):
        in_order = sorted(doomed, key=lambda path: (path.name != "metrics.jsonl", path.name))
        copy = cell_in(Path(shutil.copytree(cell.folder.parents[1], tmp_path / str(count))))
        for path in in_order[:count]:
            files.remove_path(copy.folder / path.name)
        prepare_cell(copy)
        assert not (copy.folder / "checkpoints").exists()
        if count in (1, len(doomed) - 1):
            run(copy)
            assert records(copy.folder) == before


def test_run_with_damaged_checkpoints(cell: Cell) -> None:
    with same_results(cell):
        interrupted(cell)
        for path in cell.folder.glob("checkpoints/step-*/shard-*"):
            flip(path)
    assert "warning: no checkpoint is whole; training starts at step 0\n" in (cell.folder / "log.txt").read_text()


def test_progress_of_a_cell_of_another_configuration(cell: Cell, tmp_path: Path) -> None:
    other = cell_in(tmp_path / "results", "train.lr=2e-3")
    assert other.progress().state == "planned"
    cell.folder.rename(other.folder)
    now = other.progress()
    assert (now.state, now.metrics) == ("failed", {})
    assert now.reason == f"{other.folder / 'config.yaml'} is damaged: it is of the cell {cell.id}"
    prepare_cell(other)
    assert other.progress().state == "planned"
    assert type(other.spec).read(other.folder) == other.spec


def test_sync_matrix_with_a_changed_config(cell: Cell, mlflow_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    cell.config.tracking.uri = mlflow_uri
    hours = State.read(cell.folder).seconds / 3600  # of one thread
    key(cell.folder / "config.yaml")
    assert runs.sync_matrix(cell.config, [cell])[1] == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{cell.folder / 'config.yaml'} is damaged: it does not fit its sum" in printed
    assert any(checksums.changed_records(cell.folder)), "by which `run` takes it up"
    prepare_cell(cell)
    assert runs.sync_matrix(cell.config, [cell])[1] == 0
    [outcome] = cell.config.folder.parent.parent.glob("mlartifacts/*/*/artifacts/outcome.json")
    assert json.loads(outcome.read_text())["hours"] == hours


@pytest.mark.parametrize("harm", [digit, garble])
def test_sync_matrix_with_a_changed_line(harm: Callable[[Path], None], cell: Cell, mlflow_uri: str) -> None:
    cell.config.tracking.uri = mlflow_uri
    interrupted(cell)
    harm(cell.folder / "metrics.jsonl")
    assert runs.sync_matrix(cell.config, [cell])[1] == 1


def test_sync_matrix_with_changed_answers_responses_or_weights(cell: Cell, mlflow_uri: str) -> None:
    cell.config.tracking.uri = mlflow_uri
    answers = "evals/countdown-000005.json"
    for name, harm in ((answers, answer), ("samples/evaluate-countdown-000005.jsonl", flip), (MODEL, flip)):
        whole = (cell.folder / name).read_bytes()
        harm(cell.folder / name)
        if name == answers:  # all sums are those of the changed answers
            checksums.write_checksums(cell.folder)
        assert runs.sync_matrix(cell.config, [cell]) == (0, 1), name
        (cell.folder / name).write_bytes(whole)
        checksums.write_checksums(cell.folder)
    assert runs.sync_matrix(cell.config, [cell]) == (1, 0)


def test_changed_records_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    for path in (tmp_path / "metrics.jsonl", tmp_path / MODEL):
        path.write_text("as it was")
    (tmp_path / "config.yaml").write_text(seal.close_yaml("{}\n"))
    checksums.write_checksums(tmp_path)
    read: list[str] = []
    digest = files.sha256_of

    def noting(path: Path) -> str:
        read.append(path.name)
        return digest(path)

    monkeypatch.setattr(files, "sha256_of", noting)
    assert not list(checksums.changed_records(tmp_path))
    (tmp_path / MODEL).touch()
    assert not list(checksums.changed_records(tmp_path))
    assert read == ["metrics.jsonl", "metrics.jsonl", "model.safetensors"]
    (tmp_path / MODEL).unlink()
    assert [name for _, name in checksums.changed_records(tmp_path)] == [MODEL]
    (tmp_path / "model").rmdir()
    checksums.check_sizes(tmp_path)
    assert not list(checksums.changed_records(tmp_path))


def test_check_sizes_by_damaged_sums(tmp_path: Path) -> None:
    for wrong in ("", "[]", "{}", "null", '{"a": 1}', seal.close_json('{"a": ["x", "y"]}')):
        (tmp_path / "sums.json").write_text(wrong)
        with pytest.raises(Damaged, match=r"sums\.json is damaged: "):
            checksums.check_sizes(tmp_path)
