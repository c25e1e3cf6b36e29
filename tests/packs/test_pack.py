"""A pack gives the table of the folder that it was made from; damage to it is noticed; rows of two protocols differ."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import lzma
import re
import shutil
import tarfile
import tempfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from boards import NO_STORE, MadeUpMatrix, json_rows, show_table, smoke_matrix
from commands import refusal, run_command
from frames import made_up_frames
from full_disk import files_of_at_most

import entrobench
from harness.base import files, seal
from harness.base.errors import Damaged, UserError
from harness.cells import checksums
from harness.packs import archive
from harness.packs.exchange import pack_matrix
from harness.packs.protocol import protocol_of
from harness.packs.reader import added_cells
from harness.page import page
from harness.table.board import NO_CELL, Board, Expected
from harness.table.frames import Frames, check_all_comparable


def packed(tmp_path: Path, name: str, *overrides: str) -> Path:
    """Write the pack of a made-up matrix, which needs no MLflow, and return its path."""
    made = smoke_matrix(tmp_path / f"results-{name}", NO_STORE, *overrides, name=name).write_all()
    path = tmp_path / f"{name}.zip"
    pack_matrix(made.config, path)
    return path


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("packs"), "made")


# The round trip


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> tuple[MadeUpMatrix, Path]:
    """A made-up matrix in MLflow, where one cell has failed and one has not begun, and its pack."""
    folder = tmp_path_factory.mktemp("sent")
    shutil.copy(migrated, folder / "mlflow.db")
    made = smoke_matrix(folder / "results", f"sqlite:///{folder / 'mlflow.db'}", "axes={train.lr: [0.1, 0.2]}")
    for cell in made.cells[:-2]:
        made.send(cell)
    made.send(made.cells[-2], state="failed")
    path = folder / "made.zip"
    assert pack_matrix(made.config, path) == (len(made.cells) - 1, len(made.cells))
    return made, path


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--compare"], ["--baseline", "ppo"], ["--where", "seed=0"]])
def test_leaderboard_of_a_pack_and_of_its_folder(sent: tuple[MadeUpMatrix, Path], options: list[str]) -> None:
    made, path = sent
    ours = [f"results={made.config.results}", f"tracking.uri={made.config.tracking_uri}", "name=made"]
    ours += ["methods=[grpo,clip_b,ppo]", "seeds=[0,1]", "axes={train.lr: [0.1, 0.2]}"]
    of_folder = json_rows("smoke", *ours, *options)
    of_pack = json_rows("--pack", str(path), *options)
    assert [row | {"checked": None} for row in of_pack] == [row | {"checked": None} for row in of_folder]
    assert len(of_pack) >= 8


def test_packs_in_python(pack: Path, tmp_path: Path) -> None:
    table = entrobench.Packs(pack).leaderboard()
    rows = json_rows("--pack", str(pack))
    assert table["avg_at_k.mean"].tolist() == [row["avg_at_k"]["mean"] for row in rows]
    assert set(table["checked"].dropna()) == {"reported"}
    page = entrobench.Packs(pack).report(tmp_path / "page.html").read_text()
    assert "the files made.zip" in page
    with pytest.raises(UserError, match=f"^{tmp_path} is a folder; a page needs the name of a file$"):
        entrobench.Packs(pack).report(tmp_path)
    with pytest.raises(UserError, match=r"^Packs\(\) names no file; write for example Packs\('demo.zip'\)$"):
        entrobench.Packs()


@pytest.mark.parametrize("slim_form", [False, True])
def test_pack_matrix_keeps_answers_that_it_lacks(slim_form: bool, tmp_path: Path) -> None:
    """The file may come from another person, and hold the only copy of its answers."""
    made = smoke_matrix(tmp_path / "results", NO_STORE, name="made")
    for cell in made.cells[:4]:
        made.write(cell)
    path = tmp_path / "made.zip"
    pack_matrix(made.config, path, slim_form=slim_form)
    for cell in made.cells[4:]:
        made.write(cell)
    pack_matrix(made.config, path, slim_form=slim_form)  # with more cells
    whole = path.read_bytes()
    part = dataclasses.replace(made.config, seeds=[0])
    with pytest.raises(UserError, match=r"made\.zip holds answers that the new pack lacks \(cells/clip_b-"):
        pack_matrix(part, path, slim_form=slim_form)
    changed = made.cells[0].folder / "evals" / "countdown-000001.json"
    record = files.read_sealed(changed)
    files.write_sealed(changed, record | {"right": record["right"][::-1]})
    checksums.write_checksums(made.cells[0].folder)
    with pytest.raises(UserError, match=r"\(cells/grpo-.*--out names another file"):
        pack_matrix(made.config, path, slim_form=slim_form)
    assert path.read_bytes() == whole
    notes = tmp_path / "notes.zip"
    notes.write_text("mine")
    with pytest.raises(UserError, match=r"notes\.zip is not a pack"):
        pack_matrix(made.config, notes)
    assert notes.read_text() == "mine"


def test_pack_matrix_writes_a_zip_of_a_tar(tmp_path: Path) -> None:
    made = smoke_matrix(tmp_path / "results", NO_STORE)
    for cell in made.cells:
        (cell.folder / "model").mkdir(parents=True)
        (cell.folder / "model" / "model.safetensors").write_bytes(b"weights")
        (cell.folder / "checkpoints").mkdir()
        (cell.folder / "log.txt").write_text("output")
        made.write(cell)
    for name in ("made.zip", "again.zip"):
        pack_matrix(made.config, tmp_path / name)
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "made.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "made.zip") as file:
        assert file.namelist() == ["manifest.json", "matrix.json", "cells.tar.xz"]
        manifest = json.loads(file.read("manifest.json"))
        with tarfile.open(fileobj=io.BytesIO(file.read("cells.tar.xz"))) as records:
            names = records.getnames()
    assert {"matrix.json", *names} == manifest["files"].keys()
    assert {Path(name).name for name in names if name.count("/") == 2} == {
        *("config.yaml", "state.json", "made.json", "metrics.jsonl", "sums.json")
    }
    assert len(entrobench.Packs(tmp_path / "made.zip").leaderboard()) == 4


def test_pack_matrix_without_done_cells(tmp_path: Path) -> None:
    made = smoke_matrix(tmp_path / "results", NO_STORE)
    made.write(made.cells[0], state="failed")
    with pytest.raises(UserError, match=r"no cell of the matrix made in .* is done, so there is nothing to pack"):
        pack_matrix(made.config, tmp_path / "made.zip")
    assert not (tmp_path / "made.zip").exists()


def test_pack_matrix_refuses_a_damaged_cell(tmp_path: Path) -> None:
    made = smoke_matrix(tmp_path / "results", NO_STORE).write_all()
    metrics = made.cells[0].folder / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes().replace(b"2.0", b"3.0", 1))
    with pytest.raises(Damaged, match=r"metrics\.jsonl"):
        pack_matrix(made.config, tmp_path / "made.zip")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [("", "^{} changed while it was packed; pack again when its cell has ended$"), (None, "No such file .*: '{}'$")],
)
def test_pack_matrix_refuses_a_cell_that_runs_again(
    content: str | None, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = smoke_matrix(tmp_path / "results", NO_STORE)
    made.write(made.cells[0])
    made.write(made.cells[1], state="failed")
    metrics, add_member = made.cells[1].folder / "metrics.jsonl", archive.add_member

    def run_again(*member: Any) -> None:
        """Add a member after the sums of the records were taken, while the cell that failed is run again."""
        add_member(*member)
        metrics.unlink(missing_ok=True)
        if content is not None:
            metrics.write_text(content)

    monkeypatch.setattr(archive, "add_member", run_again)
    with pytest.raises((UserError, FileNotFoundError), match=sentence.format(metrics)):
        pack_matrix(made.config, tmp_path / "made.zip")
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


# Damage


def test_check_whole_notices_every_byte(pack: Path, tmp_path: Path) -> None:
    content = pack.read_bytes()
    damaged = [content[:end] for end in (0, 3, 100, -200, -1)]
    for place in range(0, len(content), max(len(content) // 400, 1)):
        damaged.append(content[:place] + bytes([content[place] ^ 1 << (place % 8)]) + content[place + 1 :])
    changed = tmp_path / "changed.zip"
    for each in damaged:
        changed.write_bytes(each)
        with pytest.raises(UserError, match=r"is not a pack|it was cut off|it was edited"):
            archive.check_whole(changed)


def test_unpacked_leaves_no_folder_if_a_signal_stops_its_deletion(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    deletions = []

    def interrupted(folder: Any, rmtree: Any = shutil.rmtree, **options: Any) -> None:
        deletions.append(folder)
        if len(deletions) == 1:
            raise KeyboardInterrupt
        rmtree(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt), archive.unpacked(pack):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("slim", [False, True])
def test_unpacked_in_a_full_temporary_folder(slim: bool, pack: Path, tmp_path: Path) -> None:
    room = 100
    if slim:  # of which only a record of a cell is too large
        column = json.dumps(["file state.json", {"x": "0" * 500_000}])
        pack, room = with_columns(pack, tmp_path / "slim.zip", f"{column}\n".encode()), 200_000
    sentence = r"cannot be opened in .*: File too large; set TMPDIR to another folder"
    with files_of_at_most(room), pytest.raises(UserError, match=sentence) as it, archive.unpacked(pack):
        pass
    assert not isinstance(it.value, Damaged)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["leaderboard", "--pack", "gone.zip"], "the pack gone.zip is missing"),
        (["leaderboard", "--pack", "."], ". is a folder; a pack is a file"),
        (["pack", "demo", "--out", "."], "--out . is a folder; it must name a file"),
        (["leaderboard", "demo", "--pack", "a.zip"], "needs one of three"),
        (["report", "demo", "--uri", "sqlite:///x.db"], "--uri goes with --experiment"),
        (["leaderboard", "demo", "--uri", "sqlite:///x.db"], "--uri goes with --experiment"),
        (["leaderboard", "--pack", "a.zip", "--uri", "sqlite:///x.db"], "--uri goes with --experiment"),
        (["leaderboard", "--pack", "a.zip", "--plugin", "mine"], "--plugin goes with a CONFIG"),
        (["report", "--experiment", "e", "--plugin", "mine"], "--plugin goes with a CONFIG"),
    ],
)
def test_pack_options_that_are_refused(arguments: list[str], words: str) -> None:
    assert words in refusal(*arguments)


def edited(pack: Path, path: Path, changes: dict[str, bytes | None], *, mend: bool) -> Path:
    """Copy a pack with other files in it, None for one less; `mend`: with the sum at its end computed again."""
    with zipfile.ZipFile(pack) as old, zipfile.ZipFile(path, "w") as new:
        present = {name: old.read(name) for name in old.namelist()}
        for name, content in (present | changes).items():
            if content is not None:
                archive.add_member(new, name, content)
        new.comment = old.comment
    if mend:
        seal.close_file(path)
    return path


def manifest_with(pack: Path, files: dict[str, Any]) -> bytes:
    """Return the manifest of a pack with other files beside matrix.json."""
    with zipfile.ZipFile(pack) as old:
        manifest = json.loads(old.read("manifest.json"))
    manifest["files"] = {"matrix.json": manifest["files"]["matrix.json"], **files}
    return json.dumps(manifest).encode()


def with_records(
    pack: Path,
    path: Path,
    records: dict[str, bytes],
    files: dict[str, Any],
    kind: bytes = tarfile.REGTYPE,
    pax: dict[str, str] | None = None,
) -> Path:
    """Copy a pack with these records, and with other entries in its manifest."""
    stream = io.BytesIO()
    with lzma.open(stream, "wb") as compressed:
        for name, content in records.items():
            header = tarfile.TarInfo(name)
            header.size, header.type, header.pax_headers = len(content), kind, pax or {}
            compressed.write(header.tobuf() + content + bytes(-len(content) % tarfile.BLOCKSIZE))
        compressed.write(bytes(2 * tarfile.BLOCKSIZE))  # the end of a tar
    changes: dict[str, bytes | None] = {
        archive.RECORDS_FILE: stream.getvalue(),
        "manifest.json": manifest_with(pack, files),
    }
    return edited(pack, path, changes, mend=True)


def check_refused(path: Path, sentence: str) -> None:
    with pytest.raises(Damaged, match=sentence), archive.unpacked(path):
        pass


@pytest.mark.parametrize(
    "name", ["../outside", "cells/a/../../outside", "cells/../config.yaml", "cells/x/run.sh", "/outside"]
)
def test_unpacked_refuses_other_paths(pack: Path, tmp_path: Path, name: str) -> None:
    path = with_records(pack, tmp_path / "hostile.zip", {name: b"x"}, {name: [1, "0" * 64]})
    check_refused(path, "is not a record of a cell")
    assert not (tmp_path / "outside").exists()


def test_unpacked_refuses_records_beyond_the_manifest(pack: Path, tmp_path: Path) -> None:
    name, content = "cells/x/state.json", b"{}"
    entry = [len(content), hashlib.sha256(content).hexdigest()]
    path, record = tmp_path / "other.zip", {name: content}
    check_refused(
        with_records(pack, path, record, {}), "'cells/x/state.json' in it is not the record that its manifest"
    )
    check_refused(with_records(pack, path, {}, {name: entry}), "it lacks cells/x/state.json, which its manifest.json")
    check_refused(with_records(pack, path, record, {name: [3, entry[1]]}), "is not the record that its manifest")
    check_refused(with_records(pack, path, record, {name: [2, "0" * 64]}), "state.json in it does not fit its sum")
    check_refused(edited(pack, path, {"more.json": b"{}"}, mend=True), "its files are not manifest.json, matrix.json")
    check_refused(edited(pack, path, {"matrix.json": b"{}"}, mend=True), "matrix.json in it does not fit its sum")
    check_refused(edited(pack, path, {"matrix.json": b"{}"}, mend=False), "it was edited since")


@pytest.mark.parametrize(
    ("name", "pax"),
    [
        ("cells/x\0y/state.json", {"path": "cells/x\0y/state.json"}),
        ("cells/x/state.json", {"GNU.sparse.map": "a,b"}),
    ],
)
def test_unpacked_refuses_headers_without_sense(pack: Path, tmp_path: Path, name: str, pax: dict[str, str]) -> None:
    """Python's modules raise a plain ValueError for them."""
    entry = [2, hashlib.sha256(b"{}").hexdigest()]
    path = with_records(pack, tmp_path / "odd.zip", {name: b"{}"}, {name: entry}, pax=pax)
    check_refused(path, "it is not a zip that `entrobench pack` writes")


