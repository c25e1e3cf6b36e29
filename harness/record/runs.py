"""Runs of MLflow, read out of the tables of an SQLite file or through MLflow's client."""

from __future__ import annotations

import math
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from harness.record.artifacts import place
from harness.record.store import answered, is_server, store

if TYPE_CHECKING:
    from mlflow import MlflowClient

FINAL = "final/"
PAGE = 200  # runs that are asked of a server at a time: it gives up to 1000, but takes long for so many
TOGETHER = 8  # files that are asked of a server at a time


@dataclass(frozen=True)
class Run:
    id: str
    name: str
    tags: dict[str, str]
    params: dict[str, str]
    artifacts: str  # URI of their folder
    finals: dict[str, float]  # metrics of the whole run, whose names begin with FINAL


@dataclass(frozen=True, order=True)
class Point:
    step: int
    time: float  # seconds since 1970
    value: float


Curves = dict[str, list[Point]]  # by metric, in the order of steps


def damaged_rows(why: str) -> sqlite3.DatabaseError:
    """Return the error of tables that contradict each other, as SQLite gives it for a page that is damaged."""
    error = sqlite3.DatabaseError(why)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


class Reader(Protocol):
    def experiments(self) -> dict[str, str]:
        """Returns the ids of the experiments that were not deleted, by name."""

    def runs(self, experiment: str) -> list[Run]:
        """Returns the runs of an experiment that were not deleted, the oldest first."""

    def texts(self, runs: Sequence[Run], path: str) -> list[bytes | None]:
        """Returns an artifact of each run, None where a run has none."""

    def listed(self, run: Run, folder: str) -> list[str]:
        """Returns the paths of the artifacts in a folder of a run, in order."""

    def curves(self, runs: Sequence[Run], wanted: Callable[[str], object]) -> list[Curves]:
        """Returns the metrics of each run whose names are wanted."""


class Direct:
    """Reads the tables and the files that MLflow's own client would read."""

    def __init__(self, connection: sqlite3.Connection, uri: str) -> None:
        self.connection, self.uri = connection, uri

    def experiments(self) -> dict[str, str]:
        found = self.connection.execute("SELECT name, experiment_id FROM experiments WHERE lifecycle_stage = 'active'")
        return {name: str(number) for name, number in found}

    def runs(self, experiment: str) -> list[Run]:
        active = "FROM runs WHERE experiment_id = ? AND lifecycle_stage = 'active'"
        given = (int(experiment),)
        runs = {
            run: Run(run, name or "", {}, {}, artifacts, {})
            for run, name, artifacts in self.connection.execute(
                f"SELECT run_uuid, name, artifact_uri {active} ORDER BY start_time IS NULL, start_time, run_uuid", given
            )
        }
        for table, field in (("tags", "tags"), ("params", "params"), ("latest_metrics", "finals")):
            pairs = f"SELECT run_uuid, key, value FROM {table} WHERE run_uuid IN (SELECT run_uuid {active})"
            if field == "finals":
                pairs += f" AND key LIKE '{FINAL}%'"
            for run, key, value in self.connection.execute(pairs, given):
                if run not in runs:  # though it was chosen by being there: an index and its table disagree
                    raise damaged_rows(f"{table} has a run that is not in runs")
                getattr(runs[run], field)[key] = value
        return list(runs.values())

    def texts(self, runs: Sequence[Run], path: str) -> list[bytes | None]:
        places = [place(run.artifacts, self.uri) for run in runs]
        if None in places:  # a store of files elsewhere, beside a database that is here
            with store(self.uri, write=False) as client:
                return Client(client).texts(runs, path)
        files = [each / path for each in places if each is not None]
        return [file.read_bytes() if file.is_file() else None for file in files]

    def listed(self, run: Run, folder: str) -> list[str]:
        here = place(run.artifacts, self.uri)
        if here is None:
            with store(self.uri, write=False) as client:
                return Client(client).listed(run, folder)
        # Without what a killed process has half written.
        return sorted(str(PurePosixPath(folder, path.name)) for path in (here / folder).glob("[!.]*") if path.is_file())

    def curves(self, runs: Sequence[Run], wanted: Callable[[str], object]) -> list[Curves]:
        return [self.curves_of(run, wanted) for run in runs]

    def curves_of(self, run: Run, wanted: Callable[[str], object]) -> Curves:
        found: Curves = {}
        query = "SELECT key, step, timestamp, value, is_nan FROM metrics WHERE run_uuid = ?"
        for key, step, time, value, is_nan in self.connection.execute(query, (run.id,)):
            if wanted(key):
                found.setdefault(key, []).append(Point(step, time / 1000, math.nan if is_nan else value))
        return {key: sorted(points) for key, points in sorted(found.items())}


