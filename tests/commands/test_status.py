from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from commands import run_command, run_python

from harness.commands.status import leftover_lines

OTHERS = "4 more cells in results/demo of other settings"
EDITED = "1 cell of an earlier version of clip_b"


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        (["train.lr=1e-4"], [f"{OTHERS} than these overrides give", EDITED]),
        (
            [],
            [
                f"{OTHERS} from overrides or an edited configuration: `entrobench clean demo --plugin m` deletes them",
                f"{EDITED}: `entrobench clean demo --plugin m` deletes them",
            ],
        ),
    ],
)
def test_leftover_lines(overrides: list[str], lines: list[str]) -> None:
    given = argparse.Namespace(config="demo", overrides=overrides, plugin=["m"])
    assert leftover_lines(Path("results/demo"), {None: 4, "clip_b": 1}, given) == lines
    assert leftover_lines(Path("results/demo"), {None: 1}, given)[0].startswith("1 more cell in results/demo of other")
    assert leftover_lines(Path("results/demo"), {}, given) == []


@pytest.mark.processes
def test_status_with_a_closed_stdout(tmp_path: Path) -> None:
    words = "[sys.executable, '-m', 'entrobench', 'status', 'smoke']"
    run_python("-c", f"import os, sys; os.close(1); os.execv(sys.executable, {words})", cwd=tmp_path)


@pytest.mark.slow
def test_status_with_a_damaged_adopted_cell(tmp_path: Path) -> None:
    damaged = tmp_path / "smoke" / "grpo-countdown-s0@trl-1" / "config.yaml"
    damaged.parent.mkdir(parents=True)
    damaged.touch()
    said = run_command("status", "smoke", "seeds=[0]", f"results={tmp_path}")
    assert [line.split(maxsplit=3) for line in said.splitlines()][1:] == [
        ["grpo", "seed", "0", "planned  0/20"],
        ["clip_b", "seed", "0", "planned  0/20"],
        ["grpo-countdown-s0@trl-1", "failed", "0", f"{damaged} is damaged: it does not end with a sum"],
    ]