def test_a_sealed_file_that_is_no_zip_is_refused(sent: tuple[MadeUpMatrix, Path], tmp_path: Path) -> None:
    made, pack = sent
    odd = edited(pack, tmp_path / "odd.zip", {"\u00e9.json": b"{}"}, mend=False)
    odd.write_bytes(odd.read_bytes().replace("\u00e9".encode(), b"\xff\xff"))  # a name that is not UTF-8
    other = tmp_path / "other.zip"
    other.write_bytes(b"PK\x03\x04" + bytes(500))
    for path in (odd, other):
        seal.close_file(path)
        sentence = f"{path} is damaged: it is not a zip that `entrobench pack` writes"
        assert sentence in refusal("leaderboard", "--pack", str(path))
        with pytest.raises(Damaged, match=re.escape(sentence)):
            pack_matrix(made.config, path)


def test_unpacked_refuses_a_bomb(pack: Path, tmp_path: Path) -> None:
    """Zeros compress to nothing. They are in a record, or in the header of one, which tarfile reads into memory."""
    name, path = "cells/x/state.json", tmp_path / "bomb.zip"
    sentences = {
        tarfile.REGTYPE: "is not the record that its manifest",
        tarfile.XHDTYPE: "are longer than its manifest",
    }
    for kind, sentence in sentences.items():
        bomb = with_records(pack, path, {name: bytes(50_000_000)}, {name: [2, "0" * 64]}, kind)
        assert bomb.stat().st_size < 50_000
        check_refused(bomb, sentence)
    large_records = ("evals/countdown-000000.json", "samples/evaluate-countdown-000000.jsonl", "metrics.jsonl")
    for record in (name, *(f"cells/x/{large}" for large in large_records)):
        large = with_records(pack, path, {}, {record: [100_000_000, "0" * 64]})
        check_refused(large, "in it has 100,000,000 bytes, more than a pack of its size may hold")


