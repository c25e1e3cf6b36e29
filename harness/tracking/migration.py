"""Tables of an SQLite store of MLflow: made elsewhere, and put in place in full.

MLflow makes them in the database itself, by hundreds of statements over a second or more. A process that ends
meanwhile, or a full disk, leaves a database that MLflow can neither use nor finish.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.base import files
from harness.base.errors import UserError

SIDE = ("-journal", "-wal", "-shm")  # files that SQLite keeps beside a database


def make_ready(path: Path) -> None:
    """Have a database hold all tables of the installed MLflow. One process at a time may do this."""
    from alembic.util.exc import CommandError
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    there = looked_at(path)
    if there.version == newest():
        return
    with room(path) as copy:
        if there.empty:
            work_on(copy, fresh=True)
            put(copy, path)
            return
        copied(path, copy)
        try:
            work_on(copy, fresh=False)
        except CommandError:  # of a version of MLflow after this one, which may be able to use it nevertheless
            return
        except (SQLAlchemyError, MlflowException) as error:
            if there.runs:
                raise unfinished(path, error) from error
            print(f"{path} was left half made and holds no run; it is made again", file=sys.stderr, flush=True)
            files.remove_path(copy)
            work_on(copy, fresh=True)
            put(copy, path)
            return
        # In one transaction: until its end the old database is there. Renaming would leave it open in other processes,
        # whose writes would be lost.
        copied(copy, path)


def is_ready(path: Path) -> bool:
    return looked_at(path).version == newest()


def newest() -> str:
    """Return the version of the tables that the installed MLflow makes."""
    from mlflow.store.db.utils import _get_latest_schema_revision  # MLflow has it in no public place

    version: str = _get_latest_schema_revision()
    return version


@dataclass(frozen=True)
class Looked:
    """The contents of a database, as far as they say how to go on with it."""

    version: str | None  # of its tables; None where there is none
    runs: int
    empty: bool


def looked_at(path: Path) -> Looked:
    if not path.exists():
        return Looked(None, 0, empty=True)
    with closing(sqlite3.connect(path)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        version, runs = None, 0
        if "alembic_version" in tables:
            version = next((text for (text,) in connection.execute("SELECT version_num FROM alembic_version")), None)
        if "runs" in tables:
            [(runs,)] = connection.execute("SELECT count(*) FROM runs")
    return Looked(version, runs, empty=not tables)


@contextmanager
def room(path: Path) -> Iterator[Path]:
    """Yield where a database is made, in a folder beside its place; remove first what a killed process left there."""
    for left in path.parent.glob(f".{path.name}.*"):
        files.remove_path(left)
    with files.temporary_path(path) as folder:
        folder.mkdir()
        yield folder / path.name
        files.remove_path(folder)


def work_on(path: Path, *, fresh: bool) -> None:
    """Have MLflow make all tables in a new database, or bring those of an old one to its version."""
    import sqlalchemy
    from mlflow.store.db.utils import _initialize_tables, _upgrade_db

    engine = sqlalchemy.create_engine(f"sqlite:///{path.absolute()}")
    # Hundreds of statements would each wait for the disk; here one wait at the end is enough.
    sqlalchemy.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
    try:
        (_initialize_tables if fresh else _upgrade_db)(engine)
    finally:
        engine.dispose()  # closes the file, by which SQLite removes those beside it


def put(made: Path, path: Path) -> None:
    """Give a database its name in full. A journal of an earlier one would be applied to it, so that goes first."""
    for end in SIDE:
        files.remove_path(path.with_name(path.name + end))
    files.flush_to_disk(made)
    os.replace(made, path)
    files.flush_to_disk(path.parent)


def copied(source: Path, target: Path) -> None:
    """Copy a database, with all that lies in the files beside it, in one transaction."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def unfinished(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path} is of another version of MLflow, or was left half changed, and cannot be brought to this version "
        f"({str(error).splitlines()[0]}); it is as it was: move it away, and `entrobench sync` fills a new one"
    )
