"""Checks of this machine: the parts of entrobench that work on it, and the missing ones.

Of what is heavy, only torch is imported, and MLflow where its store is not a file. The engines are known by their
packages; `entrobench look` samples with one.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rich.console import Console

from harness.base import files, terminal
from harness.base.errors import UserError, short
from harness.base.terminal import Column
from harness.base.units import GIB
from harness.config import Config
from harness.launch.machine import Device, Machine, this_machine
from harness.rollout import choice
from harness.tracking import store
from harness.tracking.reader import reader
from tasks.data import cache, sets

PYTHONS = ("3.11", "3.12", "3.13", "3.14")

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


def obstacle_finding(what: str, sentence: str, remedy: str = "") -> MachineFinding:
    """Return the finding of an obstacle; sentences of our own end with a remedy."""
    finding, _, own_remedy = sentence.partition("; ")
    return MachineFinding(what, MISSING, finding, own_remedy or remedy)


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


def find_torch(device: str) -> MachineFinding:
    remedy = "on a machine with a GPU, install a CUDA build of torch"
    try:
        import torch
    except (ImportError, OSError) as error:  # the latter: of a library that it cannot load
        return MachineFinding("torch", MISSING, short(str(error)), remedy)
    if device == "cuda" and not torch.cuda.is_available():
        return MachineFinding("torch", MISSING, f"torch {torch.__version__} does not see the GPU that is here", remedy)
    cuda = f"CUDA {torch.version.cuda}, devices: {torch.cuda.device_count()}" if torch.version.cuda else "without CUDA"
    return MachineFinding("torch", OK, f"{torch.__version__}, {cuda}")


def find_store(uri: str) -> MachineFinding:
    path = store.database(uri)
    try:
        if path is None:
            with store.store(uri, write=False) as client:
                return MachineFinding("mlflow", OK, f"the server holds experiments: {len(client.search_experiments())}")
        if not path.exists():
            return MachineFinding("mlflow", OK, f"{path} will be made by the first run")
        # Without MLflow's own reader of databases, which takes half a second to load.
        with reader(uri) as source:
            return MachineFinding("mlflow", OK, f"{path} holds experiments: {len(source.experiments())}")
    except UserError as error:
        return obstacle_finding("mlflow", str(error), "runs do without it; `entrobench sync` feeds it later")


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
    """Yield all findings, always in the same order: those that take a second come last."""
    machine = this_machine(config)
    device = "cuda" if machine.devices else "cpu"
    yield find_python(platform.python_version())
    yield from find_hardware(machine)
    yield find_package("engine embedded")
    yield find_vllm(device)
    yield find_package("trainer trl")
    yield find_package("adapters")
    yield find_sets({name: cache.find_card(name) is not None for name in sets.SETS})
    yield find_folder("cache", files.default_cache(), "set ENTROBENCH_CACHE to a folder that can")
    yield find_folder("results", Path(config.results), "choose another results=")
    yield find_torch(device)
    yield find_store(config.tracking_uri)


def print_findings(console: Console, findings: Sequence[MachineFinding]) -> None:
    columns = [Column(name) for name in ("what", "state", "found", "remedy")]
    rows = [[finding.what, finding.state, finding.found, finding.remedy] for finding in findings]
    terminal.show_table(console, columns, rows)
