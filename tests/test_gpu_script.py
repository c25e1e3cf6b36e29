"""benchmarks/gpu/run.sh with a Python that pretends: time limits, failures, interruption, and the files to carry."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from patience import HANG, patient, wait_until
from places import REPOSITORY

SCRIPT = REPOSITORY / "benchmarks/gpu/run.sh"
CARRIED_MIB = 60  # at most, of the tree and the wheels
SECONDS = 600

# It answers in place of python3, and makes a record in the results of a cell. The word HANGS may be in its arguments.
PRETENDER = """#!/usr/bin/env bash
case "$*" in
    *sysconfig*) echo /nowhere ;;
    *"-m pip"*) ;;
    *HANGS*) echo "hangs: $*"; sleep 60 ;;
    *"-m pytest"*) echo "a failed test"; exit 1 ;;
    *" run demo "*)
        echo "runs: $*"
        for word in "$@"; do
            case "$word" in
                results=*) cell=${word#results=}/resumed/cell && mkdir -p "$cell" && touch "$cell/metrics.jsonl" ;;
                name=resumed) mkdir -p "$cell/checkpoints/step-1" ;;
            esac
        done ;;
    *) echo "runs: $*" ;;
esac
"""


@pytest.fixture
def rehearsal(tmp_path: Path) -> Path:
    """A folder with an empty wheel, and with a python3 and a script that takes seconds in place of minutes."""
    for folder in ("bin", "wheels", "tree/benchmarks/gpu"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "wheels/empty.whl").touch()
    python = tmp_path / "bin/python3"
    python.write_text(PRETENDER)
    python.chmod(0o755)
    return tmp_path


def start(place: Path, limits: str = "", hangs: str = "") -> subprocess.Popen[str]:
    """Start the script; `limits` replaces the seconds of each row, and `hangs` is a command that takes a minute."""
    text = SCRIPT.read_text()
    if limits:
        text = re.sub(r"^row \d+", f"row {limits}", text, flags=re.MULTILINE)
    if hangs:
        assert hangs in text
        text = text.replace(hangs, f"{hangs} HANGS")
    script = place / "tree/benchmarks/gpu/run.sh"
    script.write_text(text)
    environment = {**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}"}
    command = ["bash", str(script), str(place / "wheels"), str(place / "out"), "train.steps=2"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def packed(place: Path) -> list[str]:
    """Return the names of the records that were packed."""
    with tarfile.open(place / "out/records.tar.gz") as archive:
        return archive.getnames()


@pytest.mark.processes
def test_a_row_that_fails_or_hangs_stops_no_other(rehearsal: Path) -> None:
    with start(rehearsal, limits="5", hangs="benchmarks.gpu.engine") as process:
        output, _ = process.communicate(timeout=HANG)
    assert process.returncode == 1
    assert output.endswith(f"failed or over the limit, see in {rehearsal / 'out'}: tests.txt engine.md\n")
    files = {path.name: path.read_text() for path in (rehearsal / "out").glob("*.[tm][xd]*")}
    assert files.keys() == {"machine.txt", "tests.txt", "step.md", "engine.md", "run.txt", "resumed.txt"}
    assert files["tests.txt"] == "a failed test\n"
    assert files["engine.md"].startswith("hangs")
    assert "methods=[grpo,clip_b,ppo,entropy_bonus] hardware.share=0.12 train.steps=2" in files["run.txt"]
    assert files["resumed.txt"].count("runs:") == 2
    assert "results/resumed/cell/metrics.jsonl" in packed(rehearsal)


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_records_are_packed_where_the_script_is_stopped(number: signal.Signals, rehearsal: Path) -> None:
    with start(rehearsal, hangs='leaderboard "${demo[@]}"') as process:
        out = rehearsal / "out/run.txt"
        wait_until(lambda: out.exists() and "hangs" in out.read_text())
        (rehearsal / "out/records.tar.gz").unlink()
        begun = time.monotonic()
        process.send_signal(number)
        process.communicate(timeout=HANG)
    assert time.monotonic() - begun < patient(10), "it waits for the row that hangs"
    assert process.returncode == 143
    assert "results/resumed/cell/metrics.jsonl" in packed(rehearsal)


def test_limits_of_all_rows_fit_into_ten_minutes() -> None:
    limits = [int(seconds) for seconds in re.findall(r"^row (\d+)", SCRIPT.read_text(), re.MULTILINE)]
    assert len(limits) == 8
    assert sum(limits) <= 0.95 * SECONDS, "the rest is for wheels and records"


def test_tree_and_wheels_can_be_carried() -> None:
    """Everything but the packs, which no row reads, and the wheels, of which docs/gpu.md says the size."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git repository, so no list of its files")
    paths = [REPOSITORY / name for name in listed.stdout.split("\0") if name and not name.startswith("results/packs/")]
    tree = sum(path.stat().st_size for path in paths if path.is_file())
    [wheels] = re.findall(r"comes as\s+wheels,\s+(\d+)\s+MB", (REPOSITORY / "docs/gpu.md").read_text())
    assert tree + 1e6 * int(wheels) < CARRIED_MIB * 2**20
