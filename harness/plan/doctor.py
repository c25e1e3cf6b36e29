"""Checks of this machine: the parts of entrobench that work on it, and the missing ones.

Nothing heavy is imported here. Checks that may hang, crash or take long run in processes of their own, in parallel and
with a time limit. The engines are known by their packages; `entrobench look` samples with one.
"""

from __future__ import annotations

import importlib
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rich.console import Console

from harness.base import files, terminal
from harness.base.addresses import without_address
from harness.base.errors import UserError
from harness.base.garbage import search_rarely
from harness.base.processes import python_command
from harness.base.terminal import Column
from harness.base.units import GIB
from harness.config import Config
from harness.launch.machine import Device, Machine, this_machine
from harness.rollout import choice
from harness.tracking import store
from harness.tracking.reader import reader
from tasks.data import cache, sets

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
LIMIT_S = 120.0  # for one trial: importing torch from a cold disk on a busy machine takes most of a minute

OK = "ok"
MISSING = "missing"  # some parts do not run here
BROKEN = "broken"  # nothing runs here


@dataclass(frozen=True)
class MachineFinding:
    """The result of one check."""

    what: str
    state: str
    found: str
    remedy: str = ""


# Trials, each in a process of its own; they return the finding as text


def try_torch(device: str, uri: str) -> str:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UserError(f"torch {torch.__version__} does not see the GPU that is here")
    cuda = f"CUDA {torch.version.cuda}, devices: {torch.cuda.device_count()}" if torch.version.cuda else "without CUDA"
    return f"{torch.__version__}, {cuda}"


def try_mlflow(device: str, uri: str) -> str:
    importlib.import_module("mlflow")
    path = store.database(uri)
    if path is None:
        with store.store(uri, write=False) as client:
            return f"the server holds experiments: {len(client.search_experiments())}"
    if not path.exists():
        return f"{path} will be made by the first run"
    # Without MLflow's own reader of databases, which takes another half second to load.
    with reader(uri) as source:
        return f"{path} holds experiments: {len(source.experiments())}"


TRIALS: Mapping[str, Callable[[str, str], str]] = {"torch": try_torch, "mlflow": try_mlflow}
REMEDIES = {
    "torch": "on a machine with a GPU, install a CUDA build of torch",
    "mlflow": "runs do without it; `entrobench sync` feeds it later",
}


def attempt_trial(what: str, device: str, uri: str) -> None:
    """Run a trial in its own process: print the finding, or exit with the reason of the failure."""
    search_rarely()  # the trial imports what it tries
    try:
        print(TRIALS[what](device, uri))
    except (UserError, ImportError) as error:
        sys.exit(" ".join(str(error).split()))


