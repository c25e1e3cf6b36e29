"""Tells what this machine can run, and what is missing.

Nothing heavy is imported here: what may hang, crash or take long is tried in processes of their own, side by side and
with a time limit. The engines take longest, so that they are tried only when asked for.
"""

from __future__ import annotations

import importlib
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.base import files
from harness.base.addresses import without_address
from harness.base.errors import UserError
from harness.base.processes import python_command
from harness.config import Config
from harness.data import cache, sets
from harness.plan.machine import Device, Machine, this_machine
from harness.rollout import choice
from harness.terminal import layout
from harness.terminal.layout import Column
from harness.terminal.units import GIB
from harness.tracking import store

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
LIMIT_S = 120.0  # of one trial; importing vLLM from a cold disk takes a good part of a minute

OK = "ok"
UNTRIED = "untried"  # what it needs is installed
MISSING = "missing"  # some things do not run here
BROKEN = "broken"  # nothing does
STYLES = {OK: "green", UNTRIED: "", MISSING: "yellow", BROKEN: "red"}


@dataclass(frozen=True)
class Finding:
    what: str
    state: str
    found: str
    remedy: str = ""


# Trials, each in a process of its own: what they give back is what was found


def try_torch(device: str, uri: str) -> str:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UserError(f"torch {torch.__version__} does not see the GPU that is here")
    cuda = f"CUDA {torch.version.cuda}, devices: {torch.cuda.device_count()}" if torch.version.cuda else "without CUDA"
    return f"{torch.__version__}, {cuda}"


def try_embedded(device: str, uri: str) -> str:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from harness.rollout.embedded import EmbeddedEngine

    chosen = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    engine = EmbeddedEngine(0, chosen)
    engine.load(Qwen2ForCausalLM(Qwen2Config(vocab_size=5, num_key_value_heads=1, **sizes)))
    [[rollout]] = engine.generate([[1]], 1, seeds=[0], temperature=1.0, max_new_tokens=2)
    assert rollout.response
    return f"samples on {chosen}"


def try_vllm(device: str, uri: str) -> str:
    from harness.rollout.vllm import import_vllm

    return f"vLLM {import_vllm(device).__version__} on {device}"


def try_mlflow(device: str, uri: str) -> str:
    path = store.database(uri)
    if path is not None and not path.exists():
        importlib.import_module("mlflow")
        return f"{path} will be made by the first run"
    with store.store(uri, write=False) as client:
        return f"{path or 'the server'} holds experiments: {len(client.search_experiments())}"


@dataclass(frozen=True)
class Trial:
    run: Callable[[str, str], str]
    without: str  # its state where it fails
    remedy: str
    glance: Callable[[str], str] | None = None  # what a look at the installed packages says, where trying takes long


def see_embedded(device: str) -> str:
    try:
        return f"transformers {metadata.version('transformers')} is installed"
    except metadata.PackageNotFoundError as error:
        raise UserError("transformers is not installed") from error


def see_vllm(device: str) -> str:
    choice.check_vllm(device)
    return f"{' '.join(choice.installed_vllm() or ())} is installed"


TRIALS = {
    "torch": Trial(try_torch, MISSING, "on a machine with a GPU, install a CUDA build of torch"),
    "mlflow": Trial(try_mlflow, MISSING, "runs go on without; `entrobench sync` feeds it later"),
    "engine vllm": Trial(try_vllm, MISSING, "the embedded engine does without; it pays for large models", see_vllm),
    "engine embedded": Trial(
        try_embedded, BROKEN, "install entrobench again, in an environment of its own", see_embedded
    ),
}


def attempt(what: str, device: str, uri: str) -> None:
    """In the process of a trial."""
    try:
        print(TRIALS[what].run(device, uri))
    except (UserError, ImportError) as error:
        sys.exit(" ".join(str(error).split()))


