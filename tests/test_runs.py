"""The number of cells that `entrobench run` runs at once, and its question before it trains cells again."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest

from harness import config, runs
from harness.base.errors import UserError
from harness.cells import attempts, checksums, provenance
from harness.cells.state import State
from harness.commands.run import mlflow_hint
from harness.launch.machine import Device, Machine
from harness.matrix import Cell, cells
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
    settings = config.load_config("demo", overrides)
    monkeypatch.setattr(runs, "this_machine", lambda config: Machine(1, cores or 1, 1))
    assert runs.local_launcher(settings, None).jobs == jobs
    assert runs.local_launcher(settings, 3).jobs == 3


@pytest.mark.parametrize(
    ("overrides", "jobs"),
    [([], 4), (["hardware.ranks=3", "train.prompts=9"], 1), (["hardware.share=0.3"], 12), (["hardware.device=cpu"], 8)],
)
def test_cells_share_the_gpus(overrides: list[str], jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "this_machine", lambda config: Machine(1, 8, 1, (GPU,) * 4))
    monkeypatch.setattr(runs.devices, "gpus", lambda: ["a", "b", "c", "d"])
    found = runs.local_launcher(config.load_config("demo", ["hardware.device=cuda", *overrides]), None)
    assert (found.jobs, found.pool is None) == (jobs, "hardware.device=cpu" in overrides)


def test_the_base_models_are_named_by_their_digests() -> None:
    settings = config.load_config("smoke", [])
    model = models.resolve("countdown-tiny")
    assert runs.fetch_models(settings) == {"countdown-tiny": model.digest(model.folder())}


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "this_machine", lambda config: Machine(1, 8, 1, (GPU,) * 4))
    monkeypatch.setattr(runs.devices, "gpus", lambda: ["a", "b"])
    with pytest.raises(
        UserError, match=r"hardware.ranks is 4, and each rank needs its own GPU, but this machine has 2 GPUs"
    ):
        runs.local_launcher(config.load_config("demo", ["hardware.device=cuda", "hardware.ranks=4"]), None)


@pytest.mark.parametrize(
    ("uri", "hint"),
    [
        ("sqlite:///results/mlflow.db", "mlflow ui --backend-store-uri sqlite:///results/mlflow.db"),
        ("http://tracking.local:5000", "MLflow at http://tracking.local:5000"),
        ("HTTPS://tracking.local", "MLflow at HTTPS://tracking.local"),
        ("databricks", "MLflow at databricks"),
    ],
)
def test_the_hint_names_a_command_that_works_or_the_server(uri: str, hint: str) -> None:
    assert mlflow_hint(uri) == hint


# Cells that are done and were edited since


@pytest.fixture
def done(tmp_path: Path) -> list[Cell]:
    """Return two cells that are done, the second by another version of its method."""
    planned = cells(config.load_config("smoke", [f"results={tmp_path}"]))
    for cell in planned:
        sources = dict(cell.sources)
        if cell.method == "clip_b":
            sources["clip_b"] = "another"
        cell.spec.write(cell.folder)
        provenance.begin_attempt(cell.folder, sources, "cpu", None)
        (cell.folder / "metrics.jsonl").write_text("")
        checksums.write_checksums(cell.folder)
        State("done").write(cell.folder)
    return planned


WHY = r"1 cell was made by another version of clip_b \(clip_b seed 0\)"


def test_without_a_terminal_edited_cells_are_not_trained_again(
    done: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    todo = runs.unfinished(done, keep_stale=False)
    assert [cell.method for cell in todo] == ["clip_b"]
    with pytest.raises(UserError, match=rf"{WHY}; .* use --rerun-edited .*, to keep the numbers use --keep-stale"):
        runs.may_train_again(todo, rerun_edited=False)
    assert runs.may_train_again(todo, rerun_edited=True)
    assert runs.unfinished(done, keep_stale=True) == []
    State("failed").write(todo[0].folder)
    assert runs.may_train_again(todo, rerun_edited=False), "only numbers that count are worth a question"


@pytest.mark.parametrize(("answer", "agreed"), [("y", True), ("Yes", True), ("n", False), ("", False)])
def test_on_a_terminal_it_asks(
    answer: str, agreed: bool, done: list[Cell], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    questions: list[str] = []

    def answering(question: str) -> str:
        questions.append(question)
        return answer

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", answering)
    assert runs.may_train_again(done[1:], rerun_edited=False) == agreed
    assert questions == ["Train 1 cell that is done again from step 0? [y/N] "]
    assert re.search(WHY, capsys.readouterr().out)


def test_an_edit_that_is_undone_needs_no_question(done: list[Cell], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    folder = done[1].folder
    made = provenance.Made.read(folder)
    assert made is not None
    dataclasses.replace(made, sources=done[1].sources).write(folder)
    attempts.set_aside(folder, dataclasses.replace(made, sources=done[1].sources))
    provenance.begin_attempt(folder, done[1].sources | {"clip_b": "another"}, "cpu", None)
    State("done").write(folder)
    todo = runs.unfinished(done, keep_stale=False)
    assert todo == done[1:]
    assert runs.may_train_again(todo, rerun_edited=False)
    assert runs.take_back_undone_edits(todo)
    assert runs.unfinished(done, keep_stale=False) == []
