"""The command line from end to end: a short matrix, killed, resumed and read; mistakes end with exit code 2.

The first matrix runs in a process of its own; most other commands run in this one, so that imports are shared.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import refusal, run_command, run_python
from patience import HANG, patient, wait_until
from places import REPOSITORY

from harness.cells import lease
from harness.rollout import choice

pytestmark = pytest.mark.processes

SHORT = ["methods=[grpo,clip_b]", "seeds=[0,1]", "train.steps=2", "train.prompts=8", "train.updates=2", "train.group=8"]
SHORT += ["checkpoint.every=1", "eval.problems=8", "eval.samples=4", "eval.k=2", "eval.every=1"]


# Of the hub and of a server of MLflow, which the commands here have no use for.
SECRETS = {"HF_TOKEN": "hf_0123456789", "MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "open-sesame"}


def entrobench(*arguments: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "entrobench", *arguments, cwd=cwd, code=code, **SECRETS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, put_store: Callable[[Path], None]) -> Path:
    """A folder with a short matrix that was run, from the first command to the leaderboard."""
    folder = tmp_path_factory.mktemp("run")
    put_store(folder / "results")
    result = entrobench("run", "demo", *SHORT, cwd=folder)
    assert "4 cells, 0 done before, 4 to run" in result.stdout
    return folder


def cells(folder: Path, matrix: str = "demo") -> list[Path]:
    return sorted(path.parent for path in folder.glob(f"results/{matrix}/*/config.yaml"))


def test_run_leaves_records(finished: Path) -> None:
    assert len(cells(finished)) == 4
    for cell in cells(finished):
        assert json.loads((cell / "state.json").read_text())["state"] == "done"
        lines = [json.loads(line) for line in (cell / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == [0, 1, 2]
        assert {"evals", "samples", "model", "log.txt"} <= {path.name for path in cell.iterdir()}


def test_run_writes_no_secret(finished: Path) -> None:
    files = [path for path in finished.rglob("*") if path.is_file()]
    assert {"mlflow.db", "log.txt", "config.yaml", "leaderboard.md"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        assert b"hf_0123456789" not in content, path
        assert b"open-sesame" not in content, path


def test_plan_and_status_of_a_changed_config(finished: Path) -> None:
    planned = run_command("plan", "demo", *SHORT, "train.lr=1e-4", cwd=finished)
    assert re.search(r"^ *planned +4 *$", planned, re.MULTILINE)
    assert len(cells(finished)) == 4, "a plan runs nothing and writes nothing"
    assert "4 more cells" in run_command("status", "demo", *SHORT, "train.lr=1e-4", cwd=finished)


def test_status_list_and_report(finished: Path) -> None:
    status = run_command("status", "demo", *SHORT, cwd=finished)
    assert status.count("done") == 4
    assert "2/2" in status
    listed = {"methods": "ce_gppo", "tasks": "countdown", "models": "countdown-tiny", "configs": "smoke"}
    for what, name in listed.items():
        assert name in run_command("list", what, cwd=finished)
    run_command("report", "demo", *SHORT, cwd=finished)
    page = (finished / "results/demo/report/report.html").read_text()
    assert "clip_b" in page
    assert "default-src 'none'" in page  # a browser fetches nothing for it


FAULTS = """
import os, resource, signal
from dataclasses import dataclass
from pathlib import Path

import torch

from harness.methods.verbs import Control

MENDED = Path(__file__).parent / "mended"


def fill_the_disk():
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # of any file: no checkpoint fits


FAULTS = {
    "diverges": lambda: torch.tensor(0.0) / 0,
    "raises": lambda: [][0],
    "crashes": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "is_killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "lacks_memory": lambda: torch.empty(2**50),
    "fills_the_disk": fill_the_disk,
}


@dataclass(frozen=True)
class Faulty(Control):
    '''Goes wrong in its own way until it is mended.'''

    how: str = ""

    def weights(self, old, advantages_T, batch):
        found = None if MENDED.exists() else FAULTS[self.how]()
        return torch.ones_like(advantages_T) * (1 if found is None else found)