def test_unpacked_refuses_a_large_file(pack: Path, tmp_path: Path) -> None:
    path, sentence = tmp_path / "bomb.zip", "in it has 50,000,000 bytes, more than a pack of its size may hold"
    for name in ("manifest.json", "matrix.json"):
        check_refused(edited(pack, path, {name: b" " * 50_000_000}, mend=True), f"{name} {sentence}")
    check_refused(with_columns(pack, path, b"", 50_000_000), sentence)


# The slim form


def test_pack_slim_gives_the_same_table_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = smoke_matrix(tmp_path / "results", NO_STORE).write_all()
    pack, slim, again = (tmp_path / name / "made.zip" for name in ("whole", "slim", "again"))
    for path in (pack, slim, again):
        path.parent.mkdir()
    pack_matrix(made.config, pack)
    pack_matrix(made.config, slim, slim_form=True)
    for arguments in (["--format", "json"], ["--format", "md", "--compare"]):
        texts = []
        for source in (pack, slim):
            run_command("leaderboard", "--pack", str(source), *arguments, "--out", str(tmp_path / "table"))
            texts.append((tmp_path / "table").read_text())
        assert texts[0] == texts[1]
    clock = mock.Mock(wraps=datetime)
    clock.now.return_value = datetime(2026, 1, 1, tzinfo=UTC)  # or the two are of different minutes now and then
    monkeypatch.setattr(page, "datetime", clock)
    pages = [page.report_of_packs([source], tmp_path / "page.html").read_text() for source in (pack, slim)]
    assert pages[0] == pages[1]
    with archive.unpacked(slim) as opened:  # its cells, as `unpack` puts them into a matrix
        folders = [opened.folder / "cells" / cell.folder.name for cell in made.cells]
        summary = (opened.folder / archive.SUMMARY).read_text()
        archive.write_pack(again, "made", summary, folders, opened.protocol, slim_form=True)
    assert again.read_bytes() == slim.read_bytes()


