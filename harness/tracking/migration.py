"""Create or upgrade the tables of MLflow's SQLite store, in a copy that takes the place of the database when complete.

MLflow itself does that in the database, by hundreds of statements over a second or more. A process that is killed
meanwhile, or a full disk, leaves a database that MLflow can neither use nor complete.
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

SQLITE_SUFFIXES = ("-journal", "-wal", "-shm")  # of the files that SQLite keeps next to a database


def make_ready(path: Path) -> None:
    """Create or upgrade a database to the tables of the installed MLflow; the caller holds the lock."""
    from alembic.util.exc import CommandError
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    content = database_content(path)
    if content.version == newest():
        return
    with temporary_database(path) as copy:
        if content.empty:
            run_migrations(copy, fresh=True)
            put_in_place(copy, path)
            return
        copy_database(path, copy)
        try:
            run_migrations(copy, fresh=False)
        except CommandError:  # tables of a newer MLflow, which this one may still be able to use
            return
        except (SQLAlchemyError, MlflowException) as error:
            if content.runs:
                raise failed_upgrade(path, error) from error
            print(f"{path} was left incomplete and has no runs; it is created again", file=sys.stderr, flush=True)
            files.remove_path(copy)
            run_migrations(copy, fresh=True)
            put_in_place(copy, path)
            return
        # Copied back in one transaction and not renamed: a process that has the old file open would go on writing to
        # it, and its writes would be lost.
        copy_database(copy, path)


def is_ready(path: Path) -> bool:
    return database_content(path).version == newest()


def newest() -> str:
    """Return the version of the tables of the installed MLflow."""
    from mlflow.store.db.utils import _get_latest_schema_revision  # has no public equivalent

    version: str = _get_latest_schema_revision()
    return version


@dataclass(frozen=True)
class DatabaseContent:
    """The content of a database, on which the kind of migration depends."""

    version: str | None  # of its tables; None if none is recorded
    runs: int
    empty: bool


def database_content(path: Path) -> DatabaseContent:
    if not path.exists():
        return DatabaseContent(None, 0, empty=True)
    with closing(sqlite3.connect(path)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        version, runs = None, 0
        if "alembic_version" in tables:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            version = row[0] if row else None
        if "runs" in tables:
            [(runs,)] = connection.execute("SELECT count(*) FROM runs")
    return DatabaseContent(version, runs, empty=not tables)


@contextmanager
def temporary_database(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary database next to the final one; remove leftovers of killed processes."""
    for abandoned in path.parent.glob(f".{path.name}.*"):
        files.remove_path(abandoned)
    # A folder, so that the files that SQLite keeps next to the copy are removed with it.
    with files.temporary_path(path) as folder:
        folder.mkdir()
        yield folder / path.name
        files.remove_path(folder)


def run_migrations(path: Path, *, fresh: bool) -> None:
    """Have MLflow create all tables in a new database, or upgrade an old one."""
    import sqlalchemy
    from mlflow.store.db.utils import _initialize_tables, _upgrade_db

    engine = sqlalchemy.create_engine(f"sqlite:///{path.absolute()}")
    # Each of hundreds of statements would wait for the disk. The file is a copy, so one wait at the end is enough.
    sqlalchemy.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
    try:
        if fresh:
            _initialize_tables(engine)
        else:
            _upgrade_db(engine)
    finally:
        engine.dispose()  # closes the file, so that SQLite removes its journal


def put_in_place(complete: Path, path: Path) -> None:
    """Move a complete database to its final path."""
    for suffix in SQLITE_SUFFIXES:  # first: SQLite would apply an old journal to the new database
        files.remove_path(path.with_name(path.name + suffix))
    files.flush_to_disk(complete)
    os.replace(complete, path)
    files.flush_to_disk(path.parent)


def copy_database(source: Path, target: Path) -> None:
    """Copy a database in one transaction, including the content of its journal files."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def failed_upgrade(path: Path, error: Exception) -> UserError:
    first_line = str(error).splitlines()[0]
    return UserError(
        f"{path} is of another version of MLflow, or half upgraded, and cannot be upgraded "
        f"({first_line}); it was not changed: move it away, and `entrobench sync` fills a new one"
    )
