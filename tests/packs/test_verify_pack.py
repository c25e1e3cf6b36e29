"""`verify` judges the answers in a pack again, and its marks reach the table; `--replay` repeats a training."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from absent import hide_package
from answered import Forgery, Record
from boards import json_rows, show_table
from cells import set_state
from commands import verify
from trainers import SHORT

from harness.base import files
from harness.base.devices import processor
from harness.cells.log import MetricsLog
from harness.cells.provenance import Made
from harness.cells.spec import CellSpec
from harness.config import load_config
from harness.matrix import cells
from harness.packs import replay
from harness.packs.archive import unpacked
from harness.packs.exchange import pack_matrix
from harness.table import verified
from harness.table.verified import mark_of_row, marks_of_pack, write_marks

pytestmark = pytest.mark.slow


def test_verify_a_sound_pack(honest: Path) -> None:
    output = verify(str(honest))
    assert "grpo 2 120 0 0 judged again" in output
    assert "clip_b 2 120 0 0 judged again" in output
    assert "protocol v1 " in output
    rows = json_rows("--pack", str(honest))
    assert {row["checked"] for row in rows if row["method"] != "base model"} == {"judged again"}


def test_verify_a_wrong_verdict(forgery: Forgery, tmp_path: Path) -> None:
    def claim_right(answers: list[Record]) -> None:
        """Claim that an answer without a box is right."""
        answers[2]["verdicts"][2] = "right"

    forgery.edit_answers(claim_right)
    output = verify(str(forgery.write(tmp_path / "forged.zip")), code=1)
    assert "wrong: clip_b s0" in output
    assert "countdown at step 4: answer 3 to" in output
    assert "is unparsed, stored as right" in output
    assert "1 cell of 4 contradict" in output
    assert "clip_b 2 120 0 1 reported" in output
    assert "grpo 2 120 0 0 judged again" in output


def test_mark_of_row_by_the_most_steps() -> None:
    marks = [f"replayed to step {step} of 60" for step in (9, 10, 2)]
    assert mark_of_row(["judged again", *marks]) == "replayed to step 10 of 60"


def test_write_marks_keeps_replays() -> None:
    to_step_9, to_step_10 = (f"replayed to step {step} of 60" for step in (9, 10))
    for marks in (
        {"a": to_step_10, "b": "judged again", "c": to_step_9, "d": "reported"},
        {"a": to_step_9, "b": to_step_9, "c": "reported", "d": "judged again"},
        {"a": "judged again", "b": to_step_10, "c": "judged again", "d": "judged again"},
    ):
        write_marks("of a pack", marks)
    assert marks_of_pack("of a pack") == {"a": to_step_10, "b": to_step_10, "c": "judged again", "d": "judged again"}
    files.write_json(verified.marks_path("of a pack"), [])
    write_marks("of a pack", {"a": "judged again"})
    assert marks_of_pack("of a pack") == {"a": "judged again"}


def test_verify_counts_without_answers(forgery: Forgery, tmp_path: Path) -> None:
    shutil.rmtree(forgery.folder / "samples")
    output = verify(str(forgery.write(tmp_path / "counts.zip")))
    assert "clip_b 2 60 0 0 counts checked" in output
    assert "in the pack as counts alone, and not judged again: 60 answers" in output


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("eval", {"by_task": {"countdown": {"k": 1}}}),
        ("verify", {"limit_s": 1.5}),
        ("baseline", "clip_b"),
        ("plugins", ["gone"]),  # a plugin of a pack is not imported
    ],
)
def test_verify_a_cell_made_before_a_change(forgery: Forgery, tmp_path: Path, key: str, value: Any) -> None:
    """The change is of settings that are part of no cell."""
    settings = CellSpec.read(forgery.folder).settings
    forgery.edit_spec(settings={**settings, key: settings[key] | value if isinstance(value, dict) else value})
    assert "clip_b 2 120 0 0 judged again" in verify(str(forgery.write(tmp_path / "earlier.zip")))


def test_verify_a_pack_with_k_among_its_values(forgery: Forgery, tmp_path: Path) -> None:
    """As earlier versions wrote it."""
    for cell in forgery.summary["expected"]:
        cell["params"] |= {"eval.k": "2", "eval.by_task": "{'countdown': {'k': 2}}"}
    assert "clip_b 2 120 0 0 judged again" in verify(str(forgery.write(tmp_path / "earlier.zip")))


# Marks


def test_leaderboard_ignores_marks_beside_a_pack(honest: Path, tmp_path: Path) -> None:
    pack = Path(shutil.copy(honest, tmp_path / "theirs.zip"))
    with unpacked(pack) as opened:
        marks = {CellSpec.read(folder).id: "replayed" for folder in opened.cells}
    files.write_json(tmp_path / "theirs.zip.verified.json", {"sha256": files.sha256_of(pack), "cells": marks})
    assert {row["checked"] for row in json_rows("--pack", str(pack))[1:]} == {"reported"}


def test_leaderboard_ignores_marks_of_another_pack(honest: Path, forgery: Forgery, tmp_path: Path) -> None:
    verify(str(honest))
    forgery.edit_evaluation(step=5)
    forged = forgery.write(tmp_path / "forged.zip")
    rows = json_rows("--pack", str(forged), "--pack", str(honest))
    assert {row["checked"] for row in rows[1:]} == {"reported"}


def test_leaderboard_names_columns_stated_by_the_author(forgery: Forgery, tmp_path: Path) -> None:
    forgery.edit_log(lambda lines: lines[-1]["metrics"].update({"entropy/mean": 3.0}))
    pack = forgery.write(tmp_path / "forged.zip")
    verify(str(pack))
    text = show_table("--pack", str(pack), "--format", "md")
    [stated] = [line for line in text.splitlines() if "As the author states, unless replayed" in line]
    assert ": entropy, start; entropy, end; " in stated
    [judged] = [line for line in text.splitlines() if "Recomputed from the answers in rows judged again" in line]
    assert "Avg@K" in judged
    assert "entropy" not in judged


# Replay


def test_verify_refuses_options_before_judging(honest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verify(str(honest))
    marks = marks_of_pack(files.sha256_of(honest))

    def judge(*_: object) -> None:
        raise AssertionError("judged")

    monkeypatch.setattr("harness.packs.audit.audit_pack", judge)
    assert "--steps is 2, but no cell is replayed; --replay CELL names one" in verify(
        str(honest), "--steps", "2", code=2
    )
    assert "plugin nope cannot be imported" in verify(str(honest), "--plugin", "nope", code=2)
    assert "--replay is 'nope', which is not a cell" in verify(str(honest), "--replay", "nope", code=2)
    for steps in ("0", "5"):
        refused = verify(str(honest), "--replay", min(marks), "--steps", steps, code=2)
        assert f"--steps is {steps}; allowed: 1 to 4, the steps of the cell" in refused
    assert marks_of_pack(files.sha256_of(honest)) == marks


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "it was trained on a processor, and this machine is "),
        ({"device": "cuda"}, "it was trained on cuda, where sums are not repeated bit for bit"),
        ({"processor": processor()}, "cannot be replayed here: the base model countdown-tiny is "),
    ],
)
def test_replay_refuses_what_cannot_be_repeated(
    fields: dict[str, str], sentence: str, forgery: Forgery, tmp_path: Path
) -> None:
    forgery.edit_record("made.json", **fields)
    pack = forgery.write(tmp_path / "other.zip")
    assert sentence in verify(str(pack), "--replay", CellSpec.read(forgery.folder).id, code=2)


def test_replay_refuses_a_trainer_that_is_missing(forgery: Forgery, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_package(monkeypatch, "trl")
    forgery.edit_record("made.json", processor=processor())
    spec = CellSpec.read(forgery.folder)
    by_trl = dataclasses.replace(
        spec, settings={**spec.settings, "train": {**spec.settings["train"], "backend": "trl"}}
    )
    expected = "train.backend is 'trl', but trl is not installed here; pip install -e '.[trl]'"
    assert replay.obstacle(forgery.folder, by_trl) == expected


def test_replay_refuses_a_cell_without_steps(forgery: Forgery, tmp_path: Path) -> None:
    for last in (0, -1):
        MetricsLog(forgery.folder).truncate(last)
        pack = forgery.write(tmp_path / f"{last}.zip")
        refused = verify(str(pack), "--replay", CellSpec.read(forgery.folder).id, code=2)
        assert "clip_b s0 has no step of training, so nothing of it can be replayed" in refused


def test_replay_ends_before_the_record(forgery: Forgery, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where steps were added to a cell that had ended early."""
    lines = MetricsLog(forgery.folder).read()
    monkeypatch.setattr(replay, "trained_lines", lambda *_: lines[:2])
    assert replay.replay_steps(forgery.folder, 1) is None
    assert replay.replay_steps(forgery.folder, 2) == "training ends at step 1"


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
