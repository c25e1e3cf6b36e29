"""The programs of examples/ run, and teach the model something."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import REPOSITORY

from benchmarks.patience import HANG

EXAMPLES = REPOSITORY / "examples"


def printed(name: str, *arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.processes
@pytest.mark.parametrize(
    "spec", ["grpo+clip_b(share=0.02)", pytest.param("dapo+clip_servo(target=2)", marks=pytest.mark.long)]
)
def test_a_loop_of_ones_own(spec: str, tmp_path: Path) -> None:
    rewards = re.findall(r"reward ([\d.]+), entropy", printed("own_loop.py", spec, cwd=tmp_path))
    assert len(rewards) == 30
    assert float(rewards[-1]) > float(rewards[0]) + 0.2


def test_the_loop_is_short() -> None:
    assert len((EXAMPLES / "own_loop.py").read_text().splitlines()) == 37  # which the README says


@pytest.mark.slow
@pytest.mark.processes
def test_trl(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="trl is not installed; the extra trl has it")
    output = printed("trl_clip_b.py", "2", cwd=tmp_path)
    assert "'entrobench/weights/clip_b/dropped': '0.0" in output
    assert float(re.findall(r"'reward': '([\d.]+)'", output)[0]) > 0.05  # the base model solves some puzzles
