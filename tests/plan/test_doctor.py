from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import torch
from commands import run_python
from places import REPOSITORY
from rich.console import Console

from harness import cli
from harness.commands import doctor as command
from harness.launch.machine import Device, Machine
from harness.plan import doctor
from harness.plan.doctor import (
    BROKEN,
    MISSING,
    OK,
    find_folder,
    find_hardware,
    find_package,
    find_python,
    find_sets,
    find_store,
    find_torch,
    find_vllm,
    print_findings,
)
from harness.plan.doctor import MachineFinding as Finding
from harness.rollout import choice


def test_find_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_torch("cpu") == Finding("torch", OK, f"{torch.__version__}, without CUDA")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    without_gpu = find_torch("cuda")
    assert without_gpu.state == MISSING
    assert without_gpu.remedy == "on a machine with a GPU, install a CUDA build of torch"
    monkeypatch.setitem(sys.modules, "torch", None)
    assert find_torch("cpu").found.startswith("import of torch halted")


def test_find_store_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("no database, but a long enough text to be taken for one" * 9)
    finding = find_store(f"sqlite:///{tmp_path}/mlflow.db")
    assert finding.state == MISSING
    assert finding.found.startswith("the MLflow store at sqlite:///")
    assert "cannot be used: " in finding.found


def test_find_python_versions() -> None:
    states = {version: find_python(version).state for version in ("3.1.1", "3.10.12", "3.11.7", "3.14.0", "3.15.0")}
    assert states == {"3.1.1": BROKEN, "3.10.12": BROKEN, "3.11.7": OK, "3.14.0": OK, "3.15.0": BROKEN}


def test_find_hardware() -> None:
    bare = find_hardware(Machine(24 * 2**30, 2, 5 * 2**30))
    assert [(finding.what, finding.state, finding.found) for finding in bare] == [
        ("processor", OK, "cores: 2, memory: 24 GiB"),
        ("disk", OK, "5 GiB free for results"),
        ("gpu", MISSING, "none"),
    ]
    devices = (Device("A", 80 * 2**30), Device("a GPU", None))
    assert find_hardware(Machine(1, 1, 1, devices))[-1] == Finding("gpu", OK, "A, 80 GiB; a GPU")


def test_find_folder(tmp_path: Path) -> None:
    assert find_folder("results", tmp_path / "new" / "deep", "").state == OK
    assert not list(tmp_path.iterdir()), "nothing was made"
    (tmp_path / "file").touch()
    finding = find_folder("results", tmp_path / "file" / "new", "elsewhere")
    assert (finding.state, finding.remedy) == (BROKEN, "elsewhere")
    assert finding.found.endswith("cannot be written (Not a directory)")


def test_find_sets() -> None:
    assert find_sets({"a": True, "b": True}) == Finding("data sets", OK, "a, b")
    lacking = find_sets({"a": True, "b": False, "c": False})
    assert (lacking.state, lacking.found) == (MISSING, "1 of 3 are prepared, not b, c")


@pytest.mark.parametrize(("state", "code"), [(OK, 0), (MISSING, 0), (BROKEN, 1)])
def test_doctor_exit_code(
    state: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "findings", lambda config: [Finding("python", OK, "3"), Finding("x", state, "y", "z")])
    assert command.call(cli.parse_command(["doctor", "--format", "json"])) == code
    assert json.loads(capsys.readouterr().out)[1] == {"what": "x", "state": state, "found": "y", "remedy": "z"}


@pytest.mark.processes
def test_doctor_imports_nothing_heavy() -> None:
    code = "import sys; from harness.plan import doctor; print(*sys.modules)"
    loaded = run_python("-c", code, cwd=REPOSITORY).stdout.split()
    assert "harness.plan.doctor" in loaded
    assert not {"torch", "numpy", "transformers", "mlflow", "lm_eval", "vllm", "pyarrow"} & set(loaded)


@pytest.mark.processes
def test_doctor_on_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["doctor", "smoke", f"results={tmp_path / 'new'}", "--format", "json"]
    assert command.call(cli.parse_command(arguments)) == 0
    findings = {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["engine embedded"]["state"] == OK
    assert findings["engine embedded"]["found"].startswith("transformers 5.")
    assert findings["torch"]["found"].startswith("2.")
    assert findings["mlflow"]["found"] == f"{tmp_path}/new/mlflow.db will be made by the first run"
    assert findings["results"]["found"] == f"{tmp_path}/new can be written"
    assert not (tmp_path / "new").exists()


def test_find_package_and_find_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "5.17")
    assert find_package("engine embedded") == Finding("engine embedded", OK, "transformers 5.17 is installed")
    monkeypatch.setattr(choice, "vllm_obstacle", lambda device, shape: None)
    monkeypatch.setattr(choice, "installed_vllm", lambda: ("vllm", "0.32.0"))
    assert find_vllm("cuda") == Finding("engine vllm", OK, "vllm 0.32.0 is installed")
    monkeypatch.setattr(choice, "vllm_obstacle", lambda device, shape: f"it is not built for {device}; do without")
    assert find_vllm("cpu") == Finding("engine vllm", MISSING, "it is not built for cpu", "do without")

    def absent(name: str) -> str:
        raise doctor.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "version", absent)
    finding = find_package("engine embedded")
    assert (finding.state, finding.found) == (BROKEN, "transformers is not installed")


def test_print_findings() -> None:
    out = io.StringIO()
    print_findings(
        Console(file=out, width=160), [Finding("python", OK, "3.11.7"), Finding("gpu", MISSING, "none\x1b[2J")]
    )
    assert [line.split() for line in out.getvalue().splitlines()] == [
        ["what", "state", "found", "remedy"],
        ["python", "ok", "3.11.7"],
        ["gpu", "missing", r"none\x1b[2J"],
    ]
