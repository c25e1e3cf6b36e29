"""`unpack` puts finished cells into another matrix folder, whole or not at all, and `run` goes on from there."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from boards import NO_STORE, MadeUpMatrix, json_rows, smoke_matrix
from commands import run_command

from harness.base import identities
from harness.base.errors import Damaged, UserError
from harness.cells import checksums
from harness.cells.provenance import CHECKED_TAG, UNPACKED, mark_tags
from harness.cells.spec import CellSpec
from harness.matrix import cells, claim, leftovers
from harness.packs import archive
from harness.packs.exchange import Unpacked, pack_matrix, protocol_of_cells, unpack_cells
from harness.runs import unfinished
from harness.runs.tune import tuning_matrix
from harness.table.board import Board


def sent(tmp_path: Path, *ended: int) -> Path:
    """Return the pack of a matrix of six cells of which these are done, and the next one has failed."""
    made = smoke_matrix(tmp_path / "sender", NO_STORE)
    for index in ended:
        made.write(made.cells[index])
    made.write(made.cells[len(ended)], state="failed")
    path = tmp_path / "made.zip"
    pack_matrix(made.config, path)
    return path


def written(made: MadeUpMatrix, tmp_path: Path) -> Path:
    """Return the pack of the cells of a matrix that have a folder, whatever their records hold."""
    folders = [cell.folder for cell in made.cells if cell.folder.exists()]
    summary, protocol = Board.of_config(made.config, made.cells).as_json(), protocol_of_cells(made.cells)
    archive.write_pack(tmp_path / "made.zip", "made", summary, folders, protocol)
    return tmp_path / "made.zip"


def received(tmp_path: Path, pack: Path, *overrides: str, name: str = "received") -> tuple[MadeUpMatrix, Unpacked]:
    """Unpack a pack into a matrix of another name and another folder; return that and the counts."""
    ours = smoke_matrix(tmp_path / "receiver", NO_STORE, *overrides, name=name)
    with archive.unpacked(pack) as opened:
        return ours, unpack_cells(opened, ours.config, ours.cells)


def records(folder: Path) -> dict[str, bytes]:
    """Return the records of a cell's folder that its checksums cover, and its state and provenance."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("config.yaml", UNPACKED)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def states(made: MadeUpMatrix) -> list[str]:
    return [cell.progress().state for cell in made.cells]


@pytest.mark.parametrize(("more", "planned"), [([], 3), (["seeds=[0,1,2]"], 6)])
def test_unpack_puts_done_cells(more: list[str], planned: int, tmp_path: Path) -> None:
    """Also into more seeds: packs of other seeds have different protocols, and only a matrix can hold several."""
    ours, counts = received(tmp_path, sent(tmp_path, 0, 1, 2), *more)
    assert counts == Unpacked(put=3, failed=1)
    assert states(ours) == ["done"] * 3 + ["planned"] * planned
    assert unfinished(ours.cells) == ours.cells[3:]
    sender = smoke_matrix(tmp_path / "sender", NO_STORE)
    for theirs, cell in zip(sender.cells[:3], ours.cells[:3], strict=True):
        assert records(cell.folder) == records(theirs.folder)
        assert mark_tags(cell.folder) == {CHECKED_TAG: "reported"}
        spec = CellSpec.read(cell.folder)
        assert (spec.matrix, spec.id) == ("received", theirs.id)
        assert spec.settings["results"] == ours.config.results


def test_unpack_keeps_cells_that_have_begun(tmp_path: Path) -> None:
    pack = sent(tmp_path, 0, 1)
    ours = smoke_matrix(tmp_path / "receiver", NO_STORE, name="received")
    claim(ours.config)
    ours.write(ours.cells[0], state="failed", last=0.5)
    before = records(ours.cells[0].folder)
    _, counts = received(tmp_path, pack)
    assert counts == Unpacked(put=1, begun=1, failed=1)
    assert records(ours.cells[0].folder) == before
    assert received(tmp_path, pack)[1] == Unpacked(kept=1, begun=1, failed=1)


def test_unpack_leaves_out_other_settings(tmp_path: Path) -> None:
    pack = sent(tmp_path, 0, 1, 2)
    _, counts = received(tmp_path, pack, "methods=[grpo,ppo]", "seeds=[0]")
    assert counts == Unpacked(put=2, of_others=2)
    with pytest.raises(
        UserError, match=r"made\.zip \(matrix 'made'\) is one of the matrix 'third'; the protocols differ in train.lr"
    ):
        received(tmp_path, pack, "train.lr=0.5", name="third")
    assert not (tmp_path / "receiver" / "third").exists()


def test_unpack_refuses_another_version(tmp_path: Path) -> None:
    made = smoke_matrix(tmp_path / "sender", NO_STORE).write_all()
    for cell in made.cells:
        identity = {**cell.identity, "source": {**cell.sources, "grpo": "1" * 16}}
        dataclasses.replace(cell.spec, id=identities.key(identity), identity=identity).write(cell.folder)
    path = written(made, tmp_path)
    with pytest.raises(
        UserError, match=r"another version of grpo, which this one cannot continue; `leaderboard --pack`"
    ):
        received(tmp_path, path)