METHODS = {"faulty": Faulty}
"""
ENDS = {  # of each fault, as the table tells it
    "diverges": "method faulty(how=diverges) gives weights or advantages that are not finite (in step 1)",
    "raises": "IndexError: list index out of range (in stats of step 1)",
    "crashes": "its process ended by SIGSEGV in stats of step 1",
    "is_killed": "its process ended by SIGKILL (out of memory?) in stats of step 1",
    "lacks_memory": "out of memory (in stats of step 1): at most ",
    "fills_the_disk": "cannot be written: File too large; free some space",
}


@pytest.mark.slow
def test_run_failing_cells(tmp_path: Path, put_store: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> None:
    put_store(tmp_path / "results")
    (tmp_path / "faulty_methods.py").write_text(FAULTS)
    faulty = [f"faulty(how={how})" for how in ENDS]
    methods = f"methods=[grpo,{','.join(map(repr, faulty))}]"
    short = [methods, "seeds=[0]", *SHORT[2:], "train.steps=1", "eval.every=0", "--plugin", "faulty_methods"]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    printed = run_command("run", "demo", *short, cwd=tmp_path, code=1)
    rows = json.loads(run_command("leaderboard", "demo", *short, "--format", "json", cwd=tmp_path))
    seeds_done = {row["method"]: row["seeds_done"] for row in rows}
    assert seeds_done == {"base model": 1, "grpo": 1, **dict.fromkeys(faulty, 0)}
    status = run_command("status", "demo", *short, cwd=tmp_path)
    for how, end in ENDS.items():
        assert end in printed, how
        assert end[:40] in status, how
    assert status.count("the end of ") == len(ENDS)
    for words in ("IndexError: list index out of range\n", "hardware.micro_tokens, set hardware.recompute=true or "):
        assert f"    {words}" in status or words in status

    (tmp_path / "mended").touch()
    chosen = ["seeds=[0,1]", "--retry-failed", "--only", faulty[0], "--only", "grpo"]
    again = run_command("run", "demo", *short, *chosen, cwd=tmp_path)
    assert "matrix demo: 1 of 14 cells, 0 done before, 1 to run" in again
    states = [json.loads((cell / "state.json").read_text())["state"] for cell in cells(tmp_path)]
    assert sorted(states) == ["done"] * 2 + ["failed"] * (len(ENDS) - 1), "and nothing else has run"
    wrong = refusal("run", "demo", *short, "--only", "grp", cwd=tmp_path)
    assert "--only is 'grp'; allowed: " in wrong
    assert "did you mean 'grpo'?" in wrong


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "demo", "train.stpes=1"], "did you mean 'steps'"),
        (["run", "demo", "models=[./nothing-here]"], "nothing-here"),
        (["leaderboard", "demo"], "found no MLflow store"),
        (["run", "demo", "--jobs", "0"], "--jobs is 0"),
        (["plan", "demo", "--plugin", "no_such_module"], "no_such_module"),
        (["report", "demo"], "found no MLflow store"),
        pytest.param(
            ["run", "demo", "rollout.engine=vllm"],
            "rollout.engine=vllm needs vLLM, which is not installed here; pip install -e '.[",
            marks=pytest.mark.skipif(choice.installed_vllm() is not None, reason="vLLM is installed here"),
        ),
        (["run", "demo", "eval.tasks=[aime24]"], "aime24 is not prepared; run `entrobench data prepare aime24`"),
    ],
)
def test_mistakes_write_nothing(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENTROBENCH_CACHE", str(tmp_path / "cache"))
    assert words in refusal(*arguments, cwd=tmp_path)
    assert not list(tmp_path.iterdir())


def test_run_leaves_folders_of_others_alone(tmp_path: Path) -> None:
    (tmp_path / "results/demo").mkdir(parents=True)
    (tmp_path / "results/demo/thesis.tex").write_text("precious")
    assert "did not make" in refusal("run", "demo", cwd=tmp_path)
    (tmp_path / "results/demo/thesis.tex").unlink()
    (tmp_path / "results/demo/matrix.json").write_text('{"matrix": "mine"}')
    assert "belongs to the matrix 'mine'" in refusal("run", "demo", cwd=tmp_path)


@pytest.mark.parametrize(
    ("moment", "sent", "to_all"),
    [
        ("starting", signal.SIGINT, True),
        pytest.param("running", signal.SIGINT, True, marks=pytest.mark.long),
        pytest.param("starting", signal.SIGHUP, True, marks=pytest.mark.long),
        pytest.param("running", signal.SIGTERM, False, marks=pytest.mark.long),
    ],
)
def test_run_interrupted(moment: str, sent: signal.Signals, to_all: bool, tmp_path: Path) -> None:
    """By Ctrl-C or the end of the terminal, which every process of the run hears of, also while the first ones import
    torch; and by SIGTERM, of which the runner alone hears."""
    with subprocess.Popen(
        [sys.executable, "-m", "entrobench", "run", "smoke", f"results={tmp_path / 'results'}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert "starting the processes\n" in iter(process.stdout.readline, "")
        if moment == "running":
            wait_until(lambda: any(tmp_path.glob("results/smoke/*/metrics.jsonl")))
        owners = [lease.holder(folder) for folder in cells(tmp_path, "smoke")]
        began = time.monotonic()
        (os.killpg if to_all else os.kill)(process.pid, sent)
        process.wait(timeout=HANG)
        took = time.monotonic() - began
        assert all(lease.born(owner.process) is None for owner in owners if owner), "no cell outlives the runner"
        _, said = process.communicate(timeout=HANG)
    assert took < patient(10), "the seconds that a stop takes"
    assert said == "\nentrobench: interrupted; finished work is kept, and the same command continues\n"
    assert process.returncode == 128 + sent
    assert any(owners) == (moment == "running")
    status = run_command("status", "smoke", cwd=tmp_path)
    assert "running" not in status
    assert ("stale" in status) == (moment == "running")