def find_by_trial(what: str, device: str, uri: str, limit_s: float = LIMIT_S) -> MachineFinding:
    # The address, which may hold a password, goes through stdin: every user can read the arguments of a process.
    trial = f"doctor.attempt_trial({what!r}, {device!r}, sys.stdin.read())"
    try:
        command = python_command("from harness.plan import doctor", trial)
        process = subprocess.run(command, input=uri, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return MachineFinding(what, MISSING, f"no answer within {limit_s:.0f} s", REMEDIES[what])
    # The last line of the output, since libraries may print before it.
    if process.returncode == 0:
        return MachineFinding(what, OK, process.stdout.strip().splitlines()[-1])
    if process.returncode < 0:
        return MachineFinding(what, MISSING, f"its process died of signal {-process.returncode}", REMEDIES[what])
    output = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
    return obstacle_finding(what, without_address(output[-1], uri), REMEDIES[what])


def obstacle_finding(what: str, sentence: str, remedy: str = "") -> MachineFinding:
    """Return the finding of an obstacle; sentences of our own end with a remedy."""
    finding, _, own_remedy = sentence.partition("; ")
    return MachineFinding(what, MISSING, finding, own_remedy or remedy)


# Findings without a trial


def find_python(version: str) -> MachineFinding:
    if version.rpartition(".")[0] in PYTHONS:
        return MachineFinding("python", OK, version)
    return MachineFinding("python", BROKEN, version, f"use Python {' or '.join(PYTHONS)}")


def find_hardware(machine: Machine) -> list[MachineFinding]:
    def describe(device: Device) -> str:
        return device.name if device.memory is None else f"{device.name}, {device.memory / GIB:.0f} GiB"

    gpus = [describe(device) for device in machine.devices]
    findings = [
        MachineFinding("processor", OK, f"cores: {machine.cores}, memory: {machine.ram / GIB:.0f} GiB"),
        MachineFinding("disk", OK, f"{machine.free / GIB:.0f} GiB free for results"),
    ]
    if gpus:
        return [*findings, MachineFinding("gpu", OK, "; ".join(gpus))]
    remedy = "the embedded tier needs none; for larger models see docs/gpu.md"
    return [*findings, MachineFinding("gpu", MISSING, "none", remedy)]


def find_sets(prepared: Mapping[str, bool]) -> MachineFinding:
    missing = [name for name, is_prepared in prepared.items() if not is_prepared]
    if not missing:
        return MachineFinding("data sets", OK, ", ".join(prepared))
    text = f"{len(prepared) - len(missing)} of {len(prepared)} are prepared, not {', '.join(missing)}"
    return MachineFinding("data sets", MISSING, text, "entrobench data prepare; countdown needs none")


PACKAGES = {  # by finding: the package, the state without it, and the remedy
    "engine embedded": ("transformers", BROKEN, "reinstall entrobench in a new environment"),
    "trainer trl": ("trl", MISSING, "pip install -e '.[trl]'; only train.backend=trl needs it"),
    "adapters": ("peft", MISSING, "pip install -e '.[lora]'; only train.lora needs it"),
}


def find_package(what: str) -> MachineFinding:
    package, state, remedy = PACKAGES[what]
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return MachineFinding(what, state, f"{package} is not installed", remedy)
    return MachineFinding(what, OK, f"{package} {version} is installed")


def find_vllm(device: str) -> MachineFinding:
    try:
        choice.check_vllm(device)
    except UserError as error:
        return obstacle_finding("engine vllm", str(error))
    return MachineFinding("engine vllm", OK, f"{' '.join(choice.installed_vllm() or ())} is installed")


def find_folder(what: str, folder: Path, remedy: str) -> MachineFinding:
    """Return whether files can be made in a folder, or in the nearest existing one above it."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            return MachineFinding(what, OK, f"{folder} can be written")
    except OSError as error:
        return MachineFinding(what, BROKEN, f"{folder} cannot be written ({error.strerror})", remedy)


def findings(config: Config) -> Iterator[MachineFinding]:
    """Yield all findings, always in the same order: first the quick ones, then those of the trials."""
    machine = this_machine(config)
    device = "cuda" if machine.devices else "cpu"
    with ThreadPoolExecutor(len(TRIALS)) as threads:
        # They start now and run in parallel with the quick checks.
        trials = threads.map(lambda what: find_by_trial(what, device, config.tracking_uri), TRIALS)
        yield find_python(platform.python_version())
        yield from find_hardware(machine)
        yield find_package("engine embedded")
        yield find_vllm(device)
        yield find_package("trainer trl")
        yield find_package("adapters")
        yield find_sets({name: cache.find_card(name) is not None for name in sets.SETS})
        yield find_folder("cache", files.default_cache(), "set ENTROBENCH_CACHE to a folder that can")
        yield find_folder("results", Path(config.results), "choose another results=")
        yield from trials


def print_findings(console: Console, findings: Sequence[MachineFinding]) -> None:
    columns = [Column(name) for name in ("what", "state", "found", "remedy")]
    rows = [[finding.what, finding.state, finding.found, finding.remedy] for finding in findings]
    terminal.show_table(console, columns, rows)
