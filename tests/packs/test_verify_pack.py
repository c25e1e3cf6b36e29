"""`verify` judges the answers in a pack again: a wrong verdict, score or identity is found, whatever its sums say."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from answered import answered_pack, change_made
from boards import json_rows
from cells import set_state
from commands import run_command
from trainers import SHORT

from harness.base import files
from harness.cells import checksums
from harness.cells.log import MetricsLog
from harness.cells.provenance import Made, processor
from harness.cells.spec import CellSpec
from harness.config import load_config
from harness.matrix import Cell, cells
from harness.packs import archive, replay
from harness.packs.exchange import pack_matrix
from harness.table import verified
from harness.table.verified import marks_of_pack

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def marks_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep marks out of the user's cache."""
    monkeypatch.setattr(verified, "marks_path", lambda digest: tmp_path / "marks" / f"{digest}.json")


def verify(*arguments: str, code: int = 0) -> str:
    """Return the output of `entrobench verify`, on one line."""
    return " ".join(run_command("verify", *arguments, code=code).split())


def test_verify_a_sound_pack(tmp_path: Path) -> None:
    pack = answered_pack(tmp_path)
    output = verify(str(pack))
    assert "grpo 2 80 0 0 judged again" in output
    assert "clip_b 2 80 0 0 judged again" in output
    assert "protocol v1 " in output
    rows = json_rows("--pack", str(pack))
    assert {row["checked"] for row in rows if row["method"] != "base model"} == {"judged again"}


def test_verify_refuses_options_before_judging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = answered_pack(tmp_path)
    verify(str(pack))
    digest = files.sha256_of(pack)
    marks = marks_of_pack(digest)

    def judge(*_: object) -> None:
        raise AssertionError("judged")

    monkeypatch.setattr("harness.packs.audit.audit_pack", judge)
    assert "plugin nope cannot be imported" in verify(str(pack), "--plugin", "nope", code=2)
    assert "--replay is 'nope', which is not a cell" in verify(str(pack), "--replay", "nope", code=2)
    with archive.unpacked(pack) as opened:
        cell = CellSpec.read(opened.cells[0]).id
    assert "--steps is 0; allowed: 1 to" in verify(str(pack), "--replay", cell, "--steps", "0", code=2)
    assert marks_of_pack(digest) == marks


def wrong_verdict(samples: list[dict[str, Any]]) -> None:
    """Claim that an answer without a box is right, and has a form of its own."""
    samples[2]["verdicts"][2] = "right"
    samples[2]["answers"][2] = "1+1"


def test_verify_finds_a_wrong_verdict(tmp_path: Path) -> None:
    output = verify(str(answered_pack(tmp_path, edit=wrong_verdict)), code=1)
    assert "wrong: clip_b s1" in output
    assert "countdown at step 1: answer 3 to" in output
    assert "is unparsed, stored as right" in output
    assert "1 cell of 4 contradict" in output
    assert "clip_b 2 80 0 1 reported" in output
    assert "grpo 2 80 0 0 judged again" in output


def raised_score(cell: Cell) -> None:
    log = MetricsLog(cell.folder)
    lines = log.read()
    lines[1]["metrics"]["eval/countdown/avg"] += 0.05
    log.write(lines)
    checksums.write_checksums(cell.folder)


def other_identity(cell: Cell) -> None:
    spec = CellSpec.read(cell.folder)
    spec.identity["train"]["lr"] = 0.5
    spec.write(cell.folder)


def fewer_steps(cell: Cell) -> None:
    MetricsLog(cell.folder).truncate(0)
    checksums.write_checksums(cell.folder)


def other_prompt(samples: list[dict[str, Any]]) -> None:
    samples[0]["prompt"] = "1 1 2=4:"


def other_problem(samples: list[dict[str, Any]]) -> None:
    samples[0]["problem"] = "of my own"


