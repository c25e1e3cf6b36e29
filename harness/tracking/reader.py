"""Runs of MLflow, read from the tables of an SQLite file directly, or through MLflow's client.

Loading MLflow takes seconds, and its client takes as long again for a thousand runs. To avoid that, a few queries of
our own are worth it for the default store; a client of our own for servers would not be.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from harness.tracking.artifacts import LocalFiles, artifact_folder, artifact_repository, download
from harness.tracking.store import database, open_database, store

if TYPE_CHECKING:
    from mlflow import MlflowClient

FINAL = "final/"
PAGE = 200  # runs per request to a server: it allows 1000, but takes long for that many
TOGETHER = 8  # concurrent requests to a server for files and curves


@dataclass(frozen=True)
class Run:
    id: str
    name: str
    tags: dict[str, str]
    params: dict[str, str]
    artifacts: str  # URI of their folder
    finals: dict[str, float]  # results of the whole run: the metrics whose names begin with FINAL


@dataclass(frozen=True, order=True)
class Point:
    step: int
    time: float  # seconds since 1970
    value: float


Curves = dict[str, list[Point]]  # by metric, in the order of steps


class StoreReader(Protocol):
    def experiments(self) -> dict[str, str]:
        """Return the ids of the active experiments, by name; deleted ones are not active."""

    def runs(self, experiment: str) -> list[Run]:
        """Return the active runs of an experiment, the oldest first."""

    def texts(self, runs: Sequence[Run], path: str) -> list[bytes | None]:
        """Return the artifact at this path of each run; None for a run without it."""

    def listed(self, run: Run, folder: str) -> list[str]:
        """Return the paths of the artifacts in a folder of a run, sorted."""

    def curves(self, runs: Sequence[Run], wanted: Callable[[str], object]) -> list[Curves]:
        """Return the metrics of each run whose names are wanted."""


class DatabaseReader:
    """A reader of the tables and files of an SQLite store, without MLflow's client."""

    def __init__(self, connection: sqlite3.Connection, uri: str) -> None:
        self.connection, self.uri = connection, uri

    def experiments(self) -> dict[str, str]:
        rows = self.connection.execute("SELECT name, experiment_id FROM experiments WHERE lifecycle_stage = 'active'")
        return {name: str(number) for name, number in rows}

    def runs(self, experiment: str) -> list[Run]:
        return self.active_runs("experiment_id = ?", int(experiment))

    def run(self, run_id: str) -> Run | None:
        """Return the active run with an id; None if there is none."""
        runs = self.active_runs("run_uuid = ?", run_id)
        return runs[0] if runs else None

    def active_runs(self, condition: str, value: int | str) -> list[Run]:
        """Return the active runs that meet a condition in SQL, the oldest first."""
        active = f"FROM runs WHERE {condition} AND lifecycle_stage = 'active'"
        values = (value,)
        # SQLite sorts NULL first. A run without a start comes last here, as in MLflow's own searches.
        order = "ORDER BY start_time IS NULL, start_time, run_uuid"
        runs: dict[str, Run] = {}
        query = f"SELECT run_uuid, name, artifact_uri {active} {order}"
        for run, name, artifacts in self.connection.execute(query, values):
            runs[run] = Run(run, name or "", {}, {}, artifacts, {})
        for table, field in (("tags", "tags"), ("params", "params"), ("latest_metrics", "finals")):
            pairs = f"SELECT run_uuid, key, value FROM {table} WHERE run_uuid IN (SELECT run_uuid {active})"
            if field == "finals":
                pairs += f" AND key LIKE '{FINAL}%'"
            for run, key, value in self.connection.execute(pairs, values):
                if run not in runs:  # the query selects from `runs`, so an index and its table disagree
                    error = sqlite3.DatabaseError(f"{table} has a run that is not in runs")
                    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT  # as for a damaged page
                    raise error
                getattr(runs[run], field)[key] = value
        return list(runs.values())

    def texts(self, runs: Sequence[Run], path: str) -> list[bytes | None]:
        folders = [artifact_folder(run.artifacts, self.uri) for run in runs]
        if None in folders:  # the database is local, but the files are on a server or in object storage
            with store(self.uri, write=False) as client:
                return ClientReader(client).texts(runs, path)
        files = [folder / path for folder in filter(None, folders)]
        return [file.read_bytes() if file.is_file() else None for file in files]

    def listed(self, run: Run, folder: str) -> list[str]:
        artifacts = artifact_folder(run.artifacts, self.uri)
        if artifacts is None:
            with store(self.uri, write=False) as client:
                return ClientReader(client).listed(run, folder)
        return sorted(LocalFiles(artifacts).sizes(folder))

    def curves(self, runs: Sequence[Run], wanted: Callable[[str], object]) -> list[Curves]:
        return [self.curves_of_run(run, wanted) for run in runs]

    def curves_of_run(self, run: Run, wanted: Callable[[str], object]) -> Curves:
        curves: Curves = {}
        query = "SELECT key, step, timestamp, value, is_nan FROM metrics WHERE run_uuid = ?"
        for key, step, time, value, is_nan in self.connection.execute(query, (run.id,)):
            if wanted(key):
                number = math.nan if is_nan else value  # MLflow stores 0 for NaN, with a flag
                curves.setdefault(key, []).append(Point(step, time / 1000, number))
        return {key: sorted(points) for key, points in sorted(curves.items())}


