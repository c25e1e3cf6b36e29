"""Commands in any folder: files there hide no module of ours or of Python, and plugins there are found."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from commands import run_python

import baselines
from harness.base.errors import UserError
from harness.base.processes import python_command

pytestmark = pytest.mark.processes

PROGRAM = "from harness.cli import main\nmain()\n"  # of the installed command
HIDING = ("baselines", "configs", "harness", "socket", "statistics", "tasks", "torch", "types", "yaml")
CONFIG = """
base: smoke
methods: [grpo, half]
plugins: [my_methods]
train: {steps: 2, prompts: 4, group: 4}
eval: {problems: 4, samples: 4, k: 2}
"""
PLUGIN = """from dataclasses import dataclass
from entrobench import Control

@dataclass(frozen=True)
class Half(Control):
    '''Halves every gradient.'''
    def weights(self, old, advantages_T, batch):
        return 0.5

METHODS = {"half": Half}
"""


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """A folder with a configuration, a plugin, and files that end any process that imports them."""
    folder = tmp_path / "crowded"
    (folder / "tokens").mkdir(parents=True)
    for name in HIDING:
        (folder / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the folder was imported')\n")
    (folder / "mine.yaml").write_text(CONFIG)
    (folder / "my_methods.py").write_text(PLUGIN)
    return folder


@pytest.fixture
def command(tmp_path: Path) -> str:
    """The installed command, in a folder of its own as programs are: Python's search begins there."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "entrobench").write_text(PROGRAM)
    return str(tmp_path / "bin" / "entrobench")


def test_commands_start(command: str, crowded: Path) -> None:
    listed = run_python(command, "list", "methods", "--plugin", "my_methods", cwd=crowded).stdout
    assert "Halves every gradient" in listed
    assert "planned  2" in run_python(command, "plan", "mine.yaml", cwd=crowded).stdout


def test_started_as_a_module(crowded: Path) -> None:
    """`python -m` itself searches the current folder for modules imported before our first line."""
    for name in ("harness", "socket", "types"):
        (crowded / f"{name}.py").unlink()
    assert "planned  2" in run_python("-m", "entrobench", "plan", "mine.yaml", cwd=crowded).stdout


@pytest.mark.long
def test_cells_and_ranks_start(command: str, crowded: Path, mlflow_uri: str) -> None:
    settings = ["hardware.ranks=2", f"tracking.uri={mlflow_uri}", "methods=[half]", "baseline=half"]
    said = run_python(command, "run", "mine.yaml", *settings, "--jobs", "1", cwd=crowded)
    rows = re.findall(r"\b1 of 1$", said.stdout, re.MULTILINE)  # and no line of progress, which slow machines print
    assert len(rows) == 2  # with the base model
    [log] = crowded.glob("results/mine/*/log.txt")
    assert "of the folder was imported" not in log.read_text()


def test_judge_starts(crowded: Path) -> None:
    code = "import os, sys; sys.path.append(os.getcwd()); from harness.verify.pool import VerifierPool\n"
    code += r"pairs = [(r'\frac{1}{2}', r'\boxed{0.5}'), ('x', r'\boxed{y}')]; "
    code += "pool = VerifierPool(1); print(*pool.verdicts(pairs)); pool.close()"
    assert run_python("-P", "-c", code, cwd=crowded).stdout == "right wrong\n"


@pytest.mark.slow
def test_trials_of_doctor_start(command: str, crowded: Path) -> None:
    printed = run_python(command, "doctor", "smoke", "--format", "json", cwd=crowded).stdout
    trials = {each["what"]: each for each in json.loads(printed)}
    assert [trials[what]["state"] for what in ("torch", "mlflow")] == ["ok", "ok"]


def test_python_command_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "last").mkdir()
    paths = [*sys.path, str(tmp_path / "it's a folder"), str(tmp_path / "last")]
    monkeypatch.setattr(sys, "path", paths)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    _, *command = python_command("import json", "print(json.dumps([sys.path, sys.argv[1:]]))", "an argument")
    assert json.loads(run_python(*command, cwd=tmp_path, PYTHONPATH=str(tmp_path)).stdout) == [paths, ["an argument"]]


@pytest.mark.parametrize("name", ["baselines", "harness", "tasks", "entrobench", "configs"])
def test_table_refuses_a_plugin_named_like_a_package(name: str) -> None:
    with pytest.raises(UserError, match=f"^plugin {name} has the name of a package of entrobench; give the file"):
        baselines.table([name])


def test_table_refuses_a_hidden_plugin() -> None:
    for name, place in (("statistics", r".*statistics\.py"), ("sys", "Python itself")):
        sentence = f"^plugin {name} has neither METHODS nor TASKS nor JUDGES; it was read from {place}$"
        with pytest.raises(UserError, match=sentence):
            baselines.table([name])