def with_columns(pack: Path, path: Path, content: bytes, size: int | None = None) -> Path:
    """Write the slim form of a pack with these columns; `size`: of them by the manifest, if it is another one."""
    sums = {archive.COLUMNS_FILE: [size or len(content), hashlib.sha256(content).hexdigest()]}
    changes = {
        archive.RECORDS_FILE: None,
        archive.COLUMNS_FILE: lzma.compress(content),
        "manifest.json": manifest_with(pack, sums),
    }
    return edited(pack, path, changes, mend=True)


@pytest.mark.parametrize(
    ("name", "cell", "sentence"),
    [
        ("file ../state.json", "x", "its columns are not those of cells"),
        ("file state.json", "..", "has no name of a folder"),
        ("evals task ../../a-000001.json", "x", "its columns are not those of cells"),
    ],
)
def test_unpacked_refuses_other_columns(pack: Path, tmp_path: Path, name: str, cell: str, sentence: str) -> None:
    content = json.dumps([name, {cell: "{}"}]).encode() + b"\n"
    check_refused(with_columns(pack, tmp_path / "hostile.zip", content), sentence)


@pytest.mark.parametrize(("samples", "right"), [(10**12, [1]), (4, [10**12]), (4, [-(10**12)]), (-4, [1])])
def test_unpacked_refuses_many_answers_in_a_slim_pack(
    pack: Path, tmp_path: Path, samples: int, right: list[int]
) -> None:
    parts = {"task": "countdown", "step": 0, "problems": ["a"], "samples": samples, "right": right}
    columns = [[f"evals {key} countdown-000000.json", {"x": value}] for key, value in parts.items()]
    content = "".join(f"{json.dumps(column)}\n" for column in columns).encode()
    check_refused(with_columns(pack, tmp_path / "hostile.zip", content), "has too many answers")