class ClientReader:
    """A reader of any store through MLflow's client."""

    def __init__(self, client: MlflowClient) -> None:
        self.client = client

    def experiments(self) -> dict[str, str]:
        pages = self.all_pages(lambda token: self.client.search_experiments(max_results=PAGE, page_token=token))
        return {experiment.name: experiment.experiment_id for experiment in pages}

    def runs(self, experiment: str) -> list[Run]:
        order = ["attributes.start_time ASC"]
        runs = []
        for run in self.all_pages(
            lambda token: self.client.search_runs([experiment], max_results=PAGE, order_by=order, page_token=token)
        ):
            info, data = run.info, run.data
            finals = {key: value for key, value in data.metrics.items() if key.startswith(FINAL)}
            runs.append(Run(info.run_id, info.run_name or "", data.tags, data.params, info.artifact_uri, finals))
        return runs

    def all_pages(self, search: Callable[[str | None], Any]) -> Iterator[Any]:
        token: str | None = None
        while True:
            page = search(token)
            yield from page
            if not page.token:
                return
            token = page.token

    def texts(self, runs: Sequence[Run], path: str) -> list[bytes | None]:
        with ThreadPoolExecutor(TOGETHER) as threads:
            return list(threads.map(lambda run: self.text(run, path), runs))

    def text(self, run: Run, path: str) -> bytes | None:
        from mlflow.exceptions import MlflowException

        try:
            return download(artifact_repository(run.artifacts, self.client.tracking_uri), path)
        except (MlflowException, OSError):
            # Stores report a missing file by different errors, so the list of files decides.
            if path in self.listed(run, str(PurePosixPath(path).parent)):
                raise
            return None

    def listed(self, run: Run, folder: str) -> list[str]:
        entries = self.client.list_artifacts(run.id, None if folder in ("", ".") else folder)
        return sorted(entry.path for entry in entries if not entry.is_dir)

    def curves(self, runs: Sequence[Run], wanted: Callable[[str], object]) -> list[Curves]:
        with ThreadPoolExecutor(TOGETHER) as threads:
            return list(threads.map(lambda run: self.curves_of_run(run, wanted), runs))

    def curves_of_run(self, run: Run, wanted: Callable[[str], object]) -> Curves:
        curves = {}
        for key in sorted(filter(wanted, self.client.get_run(run.id).data.metrics)):
            history = self.client.get_metric_history(run.id, key)
            curves[key] = sorted(Point(point.step, point.timestamp / 1000, point.value) for point in history)
        return curves


@contextmanager
def reader(uri: str) -> Iterator[StoreReader]:
    """Open an MLflow store for reading."""
    if database(uri) is None:
        with store(uri, write=False) as client:
            yield ClientReader(client)
    else:
        with open_database(uri) as connection:
            yield DatabaseReader(connection, uri)