def tried(what: str, device: str, uri: str, limit_s: float = LIMIT_S) -> Finding:
    # The address goes by way of stdin: every user of the machine can read the arguments of a process.
    code = f"from harness.plan import doctor; doctor.attempt({what!r}, {device!r}, sys.stdin.read())"
    failing, remedy = TRIALS[what].without, TRIALS[what].remedy
    try:
        command = python_command(code)
        process = subprocess.run(command, input=uri, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return Finding(what, failing, f"no answer within {limit_s:.0f} s", remedy)
    if process.returncode == 0:
        return Finding(what, OK, process.stdout.strip().splitlines()[-1])
    if process.returncode < 0:
        return Finding(what, failing, f"its process died of signal {-process.returncode}", remedy)
    said = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
    return failed(what, without_address(said[-1], uri))


def failed(what: str, sentence: str) -> Finding:
    """Returns the finding of a trial that failed; our own sentences end with what to do."""
    found, _, own = sentence.partition("; ")
    return Finding(what, TRIALS[what].without, found, own or TRIALS[what].remedy)


def seen(what: str, device: str) -> Finding:
    """Returns what can be told of an engine without the seconds that it takes to try it."""
    glance = TRIALS[what].glance
    assert glance is not None
    try:
        return Finding(what, UNTRIED, glance(device), "entrobench doctor --thorough tries it")
    except UserError as error:
        return failed(what, str(error))


# What can be seen without trying


def of_python(version: str) -> Finding:
    if version.rpartition(".")[0] in PYTHONS:
        return Finding("python", OK, version)
    return Finding("python", BROKEN, version, f"use Python {' or '.join(PYTHONS)}")


def of_machine(machine: Machine) -> list[Finding]:
    def device(each: Device) -> str:
        return each.name if each.memory is None else f"{each.name}, {each.memory / GIB:.0f} GiB"

    gpus = [device(each) for each in machine.devices]
    found = [
        Finding("processor", OK, f"cores: {machine.cores}, memory: {machine.ram / GIB:.0f} GiB"),
        Finding("disk", OK, f"{machine.free / GIB:.0f} GiB free for results"),
    ]
    if gpus:
        return [*found, Finding("gpu", OK, "; ".join(gpus))]
    return [*found, Finding("gpu", MISSING, "none", "the embedded tier needs none; larger models do, see docs/gpu.md")]


def of_sets(prepared: Mapping[str, bool]) -> Finding:
    here = [name for name, is_here in prepared.items() if is_here]
    lacking = [name for name in prepared if name not in here]
    if not lacking:
        return Finding("data sets", OK, ", ".join(here))
    text = f"{len(here)} of {len(prepared)} are prepared, not {', '.join(lacking)}"
    return Finding("data sets", MISSING, text, "entrobench data prepare; countdown needs none")


def of_folder(what: str, folder: Path, remedy: str) -> Finding:
    """Whether files can be made in it, or where it would be."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            return Finding(what, OK, f"{folder} can be written")
    except OSError as error:
        return Finding(what, BROKEN, f"{folder} cannot be written ({error.strerror})", remedy)


def findings(config: Config, *, thorough: bool) -> Iterator[Finding]:
    """Yields what is found, always in the same order: first what is seen at once, then what is tried."""
    machine = this_machine(config)
    device = "cuda" if machine.devices else "cpu"
    with ThreadPoolExecutor(len(TRIALS)) as threads:

        def look(what: str) -> Finding:
            if thorough or TRIALS[what].glance is None:
                return tried(what, device, config.tracking_uri)
            return seen(what, device)

        trials = threads.map(look, TRIALS)  # which begin now, while the rest is looked at
        yield of_python(platform.python_version())
        yield from of_machine(machine)
        yield of_sets({name: cache.find_card(name) is not None for name in sets.SETS})
        yield of_folder("cache", files.default_cache(), "set ENTROBENCH_CACHE to a folder that can")
        yield of_folder("results", Path(config.results), "choose another results=")
        yield from trials


def tell(console: Console, found: Iterator[Finding]) -> list[Finding]:
    """Prints each finding on a terminal as soon as it is there, elsewhere a table of all; returns them."""
    if not console.is_terminal:
        every = list(found)
        columns = [Column(name) for name in ("what", "state", "found", "remedy")]
        layout.show(console, columns, [[each.what, each.state, each.found, each.remedy] for each in every])
        return every
    every = []
    with console.status("looking; what has to be imported takes a few seconds"):
        for each in found:
            every.append(each)
            console.print(lines(each), soft_wrap=False)
    return every


def lines(finding: Finding) -> Table:
    """Returns a finding as one line, and its remedy below it."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(width=max(map(len, TRIALS)), no_wrap=True)
    table.add_column(width=max(map(len, STYLES)), no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(finding.what, Text(finding.state, style=STYLES[finding.state]), layout.visible(finding.found))
    if finding.remedy:
        table.add_row("", "", Text(layout.visible(finding.remedy), style="dim"))
    return table
