"""entrobench clean: files that are removed, files that stay, and the question before."""

from __future__ import annotations

import dataclasses
import io
import os
import socket
import sys
from pathlib import Path

import pytest
from cells import write_cell
from commands import run_command

from harness import config
from harness.cells import lease
from harness.matrix import cells, claim


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return a results folder with two cells of the smoke matrix, two of other settings, and one of old code."""
    ours, others = (config.load_config("smoke", [f"results={tmp_path}", *more]) for more in ([], ["train.lr=0.5"]))
    claim(ours)
    for cell in (*cells(ours), *cells(others)):
        write_cell(cell.folder, cell.spec)
    present = cells(ours)[1].spec
    old = dataclasses.replace(
        present, identity={**present.identity, "source": {**present.identity["source"], "clip_b": "1"}}
    )
    old.write(ours.folder / "clip_b-of-old-code")
    folder = ours.folder
    (folder / "report").mkdir()
    (folder / "report" / "report.html").write_text("a report")
    (folder / ".notes.1999x").write_text("somebody's")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "config.yaml").write_text("")
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    return tmp_path


def clean(results: Path, *options: str, code: int = 0) -> str:
    return run_command("clean", "smoke", f"results={results}", *options, code=code)


def outside(path: Path) -> bool:
    """Return whether a file is only about leases and locks, not about results."""
    return path.name.endswith("lock") or "leases" in path.parts


def files(results: Path) -> set[Path]:
    return {path for path in results.rglob("*") if not outside(path)}


def doomed(results: Path) -> set[Path]:
    ours = {cell.folder for cell in cells(config.load_config("smoke", [f"results={results}"]))}
    folders = [path.parent for path in (results / "smoke").glob("*/config.yaml") if not path.parent.is_symlink()]
    gone = {path for folder in folders if folder not in ours for path in (folder, *folder.rglob("*"))}
    return {path for path in gone if not outside(path)}


def test_clean(results: Path) -> None:
    before, gone = files(results), doomed(results)
    assert len([path for path in gone if path.is_dir()]) == 3
    said = clean(results, "--yes")
    assert files(results) == before - gone
    assert said.count("a cell that is not of this configuration") == 2
    assert said.count("a cell of an earlier version of clip_b\n") == 1
    assert "removed 3 of 3" in said
    assert "holds only cells of this configuration: nothing to clean" in clean(results)


def test_clean_without_a_terminal(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files(results)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    said = clean(results, code=2)
    assert files(results) == before
    assert said.endswith(
        "entrobench: nothing was removed, since without a terminal this command cannot ask; --yes removes the "
        "listed cells\n"
    )
    assert said.count("\n") == 3 + 1


@pytest.mark.parametrize(("answer", "removed"), [("", 0), ("n", 0), ("yess", 0), ("y", 3), ("YES ", 3)])
def test_clean_asks(answer: str, removed: int, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, gone = files(results), doomed(results)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    asked: list[str] = []

    def reply(question: str) -> str:
        asked.append(question)
        return answer

    monkeypatch.setattr("builtins.input", reply)
    clean(results)
    assert asked == ["Remove these 3 (0 MiB)? [y/N] "]
    assert files(results) == (before - gone if removed else before)


def test_clean_of_kept_answers(results: Path) -> None:
    kept = results / "smoke" / "base"
    kept.mkdir()
    (kept / "countdown-0123456789ab.json").write_text("{}")
    (kept / "countdown-0123456789ab.lock").touch()
    before, gone = files(results), doomed(results)
    said = clean(results, "--yes")
    assert f"{kept}  0 MiB  answers of untrained models" in said
    assert "removed 4 of 4" in said
    left = before - gone - {kept / "countdown-0123456789ab.json"}
    assert files(results) == left, "a running cell may hold the lock, and write into the folder next"
    assert "nothing to clean" in clean(results), "they are of the cells that are there"


def test_clean_leaves_a_running_cell(results: Path) -> None:
    other = cells(config.load_config("smoke", [f"results={results}", "train.lr=0.5"]))[0].folder
    with lease.hold(other):
        said = clean(results, "--yes")
    assert other.is_dir()
    assert f"{other} is left: process {os.getpid()} on {socket.gethostname()} works on it" in said
    assert "removed 2 of 3" in said


@pytest.mark.parametrize(
    ("marker", "words"), [('{"matrix": "mine"}', "belongs to the matrix 'mine'"), (None, "did not make")]
)
def test_clean_refuses_folders_of_others(marker: str | None, words: str, results: Path) -> None:
    (results / "smoke" / "matrix.json").unlink()
    if marker is not None:
        (results / "smoke" / "matrix.json").write_text(marker)
    before = files(results)
    assert words in clean(results, "--yes", code=2)
    assert files(results) == before


def test_clean_without_results(tmp_path: Path) -> None:
    assert clean(tmp_path, "--yes") == f"{tmp_path}/smoke does not exist: nothing to clean\n"
    assert not list(tmp_path.iterdir())
