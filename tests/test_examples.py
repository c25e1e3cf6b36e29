"""The programs of examples/ run, and teach the model something."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
from commands import run_python
from places import REPOSITORY

EXAMPLES = REPOSITORY / "examples"


@pytest.mark.parametrize("spec", ["grpo+clip_b(share=0.02)", "dapo+clip_servo(target=2)"])
def test_own_loop(spec: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["own_loop.py", spec])
    runpy.run_path(str(EXAMPLES / "own_loop.py"), run_name="__main__")
    rewards = re.findall(r"reward ([\d.]+), entropy", capsys.readouterr().out)
    assert len(rewards) == 30
    assert float(rewards[-1]) > float(rewards[0]) + 0.2


def test_own_loop_is_short() -> None:
    assert len((EXAMPLES / "own_loop.py").read_text().splitlines()) == 37  # which the README says


def check_output_of_trl(printed: str) -> None:
    assert "'entrobench/weights/clip_b/dropped': '0.0" in printed
    assert float(re.findall(r"'reward': '([\d.]+)'", printed)[0]) > 0.05  # the base model solves some puzzles


@pytest.mark.slow
def test_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import trl_trainers  # noqa: F401  skips the test where trl is not installed

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["trl_clip_b.py", "2"])
    runpy.run_path(str(EXAMPLES / "trl_clip_b.py"), run_name="__main__")
    check_output_of_trl(capsys.readouterr().out)


@pytest.mark.long
@pytest.mark.processes
def test_trl_on_two_ranks(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="trl is not installed; the extra trl has it")
    command = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"]
    command += ["--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0"]
    command += [str(EXAMPLES / "trl_clip_b.py"), "2"]
    done = run_python(*command, cwd=tmp_path, OMP_NUM_THREADS="1", ACCELERATE_USE_CPU="true")
    check_output_of_trl(done.stdout)
