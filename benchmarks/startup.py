"""The time of commands that have nothing to compute: `run` of finished cells, `doctor`, and `sync` to a server.

    python -m benchmarks.startup                                      # runs `smoke` first, in a temporary folder
    python -m benchmarks.startup demo results=FOLDER                  # a finished matrix; it is copied first
    python -m benchmarks.startup demo results=FOLDER --against TREE   # also with another checkout's code

Each command runs three times in processes of its own, with `--against` by turns. CPU seconds are those of the command
and its children; a server is not a child of `sync`, and each `sync` feeds a new one.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent.parent
REPEATS = 3


@dataclass(frozen=True)
class Timing:
    """The cost of one command."""

    wall: float
    cpu: float
    load: float  # of the machine when it started: processes that run or wait to


def timed(tree: Path, *arguments: str, environment: dict[str, str] | None = None) -> Timing:
    """Run a command with the code of a checkout, and return its cost."""
    load = os.getloadavg()[0]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "entrobench", *arguments],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)} | (environment or {}),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Timing(wall, cpu, load)


@contextmanager
def mlflow_server(folder: Path, store: str, artifacts: Path, *options: str) -> Iterator[str]:
    """Run an MLflow server of a store that also serves the artifacts; yield its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), *options]
    command += ["--backend-store-uri", store, "--artifacts-destination", str(artifacts)]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # its workers end with its process group
    )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for_server(process, address)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for_server(process: subprocess.Popen[bytes], address: str) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
        except OSError:
            assert process.poll() is None, "the server ended"
            time.sleep(0.2)
        else:
            time.sleep(5)  # the workers begin one after another, and the last are still importing MLflow
            return
    raise AssertionError("the server does not answer")


def time_sync(tree: Path, config: str, overrides: Sequence[str], results: Path) -> Timing:
    """Feed a new server with a copy of the results, since the folder of a cell keeps the id of its run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(results, folder / "results")
        for kept in (folder / "results").rglob("mlflow.json"):
            kept.unlink()
        with mlflow_server(folder, f"sqlite:///{folder / 'server.db'}", folder / "served") as address:
            environment = {"MLFLOW_TRACKING_URI": address}
            return timed(tree, "sync", config, *overrides, f"results={folder / 'results'}", environment=environment)


def finish_matrix(config: str, overrides: Sequence[str], source: Path | None, results: Path) -> None:
    """Put a finished matrix into a results folder: a copy, or a new one."""
    if source is not None:
        shutil.copytree(source, results, dirs_exist_ok=True)
    timed(HERE, "run", config, *overrides, f"results={results}")


def row_of(name: str, timings: Sequence[Timing]) -> str:
    walls = ", ".join(f"{timing.wall:.1f}" for timing in timings)
    cpus = ", ".join(f"{timing.cpu:.1f}" for timing in timings)
    loads = [timing.load for timing in timings]
    middle = f"{median(timing.wall for timing in timings):.1f}"
    return f"| {name} | {middle} | {walls} | {cpus} | {min(loads):.1f}-{max(loads):.1f} |"


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup")
    parser.add_argument("config", nargs="?", default="smoke")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--against", type=Path, help="another checkout, which is measured by turns with this one")
    chosen = parser.parse_args(arguments)
    overrides, source = [], None
    for override in chosen.overrides:
        key, _, value = override.partition("=")
        if key == "results":
            source = Path(value).absolute()
        else:
            overrides.append(override)
    trees = {"": HERE}
    if chosen.against is not None:
        trees = {", before": chosen.against.absolute(), ", now": HERE}
    timings: dict[str, list[Timing]] = {}
    with tempfile.TemporaryDirectory() as name:
        results = Path(name)
        finish_matrix(chosen.config, overrides, source, results)
        for _ in range(REPEATS):
            for label, tree in trees.items():
                run = timed(tree, "run", chosen.config, *overrides, f"results={results}")
                timings.setdefault(f"`run {chosen.config}`, nothing to do{label}", []).append(run)
        for _ in range(REPEATS):
            for label, tree in trees.items():
                timings.setdefault(f"`doctor`{label}", []).append(timed(tree, "doctor", f"results={results}"))
        for _ in range(REPEATS):
            for label, tree in trees.items():
                sync = time_sync(tree, chosen.config, overrides, results)
                timings.setdefault(f"`sync {chosen.config}` to a new server{label}", []).append(sync)
    print("| command | median, s | by the clock, s | CPU, s | load |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for row_name, row in timings.items():
        print(row_of(row_name, row))


if __name__ == "__main__":
    main(sys.argv[1:])
