"""Files are complete or absent, also on a full disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from full_disk import files_of_at_most

from harness import cli
from harness.base import files
from harness.base.errors import Damaged, Unwritten, UserError
from harness.commands import leaderboard

ROOM = 64 * 1024  # bytes


@pytest.fixture(params=["full", "limited"])
def narrow(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Return a folder that takes few bytes, and what the system says then: a disk of its own, where that is permitted,
    or a limit of this process."""
    place = tmp_path / "narrow"
    place.mkdir()
    if request.param == "limited":
        with files_of_at_most(ROOM):
            yield place, "File too large"
        return
    mount = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a disk")
    yield place, "No space left on device"
    subprocess.run(["umount", str(place)], check=True)


def test_write_text_on_a_full_disk(narrow: tuple[Path, str]) -> None:
    place, why = narrow
    for name in ("state.json", "evals/new.json"):
        files.write_text(place / "state.json", "before")
        with pytest.raises(Unwritten) as error:
            files.write_text(place / name, "x" * 2 * ROOM)
        assert str(error.value).startswith(f"{place / name} cannot be written: {why}; ")
        assert (place / "state.json").read_text() == "before"
        assert [path for path in place.rglob("*") if path.is_file()] == [place / "state.json"]
    with pytest.raises(Unwritten, match=f"model cannot be written: {why}"), files.atomic_folder(place / "model") as new:
        (new / "weights").write_bytes(b"x" * 2 * ROOM)
    assert not [path for path in place.iterdir() if "model" in path.name]


def test_sweep_removes_unfinished_files(tmp_path: Path) -> None:
    for name in (".state.json.123", ".step-000002.77/shard", ".hidden", "state.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    files.sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "state.json"]


def test_command_on_a_full_disk_names_file_and_cause(
    narrow: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place, why = narrow
    monkeypatch.setattr(leaderboard, "selected_parts", lambda arguments: [])
    monkeypatch.setattr("harness.table.formats.render_parts", lambda *_, **options: "x" * 2 * ROOM)
    with pytest.raises(SystemExit) as ended:
        cli.main(["leaderboard", "smoke", "--out", str(place / "table.txt")])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"entrobench: {place / 'table.txt'} cannot be written: {why}; ")
    assert not os.listdir(place)


@pytest.mark.parametrize(
    ("place", "make", "sentence"),
    [
        ("new/x", False, "the folder new does not exist; make it first"),
        ("afile/x", False, "afile is not a folder"),
        ("afile/new/x", True, "afile is not a folder"),
        ("x", False, r"the folder \. is read-only; name another"),
        ("new/x", True, r"the folder \. is read-only; name another"),
    ],
)
def test_check_folder(place: str, make: bool, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("afile").touch()
    monkeypatch.setattr(os, "access", lambda *given: False)  # root may write everywhere
    with pytest.raises(UserError, match=f"^--out {place} cannot be written: {sentence}$"):
        files.check_folder(Path(place).parent, f"--out {place}", make=make)


def test_atomic_folder_is_readable_by_others(tmp_path: Path) -> None:
    """As safetensors makes them."""
    with files.atomic_folder(tmp_path / "model") as folder:
        (folder / "model.safetensors").touch(mode=0o600)
        (folder / "run.sh").touch(mode=0o700)
    (tmp_path / "usual").touch()
    usual = (tmp_path / "usual").stat().st_mode & 0o777
    assert usual & 0o044, "this test needs a umask that lets others read"
    assert (tmp_path / "model/model.safetensors").stat().st_mode & 0o777 == usual
    assert (tmp_path / "model/run.sh").stat().st_mode & 0o777 == usual | 0o700
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"model.safetensors", "run.sh"}


RECORDS = [{"problem": "a", "responses": ["\u2028", "x"]}, {"problem": "b", "responses": []}]


def test_read_lines_with_a_flipped_bit(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    files.write_lines(path, RECORDS)
    assert files.read_lines(path) == RECORDS
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged, match=f"^{path} is damaged: one of its lines does not "):
            files.parse_lines(bytes(changed), path)


def test_lines_from_before_there_were_sums_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    assert files.read_lines(path) == RECORDS
    path.write_text("{\n")
    with pytest.raises(Damaged, match=f"^{path} is damaged: one of its lines is not JSON "):
        files.read_lines(path)


def test_stream_lines_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines.jsonl"
    files.write_lines(path, RECORDS)
    assert list(files.stream_lines(path)) == RECORDS
    monkeypatch.setattr(files, "LONGEST_LINE", 20)
    with pytest.raises(Damaged, match=f"^{path} is damaged: one of its lines is not JSON "):
        list(files.stream_lines(path))
