"""set_up.py and the Makefile: the choice of Python, and the message if none fits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import REPOSITORY

import set_up
from harness.plan.doctor import PYTHONS

SHELL = shutil.which("sh")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole search path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("PYTHON", raising=False)
    return folder


def pretend(folder: Path, name: str, version: str, environments: bool = True) -> None:
    """Make a program of a version; of a Python, with or without the module that makes environments."""
    program = folder / name
    program.write_text(f"#!{SHELL}\necho {version}\necho {int(environments)}\n")
    program.chmod(0o755)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("here", "taken"),
    [
        ({"python3": "3.13.5"}, "python3"),
        ({"python3": "3.14.0"}, "python3"),
        ({"python3": "3.9.2", "python3.12": "3.12.1", "python3.14": "3.14.0"}, "python3.12"),
        ({"python3": "3.15.0", "python3.11": "3.11.7"}, "python3.11"),
        ({"python": "3.12.1"}, "python"),
    ],
)
def test_find_python_takes_the_first_that_fits(here: dict[str, str], taken: str, programs: Path) -> None:
    for name, version in here.items():
        pretend(programs, name, version)
    assert set_up.find_python(None) == str(programs / taken)


@pytest.mark.processes
def test_find_python_prefers_one_that_makes_environments(programs: Path) -> None:
    pretend(programs, "python3", "3.13.5", environments=False)
    with pytest.raises(set_up.Refusal, match=r"^python3 \(Python 3\.13\.5\) lacks .* apt install python3\.13-venv$"):
        set_up.find_python(None)
    pretend(programs, "python3.14", "3.14.0")
    assert set_up.find_python(None) == str(programs / "python3.14")


@pytest.mark.processes
def test_find_python_names_those_that_do_not_fit(programs: Path) -> None:
    with pytest.raises(set_up.Refusal, match=r"^Python 3\.11 to 3\.14 is needed; none was found\. Install one"):
        set_up.find_python(None)
    with pytest.raises(set_up.Refusal, match="; /nowhere/python does not start"):
        set_up.find_python("/nowhere/python")
    pretend(programs, "python3", "3.9.2")
    pretend(programs, "python3.15", "3.15.0")
    with pytest.raises(set_up.Refusal, match=r"; python3 is 3\.9\.2\. Install one"):
        set_up.find_python(None)
    with pytest.raises(set_up.Refusal, match=r"; python3\.15 is 3\.15\.0\. Install one"):
        set_up.find_python("python3.15")


@pytest.mark.processes
def test_set_up_refused_leaves_no_folder(tmp_path: Path) -> None:
    command = [sys.executable, "set_up.py", "--into", str(tmp_path / "environment"), "--python", "/nowhere/python"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "environment").exists()


@pytest.mark.processes
def test_make_without_a_python(programs: Path) -> None:
    for name in ("make", "sh", "test", "echo"):
        (programs / name).symlink_to(shutil.which(name, path=os.defpath) or pytest.skip(f"{name} is not installed"))
    command = ["make", ".venv/ready", "--always-make"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("Python 3.11 to 3.14 is needed and none was found; ")


def test_python_versions_of_set_up_and_pyproject() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text()
    assert f'requires-python = ">={set_up.shown(set_up.LEAST)},<3.{set_up.MOST[1] + 1}"' in text
    wanted = [f"3.{minor}" for minor in range(set_up.LEAST[1], set_up.MOST[1] + 1)]
    assert list(PYTHONS) == wanted
    for version in wanted:
        assert f'"Programming Language :: Python :: {version}"' in text


def test_progress_of_downloads(capsys: pytest.CaptureFixture[str]) -> None:
    progress = set_up.Progress()
    for line in (
        "Collecting numpy<3,>=2",
        "  Downloading numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl (16.5 MB)",
        "  Downloading six-1.17.0-py2.py3-none-any.whl.metadata (1.7 kB)",
        "Requirement already satisfied: pip in /x (23.2.1)",
        "Downloading torch-2.13.0-cp313-cp313-manylinux_2_28_x86_64.whl (0.5 GB)",
        "Installing collected packages: six, numpy, torch",
    ):
        progress.read(line)
    assert progress.megabytes == pytest.approx(16.5 + 0.0017 + 500)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[2] for line in lines] == [
        "downloading numpy (16 MB)",
        "downloading torch (500 MB)",
        "unpacking and compiling 3 packages",
    ]
    progress.last -= set_up.QUIET_S + 1  # as if pip had been silent since
    for _ in range(2):
        progress.repeat()
    assert capsys.readouterr().out.count("unpacking and compiling 3 packages\n") == 1
    progress.end()
    progress.last -= set_up.QUIET_S + 1
    progress.repeat()
    assert capsys.readouterr().out == ""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("driver", "asked", "build"),
    [(None, "auto", "cpu"), (None, "cu126", "cu126"), ("580.65.06", "auto", "default"), ("", "auto", "cpu")],
)
def test_chosen_build_fits_the_machine(driver: str | None, asked: str, build: str, programs: Path) -> None:
    if driver is not None:
        pretend(programs, "nvidia-smi", driver)
    assert set_up.chosen_build(asked) == build


@pytest.mark.processes
def test_chosen_build_refuses_an_older_driver(programs: Path) -> None:
    pretend(programs, "nvidia-smi", "550.90.07")
    with pytest.raises(
        set_up.Refusal, match=r"is version 550, and the locked build of torch needs 580; .* TORCH=cu126"
    ):
        set_up.chosen_build("auto")


def test_read_lock_by_package(tmp_path: Path) -> None:
    one, two, three = "a==1 ; python_version < '3.12' \\\n    --hash=sha256:1", "a==2 \\\n    --hash=sha256:2", "b-c==3"
    (tmp_path / "lock.txt").write_text(f"# of two packages\n{one}\n{two}\n{three}\n")
    assert set_up.read_lock(tmp_path / "lock.txt") == {"a": [one, two], "b-c": [three]}
