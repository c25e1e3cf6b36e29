"""The command line as a person uses it: a short matrix, killed, resumed, read; and mistakes end with exit code 2."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from places import REPOSITORY

from harness.rollout import choice

pytestmark = pytest.mark.processes

SHORT = [
    "methods=[grpo,clip_b]",
    "seeds=[0,1]",
    "train.steps=4",
    "train.prompts=8",
    "train.updates=2",
    "train.group=8",
    "checkpoint.every=1",
]
SHORT += ["eval.problems=8", "eval.samples=4", "eval.k=2", "eval.every=2"]


# Of the hub and of a server of MLflow, which the commands here have no use for.
SECRETS = {"HF_TOKEN": "hf_0123456789", "MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "open-sesame"}


def entrobench(*arguments: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [sys.executable, "-m", "harness.cli", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200", **SECRETS},
        timeout=120,
        check=False,
    )
    assert result.returncode == code, f"{arguments} gave {result.returncode}:\n{result.stdout}\n{result.stderr}"
    assert "Traceback" not in result.stderr
    return result


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short matrix that was run, from the first command to the leaderboard."""
    folder = tmp_path_factory.mktemp("run")
    result = entrobench("run", "demo", *SHORT, cwd=folder)
    assert "4 cells, 0 done before, 4 to run" in result.stdout
    return folder


def cells(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("results/demo/*/config.yaml"))


