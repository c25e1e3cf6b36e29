"""The files of an MLflow run, wherever the store lies now."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

from harness.base import files
from harness.record.store import database, unusable

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

FOLDER = "mlartifacts"  # beside the database of an SQLite store


class Artifacts:
    """The files of one run: in a folder on this machine, or in the hands of a server.

    MLflow keeps the absolute place of a run's files, which is wrong once the results are moved, and that of the
    original once they are copied. The files of our own store lie beside its database, so that is where they are looked
    for: `place`. `recorded` is where MLflow looks for them.
    """

    def __init__(self, client: MlflowClient, run: Run, uri: str) -> None:
        self.client, self.run, self.uri = client, run, uri
        self.recorded = local(run.info.artifact_uri) if database(uri) else None
        self.place = None if self.recorded is None else present(self.recorded, uri)

    def sizes(self, folder: str) -> dict[str, int]:
        """Returns the size of each file of a folder, by its path."""
        if self.place is None:
            listed = self.client.list_artifacts(self.run.info.run_id, folder)
            return {each.path: each.file_size for each in listed if not each.is_dir}
        found = (self.place / folder).glob("[!.]*")  # without what a killed process has half written
        return {f"{folder}/{path.name}": path.stat().st_size for path in found}

    def fetch(self, path: str, temporary: str) -> Path:
        """Returns a file of the run; one that a server has is put into the temporary folder."""
        if self.place is None:
            return Path(self.client.download_artifacts(self.run.info.run_id, path, temporary))
        return self.place / path

    def send(self, source: Path, folder: str = "") -> None:
        """Sends a file."""
        if self.place is None:
            self.client.log_artifact(self.run.info.run_id, str(source), folder or None)
        else:
            with files.atomic(self.place / folder / source.name) as file, open(source, "rb") as given:
                shutil.copyfileobj(given, file)

    def repair(self) -> None:
        """Tells the database where the files are, after a move or a copy, for MLflow's own tools."""
        if self.recorded == self.place:
            return
        assert self.recorded is not None
        assert self.place is not None
        old, new = (place.parents[1].as_uri() for place in (self.recorded, self.place))
        path, experiment = database(self.uri), self.run.info.experiment_id
        assert path is not None
        moved = "? || substr({0}, length(?) + 1) WHERE experiment_id = ? AND substr({0} || '/', 1, length(?) + 1) = ?"
        try:
            with closing(sqlite3.connect(path)) as connection, connection:
                for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
                    change = f"UPDATE {table} SET {column} = {moved.format(column)}"
                    connection.execute(change, (new, old, int(experiment), old, f"{old}/"))
        except sqlite3.Error as error:
            raise unusable(self.uri, error) from error


def local(uri: str) -> Path | None:
    """Returns the folder that a URI names; None where it is not one of this machine."""
    parsed = urlparse(uri)
    return Path(unquote(parsed.path)) if parsed.scheme in ("", "file") else None


def beside(uri: str, matrix: str) -> Path | None:
    """Returns where the files of an experiment of an SQLite store belong."""
    path = database(uri)
    return None if path is None else path.resolve().parent / FOLDER / matrix


def present(recorded: Path, uri: str) -> Path:
    """Returns where the files of a run are, of which MLflow says that they are in `recorded`.

    Where somebody chose the place, it is that. Our own is beside the database; only where there is nothing, and where
    there is something in the recorded one, the database alone was moved.
    """
    folder, matrix, run, last = (*[""] * 4, *recorded.parts)[-4:]
    here = beside(uri, matrix)
    if folder != FOLDER or last != "artifacts" or here is None:
        return recorded
    moved = here.is_dir() or not recorded.parents[1].is_dir()
    return here / run / last if moved else recorded
