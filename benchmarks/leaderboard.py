"""The leaderboard's own time with 21 and with more than 1,000 cells, from an SQLite file and from a server of MLflow.

The runs are invented and written into the tables of the database, since MLflow takes minutes for so many.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from benchmarks.common import show
from harness import config
from harness.base import files, identities
from harness.cells.outcome import FILE, TAG
from harness.cells.provenance import Made
from harness.config import Config
from harness.matrix import Cell, cells
from harness.table.publish import publish
from harness.tracking.artifacts import FOLDER
from harness.tracking.store import store
from harness.tracking.sync import experiment_of, params_of

PROBLEMS, SAMPLES, METRICS, STEPS = 48, 32, 60, 120  # as many as the demo has
MOST_DISTINCT = 4  # right answers to a problem that differ, at most


def main(*seeds: str) -> None:
    rows = [row for number in seeds or ("3", "144") for row in measured(int(number))]
    show("The leaderboard", ["", "cells", "wall", "CPU of the command"], rows)


def measured(seeds: int) -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        settings = [f"results={folder}", f"seeds=[{','.join(map(str, range(seeds)))}]"]
        ours = config.load_config("demo", settings)
        matrix = cells(ours)
        artifacts = folder / FOLDER
        invent(ours, matrix, uri, artifacts)
        number = str(len(matrix))
        alone, configured = ["--experiment", "demo", "--uri"], ["demo", *settings, "--uri"]
        yield ["SQLite, no summary yet", number, *timed(*alone, uri)]
        with server(uri, artifacts) as address:
            yield ["server, no summary yet", number, *timed(*alone, address)]
        start = time.perf_counter()
        publish(ours, matrix)
        yield ["the summary is written", number, f"{time.perf_counter() - start:.1f} s", ""]
        yield ["SQLite", number, *timed(*alone, uri)]
        yield ["SQLite, with a configuration", number, *timed(*configured, uri)]
        with server(uri, artifacts) as address:
            yield ["server", number, *timed(*alone, address)]


def timed(*arguments: str) -> list[str]:
    """Returns the wall time of `entrobench leaderboard` in a process of its own, and its CPU time."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "harness.cli", "leaderboard", *arguments, "--format", "json"]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert all(row["seeds_done"] == row["seeds_expected"] for row in json.loads(told))
    return [f"{wall:.1f} s", f"{after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime:.1f} s"]


def invent(ours: Config, matrix: Sequence[Cell], uri: str, artifacts: Path) -> None:
    """Writes a run of each cell, whose record no table needs."""
    with store(uri, write=True) as client:
        experiment = experiment_of(client, ours.name, uri)
        first = client.create_run(experiment).info.run_id
    path = uri.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection, connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(runs)")]
        template = dict(zip(columns, connection.execute("SELECT * FROM runs").fetchone(), strict=True))
        for table in ("tags", "runs"):
            connection.execute(f"DELETE FROM {table} WHERE run_uuid = ?", (first,))
        for number, cell in enumerate(matrix):
            add(connection, template, cell, number, artifacts / ours.name)


def add(
    connection: sqlite3.Connection,
    template: dict[str, object],
    cell: Cell,
    number: int,
    artifacts: Path,
) -> None:
    run, spec = f"{number:032x}", cell.spec
    files_of = artifacts / run / "artifacts"
    drawn = np.random.default_rng([cell.seed, *cell.method.encode()]).random((PROBLEMS, SAMPLES)) < 0.3
    right = ["".join(map(str, row)) for row in drawn.astype(int).tolist()]
    told = {"k": 16, "problems": [f"numbers {n} and more" for n in range(PROBLEMS)], "right": right, "before": right}
    distinct = [min(row.count("1"), MOST_DISTINCT) for row in right]
    told |= {"right_distinct": distinct, "right_distinct_before": distinct, "solutions": [MOST_DISTINCT] * PROBLEMS}
    told |= {"distinct_answers": 0.4, "after_answer": 0.0}
    outcome = {
        **{"entropy": [2.0, 1.0], "dropped": 0.02, "tokens": 1e6, "hours": 0.01},
        "tasks": {"countdown": {**told, "flags": [], "length": 7.0, "distinct": 0.5}},
    }
    made = Made(run, 1e9 + number, "0.1.0", "c" * 40, False, cell.sources, {"torch": "2.9"}, "a processor", "cpu")
    tags = {"cell": spec.id, "matrix": spec.matrix, **spec.key.tags()}
    tags |= {**made.tags(), "status": "done", "device": "cpu", TAG: identities.hash_of(outcome)}
    own = {
        "run_uuid": run,
        "name": f"{cell.method} s{cell.seed}",
        "status": "FINISHED",
        "start_time": int(made.started * 1000),
        "artifact_uri": files_of.as_uri(),
    }
    row = {**template, **own}
    connection.execute(f"INSERT INTO runs ({','.join(row)}) VALUES ({','.join('?' * len(row))})", list(row.values()))
    for table, pairs in (("tags", tags), ("params", params_of(spec))):
        connection.executemany(
            f"INSERT INTO {table} (run_uuid, key, value) VALUES (?, ?, ?)", [(run, *pair) for pair in pairs.items()]
        )
    connection.executemany(
        "INSERT INTO latest_metrics (run_uuid, key, value, timestamp, step, is_nan) VALUES (?, ?, 0.5, 0, 0, 0)",
        [(run, f"metric/{n}") for n in range(METRICS)],
    )
    connection.executemany(
        "INSERT INTO metrics (run_uuid, key, value, timestamp, step, is_nan) VALUES (?, 'entropy/mean', ?, 0, ?, 0)",
        [(run, 1 / (step + 1), step) for step in range(STEPS)],
    )
    files.write_json(files_of / FILE, outcome)


@contextmanager
def server(uri: str, artifacts: Path) -> Iterator[str]:
    """A server of MLflow on this machine, which hands out the files, too."""
    place(uri, artifacts.as_uri(), "mlflow-artifacts:")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--workers", "1", "--artifacts-destination", str(artifacts)]
    environment = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                assert process.poll() is None, "the server ended"
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        place(uri, "mlflow-artifacts:", artifacts.as_uri())


def place(uri: str, old: str, new: str) -> None:
    """Says where the files of runs are: in a folder of this machine, or in the hands of the server."""
    with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("UPDATE runs SET artifact_uri = replace(artifact_uri, ?, ?)", (old, new))


if __name__ == "__main__":
    main(*sys.argv[1:])
