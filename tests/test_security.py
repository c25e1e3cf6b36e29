"""Untrusted text is never run: the claims of docs/reliability.md that no other test covers."""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import REPOSITORY

from harness import config
from harness.base import plugins
from harness.base.errors import UserError
from harness.matrix import cells
from harness.rollout import models

TOPS = ("harness", "baselines", "tasks", "entrobench")
RUNS = ("eval", "exec", "compile", "__import__")
UNPICKLES = ("pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal")


def nodes() -> Iterator[tuple[Path, ast.AST]]:
    """Yield all nodes of the code, each with its file."""
    for path in (path for top in TOPS for path in sorted((REPOSITORY / top).rglob("*.py"))):
        yield from ((path, node) for node in ast.walk(ast.parse(path.read_text())))


def test_code_evaluates_no_text_and_opens_no_pickle() -> None:
    calls = [(path, node) for path, node in nodes() if isinstance(node, ast.Call)]
    assert len(calls) > 1000
    for path, call in calls:
        place, name = f"{path}:{call.lineno}", ast.unparse(call.func)
        given = {each.arg: ast.unparse(each.value) for each in call.keywords}
        assert name not in RUNS, place
        if name == "torch.load":
            assert given.get("weights_only") == "True", place
        if name in ("np.load", "numpy.load"):
            assert given.get("allow_pickle", "False") == "False", place
        if name == "yaml.load":
            assert ast.unparse(call.args[1]) in ("YAML_LOADER", "PlainLoader"), place
        assert given.get("trust_remote_code", "False") == "False", place
        assert given.get("shell", "False") == "False", place


def test_code_imports_nothing_that_unpickles() -> None:
    for path, node in nodes():
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {name.partition(".")[0] for name in names} & set(UNPICKLES), path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder where a command is given; modules in it can be imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    with contextlib.chdir(tmp_path):
        yield tmp_path


def test_plugins_are_imported_by_name_only(folder: Path) -> None:
    (folder / "not_named.py").write_text("from pathlib import Path\nMETHODS = {}\nPath('imported').touch()\n")
    cells(config.load_config("smoke"))
    assert not (folder / "imported").exists()
    cells(config.load_config("smoke", ["plugins=[not_named]"]))
    assert (folder / "imported").exists()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def (", r"SyntaxError: invalid syntax"),
        ("import sys; sys.exit(3)", r"SystemExit: 3"),
        ("raise SystemExit", r"\(SystemExit\)"),
        ("1 / 0", r"ZeroDivisionError: division by zero"),
        ("raise ValueError('x' * 5000)", r"ValueError: xxx"),
    ],
)
def test_plugin_entries_of_a_broken_plugin(code: str, words: str, folder: Path) -> None:
    (folder / "breaks.py").write_text(code)
    sys.modules.pop("breaks", None)
    with pytest.raises(UserError, match=words) as error:
        list(plugins.plugin_entries("METHODS", ["breaks"]))
    assert "breaks" in str(error.value)


def test_resolve_refuses_pickled_weights(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "pytorch_model.bin"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match=r"pickled weights \(pytorch_model\.bin\).*; save them as safetensors"):
        models.resolve(str(tmp_path))


def test_cell_folders_stay_in_the_results(tmp_path: Path) -> None:
    loaded = config.load_config("smoke", [f"results={tmp_path}", "tasks='countdown(count=3)'"])
    assert all(cell.folder.resolve().parent == tmp_path / "smoke" for cell in cells(loaded))
