"""Reads runs out of MLflow: an SQLite file on this machine directly, since loading MLflow takes seconds, and any other
store through MLflow's client."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlparse

from harness.record.store import database, probe, store, unusable

if TYPE_CHECKING:
    from mlflow import MlflowClient

FINAL = "final/"
PAGE = 1000  # runs that MLflow gives at a time, at most
TOGETHER = 8  # files that are asked of a server at a time


@dataclass(frozen=True)
class Run:
    id: str
    tags: dict[str, str]
    params: dict[str, str]
    artifacts: str  # URI of their folder
    finals: dict[str, float]  # metrics of the whole run, whose names begin with FINAL


class Reader(Protocol):
    def experiments(self) -> dict[str, str]:
        """Returns the ids of the experiments that were not deleted, by name."""

    def runs(self, experiment: str) -> list[Run]:
        """Returns the runs of an experiment that were not deleted, the oldest first."""

    def texts(self, runs: Sequence[Run], path: str) -> list[bytes | None]:
        """Returns an artifact of each run, None where a run has none."""


@contextmanager
def reader(uri: str) -> Iterator[Reader]:
    path = database(uri)
    if path is None:
        with store(uri, write=False) as client:
            yield Client(client)
        return
    probe(path, uri, write=False)
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            yield Direct(connection, uri)
    except (sqlite3.Error, OSError) as error:  # among them: a table or column that another MLflow names otherwise
        raise unusable(uri, error) from error


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
            run: Run(run, {}, {}, artifacts, {})
            for run, artifacts in self.connection.execute(
                f"SELECT run_uuid, artifact_uri {active} ORDER BY start_time IS NULL, start_time, run_uuid", given
            )
        }
        for table, field in (("tags", "tags"), ("params", "params"), ("latest_metrics", "finals")):
            pairs = f"SELECT run_uuid, key, value FROM {table} WHERE run_uuid IN (SELECT run_uuid {active})"
            if field == "finals":
                pairs += f" AND key LIKE '{FINAL}%'"
            for run, key, value in self.connection.execute(pairs, given):
                getattr(runs[run], field)[key] = value
        return list(runs.values())

    def texts(self, runs: Sequence[Run], path: str) -> list[bytes | None]:
        folders = [local(run.artifacts) for run in runs]
        if None in folders:  # a store of files elsewhere, beside a database that is here
            with store(self.uri, write=False) as client:
                return Client(client).texts(runs, path)
        files = [folder / path for folder in folders if folder is not None]
        return [file.read_bytes() if file.is_file() else None for file in files]


def local(artifacts: str) -> Path | None:
    """Returns the folder on this machine that a URI names, None where it names none."""
    parts = urlparse(artifacts)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(artifacts)


class Client:
    def __init__(self, client: MlflowClient) -> None:
        self.client = client

    def experiments(self) -> dict[str, str]:
        found: dict[str, str] = {}
        token = None
        while True:
            page = self.client.search_experiments(max_results=PAGE, page_token=token)
            found |= {each.name: each.experiment_id for each in page}
            token = page.token
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
                found.append(Run(each.info.run_id, each.data.tags, each.data.params, each.info.artifact_uri, finals))
            token = page.token
            if not token:
                return found

    def texts(self, runs: Sequence[Run], path: str) -> list[bytes | None]:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(TOGETHER) as threads:
            return list(threads.map(lambda run: self.text(run, path, Path(folder)), runs))

    def text(self, run: Run, path: str, folder: Path) -> bytes | None:
        from mlflow.exceptions import MlflowException

        place = folder / run.id
        place.mkdir()
        try:
            return Path(self.client.download_artifacts(run.id, path, str(place))).read_bytes()
        except (MlflowException, OSError):
            if path in {artifact.path for artifact in self.client.list_artifacts(run.id)}:
                raise
            return None
