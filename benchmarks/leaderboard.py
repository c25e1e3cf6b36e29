"""The time of the leaderboard command with 21 and with more than 1,000 cells, from SQLite and from an MLflow server.

The runs are invented and written directly into the database, since MLflow takes minutes for 1,000 of them.
"""

from __future__ import annotations

import json
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from benchmarks.common import show
from benchmarks.startup import mlflow_server
from harness import config
from harness.base import files, identities
from harness.cells.evaluations import OUTCOME, OUTCOME_TAG
from harness.cells.provenance import Made
from harness.config import Config
from harness.matrix import Cell, cells
from harness.table.publish import publish
from harness.tracking.artifacts import FOLDER
from harness.tracking.store import store
from harness.tracking.sync import experiment_of, params_of

PROBLEMS, SAMPLES, METRICS, STEPS = 48, 32, 60, 120  # those of the demo
MOST_DISTINCT = 4  # distinct right answers to a problem, at most


def main(*seeds: str) -> None:
    rows: list[list[str]] = []
    for number in seeds or ("3", "144"):
        rows += measure(int(number))
    show("The leaderboard", ["", "cells", "wall", "CPU of the command"], rows)


def measure(seeds: int) -> Iterator[list[str]]:
    """Yield a row for each way to show a leaderboard of this many seeds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        settings = [f"results={folder}", f"seeds=[{','.join(map(str, range(seeds)))}]"]
        demo = config.load_config("demo", settings)
        matrix = cells(demo)
        artifacts = folder / FOLDER
        invent(demo, matrix, uri, artifacts)
        number = str(len(matrix))
        by_experiment = ["--experiment", "demo", "--uri"]
        start = time.perf_counter()
        publish(demo, matrix)
        yield ["the summary is written", number, f"{time.perf_counter() - start:.1f} s", ""]
        yield ["SQLite", number, *timed(*by_experiment, uri)]
        yield ["SQLite, with a configuration", number, *timed("demo", *settings, f"tracking.uri={uri}")]
        with server(uri, artifacts) as address:
            yield ["server", number, *timed(*by_experiment, address)]


def timed(*arguments: str) -> list[str]:
    """Return the wall time and the CPU time of `entrobench leaderboard` in a process of its own."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "entrobench", "leaderboard", *arguments, "--format", "json"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert all(row["seeds_done"] == row["seeds_expected"] for row in json.loads(output))
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return [f"{wall:.1f} s", f"{cpu:.1f} s"]


def invent(config: Config, matrix: Sequence[Cell], uri: str, artifacts: Path) -> None:
    """Write a finished run for each cell, without cell folders, which no table reads."""
    with store(uri, write=True) as client:
        experiment = experiment_of(client, config.name, uri)
        first = client.create_run(experiment).info.run_id
    path = uri.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection, connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(runs)")]
        template = dict(zip(columns, connection.execute("SELECT * FROM runs").fetchone(), strict=True))
        for table in ("tags", "runs"):
            connection.execute(f"DELETE FROM {table} WHERE run_uuid = ?", (first,))
        for number, cell in enumerate(matrix):
            insert_run(connection, template, cell, number, artifacts / config.name)


def insert_run(
    connection: sqlite3.Connection,
    template: dict[str, object],
    cell: Cell,
    number: int,
    artifacts: Path,
) -> None:
    """Insert the run of a cell, with invented results and its artifacts."""
    run, spec = f"{number:032x}", cell.spec
    run_artifacts = artifacts / run / "artifacts"
    outcome = invented_outcome(cell)
    made = Made(run, 1e9 + number, "0.1.0", "c" * 40, False, cell.sources, {"torch": "2.9"}, "a processor", "cpu")
    tags = {"cell": spec.id, "matrix": spec.matrix, **spec.key.tags()}
    tags |= {**made.tags(), "status": "done", "device": "cpu", OUTCOME_TAG: identities.hash_of(outcome)}
    row = {
        **template,
        "run_uuid": run,
        "name": f"{cell.method} s{cell.seed}",
        "status": "FINISHED",
        "start_time": int(made.started * 1000),
        "artifact_uri": run_artifacts.as_uri(),
    }
    connection.execute(f"INSERT INTO runs ({','.join(row)}) VALUES ({','.join('?' * len(row))})", list(row.values()))
    for table, pairs in (("tags", tags), ("params", params_of(spec))):
        connection.executemany(
            f"INSERT INTO {table} (run_uuid, key, value) VALUES (?, ?, ?)", [(run, *pair) for pair in pairs.items()]
        )
    connection.executemany(
        "INSERT INTO latest_metrics (run_uuid, key, value, timestamp, step, is_nan) VALUES (?, ?, 0.5, 0, 0, 0)",
        [(run, f"metric/{number}") for number in range(METRICS)],
    )
    connection.executemany(
        "INSERT INTO metrics (run_uuid, key, value, timestamp, step, is_nan) VALUES (?, 'entropy/mean', ?, 0, ?, 0)",
        [(run, 1 / (step + 1), step) for step in range(STEPS)],
    )
    files.write_json(run_artifacts / OUTCOME, outcome)


def invented_outcome(cell: Cell) -> dict[str, object]:
    """Return the outcome of a cell whose samples are right by chance."""
    right_JN = np.random.default_rng([cell.seed, *cell.method.encode()]).random((PROBLEMS, SAMPLES)) < 0.3
    right = ["".join(map(str, row)) for row in right_JN.astype(int).tolist()]
    distinct = [min(row.count("1"), MOST_DISTINCT) for row in right]
    evaluation = {
        "k": 16,
        "problems": [f"numbers {number} and more" for number in range(PROBLEMS)],
        "right": right,
        "before": right,
        "right_distinct": distinct,
        "right_distinct_before": distinct,
        "solutions": [MOST_DISTINCT] * PROBLEMS,
        "distinct_answers": 0.4,
        "after_answer": 0.0,
        "flags": [],
        "length": 7.0,
        "distinct": 0.5,
    }
    return {
        "entropy": [2.0, 1.0],
        "dropped": 0.02,
        "tokens": 1e6,
        "hours": 0.01,
        "tasks": {"countdown": evaluation},
    }


@contextmanager
def server(uri: str, artifacts: Path) -> Iterator[str]:
    """Run an MLflow server on this machine that also serves the artifacts; yield its address."""
    move_artifacts(uri, artifacts.as_uri(), "mlflow-artifacts:")
    try:
        with mlflow_server(artifacts.parent, uri, artifacts, "--workers", "1") as address:
            yield address
    finally:
        move_artifacts(uri, "mlflow-artifacts:", artifacts.as_uri())


def move_artifacts(uri: str, old: str, new: str) -> None:
    """Replace the address of all runs' artifacts: a folder of this machine, or the server."""
    with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("UPDATE runs SET artifact_uri = replace(artifact_uri, ?, ?)", (old, new))


if __name__ == "__main__":
    main(*sys.argv[1:])
