"""What the README tells people to type is what works: run for real where that is quick, and parsed where it is not."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from places import REPOSITORY

from benchmarks.patience import HANG
from harness import cli, config, matrix
from harness.commands.common import load

README = (REPOSITORY / "README.md").read_text()
COMMANDS = re.findall(r"^    ((?:entrobench|make|mlflow) .+?)(?:  +#.*)?$", README, re.MULTILINE)
OURS = [command for command in COMMANDS if command.startswith("entrobench")]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
TERMINAL, CONFIGURATION = (next(text for language, text in BLOCKS if language == kind) for kind in ("text", "yaml"))
FROM_PYTHON, A_METHOD = (text for language, text in BLOCKS if language == "python")

# `smoke` in miniature, in place of whatever matrix the README names. Nothing that is drawn or trained matters here.
TINY = ["train.steps=1", "train.prompts=4", "train.group=4", "eval.problems=4", "eval.samples=8"]
NAMES_A_MATRIX = ("run", "plan", "status", "leaderboard", "report", "sync")
NOT_RUN = {  # and why
    "entrobench run demo train.lr=3e-4 'seeds=[0,1]'": "is as slow as the number of its cells",
    "entrobench run demo rollout.engine=vllm": "vLLM has an environment of its own",
    "entrobench data prepare": "needs a network",
    "entrobench data check": "needs the real sets",
    "entrobench dynamics demo": "takes minutes",
    "entrobench explain all demo": "has batches of the demo's size",
    "entrobench doctor": "takes ten seconds, and tests/test_doctor.py runs it",
    "entrobench run paper --launcher slurm": "needs SLURM, and the paper's models",
    "entrobench run field": "hours; a test has every method learn in miniature",
    "entrobench leaderboard --experiment demo --uri URI": "a stranger's server",
}


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        timeout=HANG,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a reader has it after `entrobench run smoke`, with the file that the README lets them write."""
    path = tmp_path_factory.mktemp("reader")
    (path / "my_methods.py").write_text(A_METHOD)
    result = run("-m", "harness.cli", "run", "smoke", *TINY, cwd=path)
    assert result.returncode == 0, result.stderr
    (path / "output.txt").write_text(result.stdout)
    return path


@pytest.mark.processes
@pytest.mark.parametrize("command", [command for command in OURS if command not in NOT_RUN])
def test_commands_run(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In this process, which has imported what all of them need."""
    arguments = shlex.split(command)[1:]
    if arguments[0] in NAMES_A_MATRIX and "paper" not in arguments:
        arguments = [*("smoke" if each == "demo" else each for each in arguments), *TINY]
    if arguments[0] == "eval":
        arguments += ["--problems", "4"]
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "my_methods", raising=False)  # other tests have others of this name
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    out, err = capfd.readouterr()
    assert ended.value.code == 0, out + err
    assert out.strip()
    assert "Traceback" not in err


@pytest.mark.parametrize("command", NOT_RUN)
def test_commands_mean_something(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command in OURS, "the README no longer has it"
    monkeypatch.chdir(tmp_path)
    arguments = cli.parse_command(shlex.split(command)[1:])
    if getattr(arguments, "config", None):
        assert matrix.cells(load(arguments))


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("make")])
@pytest.mark.parametrize("locked", [[], ["LOCKED=1"]])
def test_make_targets_exist(command: str, locked: list[str]) -> None:
    subprocess.run([*shlex.split(command), *locked, "--dry-run"], cwd=REPOSITORY, check=True, capture_output=True)


def test_mlflow_is_shown_the_store_that_runs_write() -> None:
    (command,) = (command for command in COMMANDS if command.startswith("mlflow"))
    assert shlex.split(command)[-1] == config.load("demo").tracking_uri


@pytest.mark.processes
def test_the_terminal_looks_like_that(folder: Path) -> None:
    def shape(text: str) -> list[str]:
        """Returns the lines without what depends on numbers and their widths."""
        text = re.sub(r"\b[0-9a-f]{12}\b", "#", text)  # a digest, whose letters differ by processor
        text = text.replace("‡", "")  # a mark of scores near 0, as those of four problems are
        text = re.sub(r"[+-]?\d+(\.\d+)?", "#", text.replace("─", ""))
        return [" ".join(line.split()) for line in text.splitlines() if line.strip()]

    def in_order(lines: list[str]) -> list[str]:
        """Return the lines with those of cells that ended sorted, since they run side by side."""
        ends = sorted(line for line in lines if line.startswith("done "))
        return [ends.pop(0) if line.startswith("done ") else line for line in lines]

    printed = [line for line in shape((folder / "output.txt").read_text()) if not line.startswith("# of # cells done")]
    assert in_order(printed[: len(shape(TERMINAL))]) == in_order(shape(TERMINAL))


@pytest.mark.processes
def test_from_python(folder: Path) -> None:
    """On the cells that the command has made, so that both mean the same ones."""
    example = FROM_PYTHON.replace('load("smoke")', f'load("smoke", *{TINY})')
    assert example != FROM_PYTHON
    finished = (folder / "results/smoke").glob("*/state.json")
    before = {path: path.stat().st_mtime_ns for path in finished}
    result = run("-c", example, cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "clip_b" in result.stdout
    assert before
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_the_configuration_plans(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(CONFIGURATION)
    planned = matrix.cells(config.load(str(tmp_path / "my.yaml")))
    assert len(planned) == 4 * 5
    assert planned[0].config.rollout.max_new_tokens == config.load("demo").rollout.max_new_tokens
    assert yaml.safe_load(CONFIGURATION)["base"] == "demo"


def test_links_lead_somewhere() -> None:
    for page in (REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").glob("*.md")):
        text = page.read_text()
        links = re.findall(r"\]\(([^)#:]+)[^):]*\)", text)
        assert not [link for link in links if not (page.parent / link).exists()], page
        assert not [name for name in re.findall(r"docs/[\w-]+\.md", text) if not (REPOSITORY / name).exists()], page


def test_the_index_has_every_page() -> None:
    index = (REPOSITORY / "docs/README.md").read_text()
    pages = {page.name for page in (REPOSITORY / "docs").glob("*.md")} - {"README.md"}
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", index)) == pages


def test_the_tree_is_the_tree() -> None:
    tree = README.split("## The tree")[1].split("\nWhat a cell leaves")[0]
    named: set[Path] = set()
    folder = Path()
    for line in tree.splitlines():
        match = re.match(r"    ( *)((?:[\w.]+[/.]\S* ?)+)", line)
        if not match:
            continue
        for name in match[2].split():
            path = REPOSITORY / name if not match[1] else folder / name
            assert path.exists(), path
            named.add(path)
        if not match[1]:
            folder = REPOSITORY / match[2].strip()
    rooms = {
        path
        for path in (REPOSITORY / "harness").iterdir()
        if not path.name.startswith("__") and path.name != "py.typed"
    }
    assert rooms <= named
