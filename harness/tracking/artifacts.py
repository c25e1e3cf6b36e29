"""The files of an MLflow run, also after its store was moved or copied."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

from harness.base import files
from harness.tracking.store import database

if TYPE_CHECKING:
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

FOLDER = "mlartifacts"  # next to the database of an SQLite store
COMPLETE = "[!.]*"  # a glob pattern: a killed process leaves half a file under a hidden name


@dataclass(frozen=True)
class LocalFiles:
    """The files of one run in a folder on this machine."""

    place: Path

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the size of each file of a folder, by its path."""
        paths = [path for path in (self.place / folder).glob(COMPLETE) if path.is_file()]
        return {str(PurePosixPath(folder, path.name)): path.stat().st_size for path in paths}

    def holds(self, name: str, text: str) -> bool:
        """Return whether the run has a file with exactly this text."""
        path = self.place / name
        return path.is_file() and path.read_bytes() == text.encode()

    def send(self, source: Path, folder: str = "") -> None:
        """Copy a file to the run."""
        with files.atomic(self.place / folder / source.name) as copy, open(source, "rb") as original:
            shutil.copyfileobj(original, copy)

    def write(self, name: str, text: str) -> None:
        """Write a text as a file of the run, replacing an earlier one."""
        files.write_text(self.place / name, text)

    def sweep(self) -> None:
        """Remove the half-written files of killed processes; no other process may be sending now."""
        for folder in (self.place, *self.place.glob("*")):
            files.sweep(folder)


@dataclass(frozen=True)
class ServerFiles:
    """The files of one run on a server, through MLflow."""

    repository: ArtifactRepository

    def sizes(self, folder: str) -> dict[str, int]:
        entries = self.repository.list_artifacts(folder or None)
        return {entry.path: entry.file_size for entry in entries if not entry.is_dir}

    def holds(self, name: str, text: str) -> bool:
        # The size first: few files that differ have the same one, and only these are downloaded.
        if self.sizes("").get(name) != len(text.encode()):
            return False
        return download(self.repository, name) == text.encode()

    def send(self, source: Path, folder: str = "") -> None:
        self.repository.log_artifact(str(source), folder or None)

    def write(self, name: str, text: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, name)
            copy.write_bytes(text.encode())
            self.send(copy)

    def sweep(self) -> None:
        """Do nothing: a server keeps no half of a file."""


def files_of_run(artifacts: str, uri: str) -> LocalFiles | ServerFiles:
    """Return the files of a run, given the URI that MLflow recorded for them.

    MLflow records the absolute path of a run's files. That path is wrong once the results are moved, and names the
    original's files once they are copied. The files of our own stores belong next to the database, and are sent there.
    MLflow's own pages look for them at the recorded path alone.
    """
    place = folder_for_files(artifacts, uri)
    return ServerFiles(artifact_repository(artifacts, uri)) if place is None else LocalFiles(place)


def artifact_repository(artifacts: str, uri: str) -> ArtifactRepository:
    """Return MLflow's access to the files of a run, given their URI.

    MLflow's client takes the run's id instead, and then requests the run, and its models for each listing.
    """
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
    from mlflow.utils.uri import add_databricks_profile_info_to_artifact_uri

    return get_artifact_repository(add_databricks_profile_info_to_artifact_uri(artifacts, uri), tracking_uri=uri)


def download(repository: ArtifactRepository, path: str) -> bytes:
    """Return the content of a file of a run.

    Not by `download_artifacts`, which makes files and folders with the names that the server lists.
    """
    with tempfile.NamedTemporaryFile() as copy:
        repository._download_file(path, copy.name)
        return Path(copy.name).read_bytes()


def local_folder(uri: str) -> Path | None:
    """Return the folder that a URI names; None if it is not on this machine."""
    parsed = urlparse(uri)
    return Path(unquote(parsed.path)) if parsed.scheme in ("", "file") else None


def folder_for_files(artifacts: str, uri: str) -> Path | None:
    """Return the folder into which a run's files belong, given the URI that MLflow recorded; None for a server.

    That of our own stores lies next to the database; a user chose one that does not end as theirs do.
    """
    recorded, path = local_folder(artifacts), database(uri)
    if recorded is None or path is None:
        return None
    is_ours = recorded.match(f"{FOLDER}/*/*/artifacts")
    return path.resolve().parent.joinpath(*recorded.parts[-4:]) if is_ours else recorded


def artifact_folder(artifacts: str, uri: str) -> Path | None:
    """Return the folder from which a run's files are read: that of a moved store may still be the recorded one."""
    folder, recorded = folder_for_files(artifacts, uri), local_folder(artifacts)
    only_recorded_exists = folder is not None and recorded is not None and recorded.is_dir() and not folder.is_dir()
    return recorded if only_recorded_exists else folder


def home_of_experiment(uri: str, matrix: str) -> Path | None:
    """Return the folder next to an SQLite database for the files of an experiment; None for other stores."""
    path = database(uri)
    return None if path is None else path.resolve().parent / FOLDER / matrix