# Several packs, and protocols


def test_leaderboard_of_two_packs(pack: Path, tmp_path: Path) -> None:
    """Their methods and machines differ, and their protocol does not."""
    others = ["methods=[grpo,rloo,clip_b]", "method_options={clip_b: {share: 0.5}}"]
    theirs = packed(tmp_path, "theirs", *others, "verify.workers=1", "hardware.micro_tokens=512")
    rows = {row["method"]: row for row in json_rows("--pack", str(pack), "--pack", str(theirs))}
    assert list(rows) == ["base model", "grpo", "clip_b", "ppo", "rloo", "clip_b (theirs)"]
    alone = {row["method"]: row for row in json_rows("--pack", str(theirs))}
    assert rows["rloo"]["avg_at_k"] == alone["rloo"]["avg_at_k"]
    assert rows["grpo"]["seeds_done"] == 2


def test_leaderboard_of_two_packs_with_a_cell_that_failed_in_the_first(pack: Path, tmp_path: Path) -> None:
    made = smoke_matrix(tmp_path / "results", NO_STORE, name="made").write_all()
    made.write(made.cells[0], state="failed")
    pack_matrix(made.config, tmp_path / "first.zip")
    rows = json_rows("--pack", str(tmp_path / "first.zip"), "--pack", str(pack))
    assert {row["seeds_done"] for row in rows} == {2}


