"""The wheel is complete: after installing it, the command works in an empty folder, without the repository.

An editable installation, as in the README, is not disturbed by files of the current folder.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from patience import HANG
from places import REPOSITORY

pytestmark = [pytest.mark.processes, pytest.mark.long]

PACKAGES = ("baselines", "configs", "entrobench", "harness", "studies", "tasks")
SMALL = ["train.steps=2", "train.prompts=4", "train.group=4", "eval.problems=4", "eval.samples=4", "eval.k=2"]
SMALL += ["methods=[clip_b]", "baseline=clip_b"]


def call(*command: str | Path, cwd: Path, code: int = 0) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**environment, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG,
    )
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, since building leaves files next to the sources."""
    folder = tmp_path_factory.mktemp("source")
    for name in PACKAGES:
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(REPOSITORY / name, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    pip: list[str | Path] = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    call(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", out, source, cwd=out)
    [built] = out.iterdir()
    return built


def installed(folder: Path, *what: str | Path) -> Path:
    """Install into a new environment, which borrows its dependencies from the running one; return its programs."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "--python", python]
    [packages] = folder.glob("lib/python*/site-packages")
    # Its .pth files are not read, so that an editable installation of the repository stays out of it.
    (packages / "borrowed.pth").write_text("".join(f"{path}\n" for path in site.getsitepackages()))
    call(*pip, "install", "--no-deps", "--no-index", "--no-build-isolation", *what, cwd=folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("environment"), wheel)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def test_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    ours = {path for name in PACKAGES for path in (REPOSITORY / name).rglob("*") if path.is_file()}
    left_out = {path for path in ours if "__pycache__" in path.parts or path.suffix == ".md"}  # pages of studies
    assert held == {str(path.relative_to(REPOSITORY)) for path in ours - left_out}


def test_wheel_lists_and_plans_in_an_empty_folder(environment: Path, empty: Path) -> None:
    code = "import baselines, entrobench, harness, tasks\n"
    code += "print(*(module.__file__ for module in (baselines, entrobench, harness, tasks)))"
    places = call(environment / "python", "-c", code, cwd=empty).split()
    assert all(Path(place).is_relative_to(environment.parent) for place in places), places
    assert "paper" in call(environment / "entrobench", "list", "configs", cwd=empty)
    assert "matrix demo: 35 cells" in call(environment / "entrobench", "plan", "demo", cwd=empty)
    assert not list(empty.iterdir())


def test_wheel_runs_the_documented_task(environment: Path, empty: Path) -> None:
    """Its class, table and YAML file of docs/add-a-task.md, outside the repository, and its training, cut short.

    tests/tasks/test_tasks.py evaluates a model on the same task.
    """
    page = (REPOSITORY / "docs" / "add-a-task.md").read_text().partition("## A complete task")[2]
    section = page.split("## Outside the repository")[1]
    task = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    table = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    (empty / "my_tasks.py").write_text(f"{task}\n\n{table}")
    (empty / "sums.yaml").write_text(re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)[0])
    commands = re.findall(r"^    entrobench (.*--plugin my_tasks)$", section, re.MULTILINE)
    listing, _, training = map(shlex.split, commands)
    assert "Sums of two numbers" in call(environment / "entrobench", *listing, cwd=empty)
    # 1: the model of another task answers nothing that can be read, so nothing is learned.
    printed = call(environment / "entrobench", *training, *SMALL, cwd=empty, code=1)
    assert re.search(r"^ *clip_b .* 1 of 1 *$", printed, re.MULTILINE)
    [log] = empty.glob("results/smoke/*/log.txt")
    assert "Traceback" not in log.read_text()


def test_editable_installation_hidden_by_no_file_of_the_folder(source: Path, empty: Path, tmp_path: Path) -> None:
    programs = installed(tmp_path / "editable", "-e", source)
    for name in PACKAGES:
        (empty / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the folder was imported')\n")
    assert "countdown" in call(programs / "entrobench", "list", "tasks", cwd=empty)
    assert "matrix demo: 35 cells" in call(programs / "entrobench", "plan", "demo", cwd=empty)
    place = call(programs / "python", "-P", "-c", "import harness; print(harness.__file__)", cwd=empty).strip()
    assert Path(place).is_relative_to(source)