def next_token(page: Any, token: str | None) -> str | None:
    """Return the token of the page behind one of MLflow's, which must be another one."""
    if page.token and page.token == token:
        raise OSError("a page of the server names itself as the next one")
    following: str | None = page.token
    return following


class InThisThread(Executor):
    """An executor without threads. Python waits at its exit for the threads of any other, whatever they wait for."""

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*given, **named))
        except Exception as error:  # which whoever asks for the result is to see
            future.set_exception(error)
        return future


class Client:
    def __init__(self, client: MlflowClient) -> None:
        self.client = client

    def experiments(self) -> dict[str, str]:
        found: dict[str, str] = {}
        token = None
        while True:
            page = self.client.search_experiments(max_results=PAGE, page_token=token)
            found |= {each.name: each.experiment_id for each in page}
            token = next_token(page, token)
            if not token:
                return found

    def runs(self, experiment: str) -> list[Run]:
        found: list[Run] = []
        token = None
        while True:
            page = self.client.search_runs(
                [experiment], max_results=PAGE, order_by=["attributes.start_time ASC"], page_token=token
            )
            for each in page:
                finals = {key: value for key, value in each.data.metrics.items() if key.startswith(FINAL)}
                info, data = each.info, each.data
                found.append(Run(info.run_id, info.run_name or "", data.tags, data.params, info.artifact_uri, finals))
            token = next_token(page, token)
            if not token:
                return found

    def texts(self, runs: Sequence[Run], path: str) -> list[bytes | None]:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(TOGETHER) as threads:
            return list(threads.map(lambda run: self.text(run, path, Path(folder)), runs))

    def text(self, run: Run, path: str, folder: Path) -> bytes | None:
        from mlflow.exceptions import MlflowException
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        own, uri = folder / run.id, self.client.tracking_uri
        own.mkdir()
        try:
            # By the place, which is known: by the id MLflow would ask for the whole run first, and for its models.
            repository = get_artifact_repository(run.artifacts, uri)
            repository.thread_pool = InThisThread()
            download = partial(repository.download_artifacts, path, str(own))
            found = answered(uri, download) if is_server(uri) else download()
            return Path(found).read_bytes()
        except (MlflowException, OSError):
            if path in self.listed(run, str(PurePosixPath(path).parent)):
                raise
            return None

    def listed(self, run: Run, folder: str) -> list[str]:
        here = None if folder in ("", ".") else folder
        return sorted(each.path for each in self.client.list_artifacts(run.id, here) if not each.is_dir)

    def curves(self, runs: Sequence[Run], wanted: Callable[[str], object]) -> list[Curves]:
        with ThreadPoolExecutor(TOGETHER) as threads:
            return list(threads.map(lambda run: self.curves_of(run, wanted), runs))

    def curves_of(self, run: Run, wanted: Callable[[str], object]) -> Curves:
        return {
            key: sorted(Point(p.step, p.timestamp / 1000, p.value) for p in self.client.get_metric_history(run.id, key))
            for key in sorted(filter(wanted, self.client.get_run(run.id).data.metrics))
        }