def test_added_cells_of_seeds_that_packs_lack() -> None:
    def board(*cells: tuple[str, int, str]) -> Board:
        expected = [Expected(method, "sums", ["sums"], "tiny", seed, cell) for method, seed, cell in cells]
        return Board("theirs", "grpo", {"sums": 1}, expected, {})

    def added(ours: Board, theirs: Board) -> list[tuple[str, int, str]]:
        return [(cell.method, cell.seed, cell.cell) for cell in added_cells(ours, theirs)]

    whole = board(("grpo", 0, "g0"), ("grpo", 1, "g1"))
    lacking, other = board(("grpo", 0, "g0"), ("grpo", 1, NO_CELL)), board(("ppo", 0, "p0"), ("ppo", 1, NO_CELL))
    assert added(whole, lacking) == [], "no row of its own for a seed that the first pack has"
    assert added(whole, other) == added(lacking, other) == [("ppo", 0, "p0"), ("ppo", 1, NO_CELL)]
    others = [("grpo (theirs)", 0, "x0"), ("grpo (theirs)", 1, NO_CELL)]
    assert added(whole, board(("grpo", 0, "x0"), ("grpo", 1, NO_CELL))) == others


def test_leaderboard_of_three_packs_of_one_name(tmp_path: Path) -> None:
    """Three people run the same configuration, each with options of their own: nothing of them is pooled."""
    paths = []
    for share in (0.1, 0.2, 0.3):
        folder = tmp_path / str(share)
        folder.mkdir()
        paths += ["--pack", str(packed(folder, "made", f"method_options.clip_b.share={share}"))]
    rows = {row["method"]: row for row in json_rows(*paths)}
    assert list(rows) == ["base model", "grpo", "clip_b", "ppo", "clip_b (made)", "clip_b (made, 2)"]
    assert {row["seeds_done"] for row in rows.values()} == {row["seeds_expected"] for row in rows.values()} == {2}


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("seeds=[0,2]", r"seeds ([0, 2], not [0, 1])"),
        ("train.steps=21", "train.steps (21, not 20)"),
        ("eval.k=4", "eval.k (4, not 8)"),
        ("tasks=[countdown(count=4)]", "tasks"),
    ],
)
def test_leaderboard_refuses_another_protocol(pack: Path, tmp_path: Path, override: str, key: str) -> None:
    theirs = packed(tmp_path, "theirs", override)
    sentence = refusal("leaderboard", "--pack", str(pack), "--pack", str(theirs))
    assert "made.zip" in sentence
    assert "theirs.zip" in sentence
    assert "rows of another protocol do not enter a table" in sentence
    assert key in sentence


def test_leaderboard_of_a_pack_names_its_ruleset(pack: Path) -> None:
    assert {row["ruleset"] for row in json_rows("--pack", str(pack))} == {"published"}
    text = show_table("--pack", str(pack))
    assert "Ruleset published: methods have their published constants" in text
    assert "Rows of packs, as far as `entrobench verify` has checked them: reported: 'grpo', 'clip_b', 'ppo'." in text


def test_check_all_comparable_refuses_two_rulesets() -> None:
    ones = np.ones((2, 2), int)
    frames = made_up_frames({"grpo": {0: ones}, "clip_b": {0: ones}})
    mixed = frames.cells.assign(ruleset=["published", "tuned"])
    with pytest.raises(UserError, match=r"these cells have published \(grpo\) and tuned \(clip_b\)"):
        check_all_comparable(Frames(mixed, frames.answers), "grpo")
    check_all_comparable(frames, "grpo")


def test_protocol_of_a_tuned_matrix() -> None:
    given = {"seeds": [0], "ruleset": "tuned", "tune": {"candidates": {"a": ["a", "b"]}, "seeds": [9], "slack": 0.02}}
    tuned = protocol_of(given, [])
    assert tuned.definition["tune"] == {"candidates": 2, "seeds": [9], "slack": 0.02}
    published = protocol_of({"seeds": [0]}, [])
    assert published.definition["ruleset"] == "published"
    assert published.differences(tuned)[0] == "ruleset ('tuned', not 'published')"
