"""Identities and stored records stay the same: results of an earlier version remain valid."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from harness import config, matrix
from harness.cells import checksums
from harness.cells.log import MetricsLog
from harness.cells.outcome import cell_outcome
from harness.cells.provenance import Made
from harness.cells.spec import CellSpec, id_in

# A cell that is done, written at commit 6cbc207: its records are read, never written again.
FINISHED = Path(__file__).parent / "finished" / "clip_b-countdown-countdown-tiny-s0-623ecab479b8"
HERE = ["hardware.device=cpu", "rollout.engine=embedded"]  # independent of the test's machine

# The ids at commit 6cbc207 of the first and the last cell of shipped configurations. An id may change only with a
# setting that changes results; all finished cells are then trained again, so a change here must be meant. The field got
# its constants, learning rate and seeds, and so its ids, on 23 November 2026, and the demo its steps and seeds on the
# 26th; demo-tuned has the ids that the demo had.
IDS = {
    "demo": ("6dc514fceb92", "ae25edd35550"),
    "demo-tuned": ("37c8f98f7aa8", "e83a37b6d9b5"),
    "smoke": ("35a2b8f13bf2", "623ecab479b8"),
    "field": ("88edf763ef6e", "4aba0519ca1e"),
    "coloring": ("35a6e97d4f2e", "89951df1499a"),
    "paper": ("134ecd15a904", "43761870cbf2"),
}


@pytest.mark.parametrize("name", IDS)
def test_the_ids_of_shipped_cells(name: str) -> None:
    cells = matrix.cells(config.load_config(name, HERE))
    assert (cells[0].id, cells[-1].id) == IDS[name]


@pytest.fixture
def cell(tmp_path: Path) -> matrix.Cell:
    """Return the cell as the present version plans it, with the records of the earlier version in its folder."""
    overrides = [*HERE, "methods=[clip_b]", "baseline=clip_b", f"results={tmp_path}"]
    [planned] = matrix.cells(config.load_config("smoke", overrides))
    assert planned.folder.name == FINISHED.name
    shutil.copytree(FINISHED, planned.folder)
    return planned


def test_a_finished_cell_of_an_earlier_version_is_done(cell: matrix.Cell) -> None:
    made = Made.read(cell.folder)
    assert made is not None
    assert {name: len(digest) for name, digest in made.sources.items()} == {"grpo": 12, "clip_b": 12, "countdown": 12}
    # The digests of that version are of the files' texts. Where no file was edited since, they are the present ones.
    texts = {name: digest.partition("-")[0] for name, digest in cell.sources.items()}
    dataclasses.replace(made, sources=texts).write(cell.folder)
    progress = cell.progress()
    assert (progress.state, progress.step, progress.seconds) == ("done", cell.config.train.steps, 60.0)
    assert not list(checksums.changed_records(cell.folder))


def test_the_records_of_an_earlier_version_hold_the_same(cell: matrix.Cell) -> None:
    spec = CellSpec.read(cell.folder)
    assert (spec.id, id_in(cell.folder), spec.key) == (cell.id, cell.id, cell.key)
    assert (spec.identity, spec.matrix, spec.made_of) == (cell.identity, "smoke", cell.spec.made_of)
    lines = MetricsLog(cell.folder).read()
    assert [line["step"] for line in lines] == list(range(cell.config.train.steps + 1))
    assert cell_outcome(cell.folder, spec, lines)["tasks"]["countdown"]["problems"] == ["p1", "p2"]


def test_a_record_is_written_as_before(cell: matrix.Cell, tmp_path: Path) -> None:
    CellSpec.read(cell.folder).write(tmp_path)
    assert (tmp_path / "config.yaml").read_bytes() == (FINISHED / "config.yaml").read_bytes()
