"""What the README tells people to type is what works."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from places import REPOSITORY

from harness import cli, config, matrix
from harness.commands.common import load

README = (REPOSITORY / "README.md").read_text()
COMMANDS = re.findall(r"^    ((?:entrobench|make) .+?)(?:  +#.*)?$", README, re.MULTILINE)
FENCED = dict(re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("entrobench")])
def test_commands_mean_something(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_methods.py").write_text(FENCED["python"])
    monkeypatch.delitem(sys.modules, "my_methods", raising=False)  # the documentation's example has the same name
    arguments = cli.parse(shlex.split(command)[1:])
    if hasattr(arguments, "config"):
        assert matrix.cells(load(arguments))


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make")])
def test_make_targets_exist(command: str) -> None:
    subprocess.run([*shlex.split(command), "--dry-run"], cwd=REPOSITORY, check=True, capture_output=True)


def test_the_configuration_plans(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(FENCED["yaml"])
    planned = matrix.cells(config.load(str(tmp_path / "my.yaml")))
    assert len(planned) == 4 * 5
    assert planned[0].config.rollout.max_new_tokens == config.load("demo").rollout.max_new_tokens
    assert yaml.safe_load(FENCED["yaml"])["base"] == "demo"


def test_every_file_that_is_named_is_there() -> None:
    tree = README.split("## The tree")[1].split("\nWhat a cell leaves")[0]
    links = re.findall(r"\]\(((?:docs|results)/[^)]+)\)", README) + re.findall(r"docs/[\w-]+\.md", README)
    assert not [name for name in links if not (REPOSITORY / name).exists()]
    folder = ""
    for line in tree.splitlines():
        match = re.match(r"    ( *)((?:[\w.]+[/.]\S* ?)+)", line)
        if not match:
            continue
        for name in match[2].split():
            path = name if not match[1] else f"{folder}{name}"
            assert (REPOSITORY / path).exists(), path
        folder = match[2].strip() if not match[1] else folder


def test_the_table_is_the_one_that_was_kept() -> None:
    kept = (REPOSITORY / "results/reference/demo/leaderboard.md").read_text()
    rows = [line for line in kept.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 7
    assert "\n".join(rows) in README