def no_verdicts(cell: Cell) -> None:
    """Leave samples out of which a key is missing, with right sums."""
    for path in (cell.folder / "samples").glob("evaluate-*"):
        records = files.read_lines(path)
        del records[0]["verdicts"]
        files.write_lines(path, records)
    checksums.write_checksums(cell.folder)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"then": raised_score}, "its answers give eval/countdown/avg = "),
        ({"then": other_identity}, "its identity has the hash "),
        ({"then": fewer_steps}, "metrics.jsonl does not hold the steps 0 to 1"),
        ({"then": no_verdicts}, "its records are not those of a cell (KeyError"),
        ({"edit": other_prompt}, "is another one"),
        ({"edit": other_problem}, "its problems are not the first 5 of test"),
    ],
)
def test_verify_finds_contradictions(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    output = verify(str(answered_pack(tmp_path, **changes)), code=1)
    assert sentence in output
    assert "reported" in output


def test_verify_counts_without_answers(tmp_path: Path) -> None:
    def without_samples(cell: Cell) -> None:
        for path in (cell.folder / "samples").glob("*"):
            path.unlink()
        checksums.write_checksums(cell.folder)

    output = verify(str(answered_pack(tmp_path, then=without_samples)))
    assert "clip_b 2 40 0 0 counts checked" in output
    assert "40 answers are in the pack as counts alone, and were not judged again" in output


def test_verify_imports_no_plugin_of_a_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_plugin(cell: Cell) -> None:
        spec = CellSpec.read(cell.folder)
        dataclasses.replace(spec, settings={**spec.settings, "plugins": ["hostile"]}).write(cell.folder)

    (tmp_path / "hostile.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.chdir(tmp_path)
    pack = answered_pack(tmp_path, then=with_plugin)
    assert "clip_b 2 80 0 0 judged again" in verify(str(pack))


# Replay


def last_cell(pack: Path) -> str:
    return [*marks_of_pack(files.sha256_of(pack))][-1]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "it was trained on a processor, and this machine is "),
        ({"device": "cuda"}, "it was trained on cuda, where sums are not repeated bit for bit"),
        ({"processor": processor()}, "cannot be replayed here: the base model countdown-tiny is "),
    ],
)
def test_replay_refuses_what_cannot_be_repeated(tmp_path: Path, fields: dict[str, Any], sentence: str) -> None:
    changed: list[str] = []

    def change(cell: Cell) -> None:
        change_made(cell, **fields)
        changed.append(cell.id)

    pack = answered_pack(tmp_path, then=change)
    assert sentence in verify(str(pack), "--replay", changed[0], "--steps", "1", code=2)


def test_replay_refuses_unknown_cells_and_steps(tmp_path: Path) -> None:
    pack = answered_pack(tmp_path)
    assert "--replay is 'x', which is not a cell of the pack" in verify(str(pack), "--replay", "x", code=2)
    verify(str(pack))
    steps = ["--replay", last_cell(pack), "--steps", "7"]
    assert "--steps is 7; allowed: 1 to 1" in verify(str(pack), *steps, code=2)


def test_replay_bit_for_bit(tmp_path: Path) -> None:
    config = load_config("demo", [*SHORT, "methods=[grpo]", "seeds=[0]", f"results={tmp_path / 'results'}"])
    [cell] = cells(config)
    trained = replay.trained_lines(cell.spec, cell.folder, config.train.steps)
    assert len(trained) == 5
    base_model = replay.models.resolve(cell.model)
    digest = base_model.digest(base_model.folder())
    made = Made("a", 1.0, "0.1.0", None, None, cell.sources, {}, processor(), "cpu", digest, "h")
    for edited, code in ((False, 0), (True, 1)):
        made.write(cell.folder)
        if edited:
            log = MetricsLog(cell.folder)
            lines = log.read()
            lines[2]["metrics"]["entropy/mean"] += 1e-12
            log.write(lines)
        set_state(cell.folder, "done", durable_step=4)
        pack_matrix(config, tmp_path / "demo.zip")
        output = verify(str(tmp_path / "demo.zip"), "--replay", cell.id, "--steps", "2", code=code)
        assert ("grpo 1 64 0 0 replayed to step 2 of 4" in output) == (code == 0)
        assert ("replayed, step 2: entropy/mean is " in output) == (code == 1)
