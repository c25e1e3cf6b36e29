"""Provenance of a cell's numbers: the record of an attempt."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from harness.base.errors import Damaged
from harness.cells import provenance
from harness.cells.provenance import Made


def test_begin_attempt(tmp_path: Path) -> None:
    assert Made.read(tmp_path) is None
    first = provenance.begin_attempt(tmp_path, {"grpo": "abc"}, "cpu", None)
    assert Made.read(tmp_path) == first
    assert first.versions.keys() == {"torch", "transformers", "lm-eval", "math-verify", "python"}
    assert (first.device, first.sources) == ("cpu", {"grpo": "abc"})
    assert first.processor
    second = provenance.begin_attempt(tmp_path, {"grpo": "abd"}, "cuda", "NVIDIA H100", ["no-such-engine"])
    assert second.processor == "NVIDIA H100"
    assert second.attempt != first.attempt
    assert first.tags()["source"] != second.tags()["source"]
    assert {"source.grpo": "abd", "version.python": second.versions["python"]}.items() <= second.tags().items()
    provenance.note_runner(tmp_path, "V2")
    assert Made.read(tmp_path) == dataclasses.replace(second, rounding={"runner": "V2"})
    (tmp_path / "made.json").write_text('{"attempt": 3}')
    with pytest.raises(Damaged, match=r"made\.json is damaged: it must hold attempt, started, version, commit"):
        Made.read(tmp_path)


def test_checkout(tmp_path: Path) -> None:
    assert provenance.checkout(tmp_path) == (None, None)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert provenance.checkout(tmp_path) == (None, None), "without a commit"
    (tmp_path / "code.py").write_text("1")
    subprocess.run([*git, "add", "code.py"], check=True)
    subprocess.run([*git, "commit", "-qm", "First"], check=True)
    commit, dirty = provenance.checkout(tmp_path)
    assert commit is not None
    assert (len(commit), dirty) == (40, False)
    (tmp_path / "notes.txt").write_text("not of the repository")
    assert provenance.checkout(tmp_path) == (commit, False)
    (tmp_path / "code.py").write_text("2")
    assert provenance.checkout(tmp_path) == (commit, True)
    (tmp_path / "site-packages").mkdir()
    assert provenance.checkout(tmp_path / "site-packages") == (None, None), "inside the checkout of something else"
