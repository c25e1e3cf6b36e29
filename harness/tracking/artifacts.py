"""The files of an MLflow run, wherever the store lies now."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

from harness.base import files
from harness.tracking.store import database, unusable

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

FOLDER = "mlartifacts"  # beside the database of an SQLite store


class Artifacts:
    """The files of one run: in a folder on this machine, or in the hands of a server.

    MLflow keeps the absolute place of a run's files, `recorded`, which is wrong once the results are moved, and that of
    the original once they are copied. Those of our own stores belong beside the database, in `home`, and that is where
    they are read, unless they are in the recorded place alone.
    """

    def __init__(self, client: MlflowClient, run: Run, uri: str) -> None:
        self.client, self.run, self.uri = client, run, uri
        self.recorded = local(run.info.artifact_uri) if database(uri) else None
        self.home = None if self.recorded is None else home(self.recorded, uri)
        self.place = place(run.info.artifact_uri, uri)

    def sizes(self, folder: str) -> dict[str, int]:
        """Returns the size of each file of a folder, by its path."""
        if self.place is None:
            listed = self.client.list_artifacts(self.run.info.run_id, folder)
            return {each.path: each.file_size for each in listed if not each.is_dir}
        found = (self.place / folder).glob("[!.]*")  # without what a killed process has half written
        return {str(PurePosixPath(folder, path.name)): path.stat().st_size for path in found if path.is_file()}

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

    def holds(self, name: str, text: str) -> bool:
        """Returns whether a file has this text."""
        if self.sizes("").get(name) != len(text.encode()):
            return False
        with tempfile.TemporaryDirectory() as folder:
            return self.fetch(name, folder).read_text(errors="replace") == text

    def write(self, name: str, text: str) -> None:
        """Sends a text as a file, which replaces an earlier one."""
        if self.place is None:
            self.client.log_text(self.run.info.run_id, text, name)
        else:
            files.write_text(self.place / name, text)

    def sweep(self) -> None:
        """Removes what a killed process has half written; nobody else may be sending now."""
        for folder in (self.place, *self.place.glob("*")) if self.place is not None else ():
            files.sweep(folder)

    def bring_home(self) -> None:
        """Has the files beside the database from now on, whatever was moved or copied, and says so to MLflow's own
        tools. What was sent before is not moved: who calls this sends what is missing."""
        if self.home is None or self.home == self.recorded:
            return
        assert self.recorded is not None
        self.place = self.home
        old, new = (place.parents[1].as_uri() for place in (self.recorded, self.home))
        path, info = database(self.uri), self.run.info
        assert path is not None
        try:
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute(
                    "UPDATE runs SET artifact_uri = ? WHERE run_uuid = ?", (self.home.as_uri(), info.run_id)
                )
                connection.execute(
                    "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ? AND artifact_location = ?",
                    (new, int(info.experiment_id), old),
                )
        except sqlite3.Error as error:
            raise unusable(self.uri, error) from error


def local(uri: str) -> Path | None:
    """Returns the folder that a URI names; None where it is not one of this machine."""
    parsed = urlparse(uri)
    return Path(unquote(parsed.path)) if parsed.scheme in ("", "file") else None


def place(artifacts: str, uri: str) -> Path | None:
    """Returns the folder with the files of a run, of which MLflow says that they are in `artifacts`; None where a
    server has them."""
    recorded = local(artifacts) if database(uri) else None
    ours = None if recorded is None else home(recorded, uri)
    if recorded is None or ours is None:
        return recorded
    return ours if ours.is_dir() or not recorded.is_dir() else recorded


def beside(uri: str, matrix: str) -> Path | None:
    """Returns where the files of an experiment of an SQLite store belong."""
    path = database(uri)
    return None if path is None else path.resolve().parent / FOLDER / matrix


def home(recorded: Path, uri: str) -> Path | None:
    """Returns where the files of a run belong, of which MLflow says that they are in `recorded`; None where somebody
    chose another place than ours."""
    folder, matrix, run, last = (*[""] * 4, *recorded.parts)[-4:]
    experiment = beside(uri, matrix)
    return experiment / run / last if experiment and (folder, last) == (FOLDER, "artifacts") else None