def test_unpack_into_the_folder_of_another_matrix(tmp_path: Path) -> None:
    ours = smoke_matrix(tmp_path / "receiver", NO_STORE, name="received")
    ours.config.folder.mkdir(parents=True)
    (ours.config.folder / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds files that entrobench did not make"):
        received(tmp_path, sent(tmp_path, 0))
    assert [path.name for path in ours.config.folder.iterdir()] == ["notes.txt"]


def test_unpack_refuses_a_changed_record(tmp_path: Path) -> None:
    """The pack's own sums fit: they are written after the change."""
    made = smoke_matrix(tmp_path / "sender", NO_STORE).write_all()
    folder = made.cells[1].folder
    record = next(folder.glob("evals/*.json"))
    record.write_bytes(record.read_bytes().replace(b"0", b"1", 1))
    assert [name for _, name in checksums.changed_records(folder)] == [str(record.relative_to(folder))]
    path = written(made, tmp_path)
    with pytest.raises(Damaged, match=r"made\.zip: cells/clip_b-.* it is not as it was when the cell was done"):
        received(tmp_path, path)
    assert not (tmp_path / "receiver").exists()


def test_unpack_refuses_a_damaged_attempt(tmp_path: Path) -> None:
    made = smoke_matrix(tmp_path / "sender", NO_STORE).write_all()
    (made.cells[1].folder / "made.json").write_text("[1]")
    pack_matrix(made.config, tmp_path / "made.zip")
    with pytest.raises(Damaged, match=r"made\.zip: cells/.*/made\.json is damaged"):
        received(tmp_path, tmp_path / "made.zip")
    assert not (tmp_path / "receiver").exists()


def test_unpack_by_identity(tmp_path: Path) -> None:
    made = smoke_matrix(tmp_path / "sender", NO_STORE, "seeds=[0]").write_all()
    first, second, _ = made.cells
    dataclasses.replace(first.spec, id=second.id).write(first.folder)
    shutil.rmtree(second.folder)
    path = written(made, tmp_path)
    ours, counts = received(tmp_path, path, "seeds=[0]")
    assert counts == Unpacked(put=2)
    assert states(ours) == ["done", "planned", "done"]


def test_unpack_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack, rename = sent(tmp_path, 0, 1), os.rename

    def interrupted_at(number: int) -> Callable[[Path, Path], None]:
        renamed: list[Path] = []

        def rename_or_stop(source: Path, target: Path) -> None:
            if len(renamed) == number:
                raise KeyboardInterrupt
            renamed.append(target)
            rename(source, target)

        return rename_or_stop

    monkeypatch.setattr(os, "rename", interrupted_at(1))
    with pytest.raises(KeyboardInterrupt):
        received(tmp_path, pack)
    monkeypatch.undo()
    ours = smoke_matrix(tmp_path / "receiver", NO_STORE, name="received")
    assert sorted(states(ours)) == ["done"] + ["planned"] * 5
    assert not leftovers(ours.config, ours.cells)
    assert received(tmp_path, pack)[1] == Unpacked(put=1, kept=1, failed=1)


def test_clean_after_a_killed_unpack(tmp_path: Path) -> None:
    ours, _ = received(tmp_path, sent(tmp_path, 0))
    left = ours.config.folder / f".{ours.cells[1].folder.name}.999999999"
    left.mkdir()
    (left / "config.yaml").write_text("cell: 0123\n")
    assert left in leftovers(ours.config, ours.cells)
    assert states(ours)[0] == "done"


def test_unpack_candidates_of_tuning(tmp_path: Path) -> None:
    """Before there is a choice, which the ruleset `tuned` asks for elsewhere."""
    candidates = "tune.candidates={grpo: [grpo, grpo(lr=2e-3)], clip_b: [clip_b, clip_b(share=0.05)]}"
    methods = ("methods=[grpo,clip_b]", candidates)
    made = [smoke_matrix(tmp_path / side, NO_STORE, *methods) for side in ("sender", "receiver")]
    for side in made:
        side.config = tuning_matrix(side.config)
        side.cells = cells(side.config)
    sender, ours = made
    sender.write_all()
    pack = str(tmp_path / "made-tune.zip")
    for command, side in ((["pack", "--out", pack], sender), (["unpack", pack], ours)):
        given = ["name=made", f"results={side.config.results}", f"tracking.uri={NO_STORE}", "ruleset=tuned"]
        said = run_command(*command, "smoke", *given, *methods, "--candidates")
    assert "`entrobench tune` makes the cells that are missing" in said
    assert states(ours) == ["done"] * len(sender.cells)
    for theirs, cell in zip(sender.cells, ours.cells, strict=True):
        assert records(cell.folder) == records(theirs.folder)


@pytest.mark.slow
def test_leaderboard_of_an_unpacked_matrix(tmp_path: Path, put_store: Callable[[Path], None]) -> None:
    put_store(tmp_path / "results")
    made = smoke_matrix(tmp_path / "sender", NO_STORE).write_all()
    pack = tmp_path / "made.zip"
    pack_matrix(made.config, pack)
    given = [f"results={tmp_path / 'results'}", "name=made", "methods=[grpo,clip_b,ppo]", "seeds=[0,1]"]
    assert "6 cells put into the matrix" in run_command("unpack", str(pack), "smoke", *given)
    run_command("sync", "smoke", *given)
    of_pack = json_rows("--pack", str(pack))
    of_folder = json_rows("smoke", *given)
    assert [row | {"checked": None} for row in of_pack] == [row | {"checked": None} for row in of_folder]
