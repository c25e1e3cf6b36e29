"""The tutorial works: its files are written and its commands run in order, in one folder.

The runs are miniatures. The commands run in this process, so that imports are shared; cells are separate processes.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from commands import run_command
from places import REPOSITORY

pytestmark = [pytest.mark.processes, pytest.mark.slow]

TUTORIAL = (REPOSITORY / "docs/tutorial.md").read_text()
BLOCKS = re.findall(r"^```(sh|yaml|python)\n(.*?)^```", TUTORIAL, re.MULTILINE | re.DOTALL)
FILES = {"yaml": "mine.yaml", "python": "my_methods.py"}
TINY = ["train.steps=1", "train.prompts=4", "train.group=4", "eval.problems=4", "eval.samples=8"]
NAMES_A_MATRIX = ("run", "plan", "status", "leaderboard", "report")


def outputs() -> dict[str, list[str]]:
    """Run the tutorial in the current folder and return the outputs of each command."""
    printed: dict[str, list[str]] = {}
    for language, text in BLOCKS:
        if language in FILES:
            Path(FILES[language]).write_text(text)
            continue
        for line in text.splitlines():
            program, *arguments = shlex.split(line)
            assert program == "entrobench"
            overrides = TINY if arguments[0] in NAMES_A_MATRIX else []
            printed.setdefault(line, []).append(run_command(*arguments, *overrides))
    return printed


def test_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"Save this as `{FILES['yaml']}`" in TUTORIAL
    assert f"Save this as `{FILES['python']}`" in TUTORIAL
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_methods", raising=False)  # other tests have modules of this name
    printed = outputs()

    first, second = printed["entrobench run smoke"]
    assert "2 cells, 0 done before, 2 to run" in first
    assert "2 cells, 2 done before, 0 to run" in second
    [other_rate] = printed["entrobench run smoke train.lr=3e-4"]
    assert "2 to run" in other_rate
    [own_method] = printed["entrobench run smoke 'methods=[grpo, positive_only]' --plugin my_methods"]
    assert "2 cells, 1 done before, 1 to run" in own_method
    [axis] = printed["entrobench run smoke 'axes={train.updates: [1, 2]}'"]
    assert "train.updates" in axis
    assert Path("results/smoke/report/report.html").exists()