def test_a_matrix_runs_and_leaves_its_records(finished: Path) -> None:
    assert len(cells(finished)) == 4
    for cell in cells(finished):
        assert json.loads((cell / "state.json").read_text())["state"] == "done"
        lines = [json.loads(line) for line in (cell / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
        assert {"evals", "samples", "model", "log.txt"} <= {path.name for path in cell.iterdir()}


def test_no_secret_of_the_environment_is_written_anywhere(finished: Path) -> None:
    files = [path for path in finished.rglob("*") if path.is_file()]
    assert {"mlflow.db", "log.txt", "config.yaml", "leaderboard.html"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        assert b"hf_0123456789" not in content, path
        assert b"open-sesame" not in content, path


def test_a_second_run_does_nothing_again(finished: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.glob("results/demo/*/metrics.jsonl")}
    assert len(before) == 4
    result = entrobench("run", "demo", *SHORT, cwd=finished)
    assert "4 done before, 0 to run" in result.stdout
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_changed_config_makes_new_cells(finished: Path) -> None:
    result = entrobench("plan", "demo", *SHORT, "train.lr=1e-4", cwd=finished)
    assert re.search(r"^ *planned +4 *$", result.stdout, re.MULTILINE)
    assert len(cells(finished)) == 4, "a plan runs nothing and writes nothing"
    assert "4 more cells" in entrobench("status", "demo", *SHORT, "train.lr=1e-4", cwd=finished).stdout


def test_the_leaderboard_is_read_from_mlflow_alone(finished: Path, tmp_path: Path) -> None:
    rows = json.loads(entrobench("leaderboard", "demo", *SHORT, "--format", "json", cwd=finished).stdout)
    assert sorted(row["method"] for row in rows) == ["clip_b", "grpo"]
    for row in rows:
        assert row["seeds_done"] == row["seeds_expected"] == 2
        assert row["task"] == "countdown"
        evals = [
            json.loads((cell / "evals" / "countdown-000004.json").read_text())["right"]
            for cell in cells(finished)
            if cell.name.startswith(f"{row['method']}-")
        ]
        right = [answer for matrix in evals for problem in matrix for answer in problem]
        assert row["avg_at_k"]["mean"] == pytest.approx(sum(right) / len(right))
        assert set(row["avg_at_k"]) == {"mean", "low", "high"}
        assert {"1", "2", "4"} <= set(row["pass_at_k"])
    records = list(finished.glob("results/demo/*/metrics.jsonl"))
    assert len(records) == 4
    for record in records:
        record.rename(record.with_suffix(".away"))
    try:
        again = json.loads(entrobench("leaderboard", "demo", *SHORT, "--format", "json", cwd=finished).stdout)
    finally:
        for record in records:
            record.with_suffix(".away").rename(record)
    assert again == rows
    for how, start in [("md", "**countdown, countdown-tiny**"), ("csv", "method,")]:
        assert entrobench("leaderboard", "demo", *SHORT, "--format", how, cwd=finished).stdout.startswith(start)


def test_status_list_and_report(finished: Path) -> None:
    status = entrobench("status", "demo", *SHORT, cwd=finished).stdout
    assert status.count("done") == 4
    assert "4/4" in status
    for what, name in [
        ("methods", "ce_gppo"),
        ("tasks", "countdown"),
        ("models", "countdown-tiny"),
        ("configs", "smoke"),
    ]:
        assert name in entrobench("list", what, cwd=finished).stdout
    entrobench("report", "demo", *SHORT, cwd=finished)
    page = (finished / "results/demo/report/report.html").read_text()
    assert "clip_b" in page
    assert "default-src 'none'" in page  # a browser fetches nothing for it
    pictures = {path.name for path in (finished / "results/demo/report").glob("*.svg")}
    assert pictures == {"entropy-countdown.svg", "pass_at_2-countdown.svg"}


def test_killed_anywhere_it_ends_with_the_same_metrics(finished: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness.cli", "run", "demo", *SHORT, "--jobs", "2"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, start_new_session=True, stdout=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 120
        while not any(tmp_path.glob("results/demo/*/checkpoints/step-*")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
    assert "stale" in entrobench("status", "demo", *SHORT, cwd=tmp_path).stdout
    entrobench("run", "demo", *SHORT, cwd=tmp_path)

    def logged(folder: Path) -> dict[str, list[dict[str, float]]]:
        return {
            cell.name: [
                {k: v for k, v in json.loads(line)["metrics"].items() if not k.startswith("time/")}
                for line in (cell / "metrics.jsonl").read_text().splitlines()
            ]
            for cell in cells(folder)
        }

    assert len(logged(finished)) == 4
    assert logged(tmp_path) == logged(finished)


def test_one_failing_cell_is_one_row(tmp_path: Path) -> None:
    plugin = "from dataclasses import dataclass\nfrom harness.method import Control\n"
    plugin += "@dataclass(frozen=True)\nclass Broken(Control):\n    '''Gives weights that are not finite.'''\n"
    plugin += "    def weights(self, old, advantages_T, batch):\n        return advantages_T / 0\n"
    plugin += "METHODS = {'broken': Broken}\n"
    (tmp_path / "broken_method.py").write_text(plugin)
    short = ["methods=[grpo,broken]", "seeds=[0]", *SHORT[2:], "--plugin", "broken_method"]
    result = entrobench("run", "demo", *short, cwd=tmp_path, code=1)
    assert "method broken gives weights or advantages that are not finite" in result.stdout
    rows = json.loads(entrobench("leaderboard", "demo", *short, "--format", "json", cwd=tmp_path).stdout)
    assert {row["method"]: row["seeds_done"] for row in rows} == {"grpo": 1, "broken": 0}


@pytest.mark.skipif(choice.installed() is not None, reason="vLLM is installed here")
def test_a_matrix_whose_engine_is_missing_does_not_begin(tmp_path: Path) -> None:
    result = entrobench("run", "demo", "rollout.engine=vllm", cwd=tmp_path, code=2)
    assert "vLLM is not installed here; install entrobench[" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "demoo"], "did you mean 'demo'"),
        (["run", "demo", "train.stpes=1"], "did you mean 'steps'"),
        (["run", "demo", "train.group=1"], "train.group is 1"),
        (["run", "demo", "models=[./nothing-here]"], "nothing-here"),
        (["leaderboard", "demo"], "there is no MLflow store"),
        (["run", "demo", "--jobs", "0"], "--jobs is 0"),
        (["run", "demo", "hardware.cache_gib=nan"], "hardware.cache_gib is nan; allowed: more than 0"),
        (["plan", "demo", "--plugin", "no_such_module"], "no_such_module"),
        (["report", "demo"], "there is no MLflow store"),
    ],
)
def test_mistakes_end_with_one_sentence_and_write_nothing(arguments: list[str], words: str, tmp_path: Path) -> None:
    result = entrobench(*arguments, cwd=tmp_path, code=2)
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_set_that_is_not_prepared_stops_the_matrix_before_its_first_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENTROBENCH_CACHE", str(tmp_path / "cache"))
    result = entrobench("run", "demo", "eval.tasks=[aime24]", cwd=tmp_path, code=2)
    assert result.stderr == (
        "entrobench: the problem set aime24 is not prepared; run `entrobench data prepare aime24`\n"
    )
    assert not list(tmp_path.iterdir())


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "results/demo").mkdir(parents=True)
    (tmp_path / "results/demo/thesis.tex").write_text("precious")
    assert "did not make" in entrobench("run", "demo", cwd=tmp_path, code=2).stderr
    (tmp_path / "results/demo/thesis.tex").unlink()
    (tmp_path / "results/demo/matrix.json").write_text('{"matrix": "mine"}')
    assert "belongs to the matrix 'mine'" in entrobench("run", "demo", cwd=tmp_path, code=2).stderr


@pytest.mark.parametrize("moment", ["starting", "running"])
def test_interrupted_it_says_so_once_and_stops_its_cells(moment: str, tmp_path: Path) -> None:
    """By Ctrl-C, which a terminal sends to every process of the run: also while the first ones import torch."""
    with subprocess.Popen(
        [sys.executable, "-m", "harness.cli", "run", "smoke"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert "starting the processes\n" in iter(process.stdout.readline, "")
        deadline = time.monotonic() + 120
        while moment == "running" and not any(tmp_path.glob("results/smoke/*/metrics.jsonl")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert said == "\nentrobench: interrupted; what is done is kept, and the same command goes on\n"
    assert process.returncode == 130
    told = entrobench("status", "smoke", cwd=tmp_path).stdout
    assert "running" not in told
    assert ("stale" in told) == (moment == "running")
