"""Packages that Python has yet to compile."""

from __future__ import annotations

import py_compile
import sys
from pathlib import Path

import pytest

from harness.base import bytecode


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package without bytecode, the only large one; importing it would fail."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(bytecode, "LARGE", ("large_package", "package_that_is_not_installed"))
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "large_package" / "__init__.py"
    source.parent.mkdir()
    source.write_text("raise AssertionError('it is only looked for')")
    return source


def test_a_package_without_bytecode_is_announced_once(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bytecode.uncompiled_packages() == ["large_package"]
    bytecode.announce_compilation()
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("first use of large_package: Python compiles its files, once")
    py_compile.compile(str(package))
    assert bytecode.uncompiled_packages() == []
    bytecode.announce_compilation()
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("package")
def test_without_bytecode_files_nothing_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert bytecode.uncompiled_packages() == []
