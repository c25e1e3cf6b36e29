"""The programs of examples/ run, and teach the model something."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from patience import HANG
from places import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
ACCELERATE = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"]
ACCELERATE += ["--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0"]


@pytest.mark.parametrize("spec", ["grpo+clip_b(share=0.02)", "dapo+clip_servo(target=2)"])
def test_own_loop(spec: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["own_loop.py", spec])
    runpy.run_path(str(EXAMPLES / "own_loop.py"), run_name="__main__")
    rewards = re.findall(r"reward ([\d.]+), entropy", capsys.readouterr().out)
    assert len(rewards) == 30
    assert float(rewards[-1]) > float(rewards[0]) + 0.2


def test_own_loop_is_short() -> None:
    assert len((EXAMPLES / "own_loop.py").read_text().splitlines()) == 37  # which the README says


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    "launcher", [pytest.param([], id="alone"), pytest.param(ACCELERATE, id="two ranks", marks=pytest.mark.long)]
)
def test_trl(launcher: list[str], tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="trl is not installed; the extra trl has it")
    done = subprocess.run(
        [sys.executable, *launcher, str(EXAMPLES / "trl_clip_b.py"), "2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "'entrobench/weights/clip_b/dropped': '0.0" in done.stdout
    assert float(re.findall(r"'reward': '([\d.]+)'", done.stdout)[0]) > 0.05  # the base model solves some puzzles
