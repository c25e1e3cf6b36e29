"""Clients of the MLflow store, whose errors become one sentence for the user."""

from __future__ import annotations

import functools
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base import files
from harness.base.addresses import visible_address, without_address
from harness.base.errors import UserError, root_cause
from harness.base.locks import lock
from harness.config.checks import check_scheme

if TYPE_CHECKING:
    from mlflow import MlflowClient

ENVIRONMENT = {  # defaults for MLflow's client; variables that the user has set take precedence
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # an unreachable server must not hold up a run
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}


@contextmanager
def store(uri: str, *, write: bool) -> Iterator[MlflowClient]:
    """Yield a client of the MLflow store; errors of MLflow and its libraries become a UserError."""
    path = database(uri)
    if path is not None:
        check_database(path, uri, write)
    try:
        if path is not None:
            # Creating the tables fails if two processes do it at the same time.
            tables_lock = lock(path.with_name(f"{path.name}.lock")) if write else nullcontext()
            with tables_lock:
                prepare_tables(path.absolute(), write)
                _, question_mark, options = uri.partition("?")
                # With an absolute path, since the cached client outlives a change of the working directory.
                client = client_of(f"sqlite:///{path.absolute()}{question_mark}{options}")
        else:
            client = client_of(uri)
    except OSError as error:
        raise unusable_store(uri, error) from error
    from google.protobuf.json_format import ParseError  # of a server's answer in another shape than MLflow's
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield client
    except (MlflowException, ParseError, SQLAlchemyError, OSError, UnicodeDecodeError) as error:
        raise unusable_store(uri, error) from error


def database(uri: str) -> Path | None:
    """Return the file of an SQLite store; None for other stores."""
    location = uri.removeprefix("sqlite:///")
    return None if location == uri else Path(location.partition("?")[0])


def unusable_store(uri: str, error: Exception) -> UserError:
    """Return the user's error for an error of MLflow, its database or its server."""
    if refused := refusal(error):
        return UserError(f"the MLflow store at {visible_address(uri)} {refused}")
    cause = root_cause(error)
    reason = getattr(cause, "strerror", None)  # of the network or the disk; around it, libraries write much more
    remedy = "; start the server, or correct tracking.uri or MLFLOW_TRACKING_URI" if reason and is_server(uri) else ""
    if reason is None:
        message = str(cause if isinstance(cause, sqlite3.Error) else error).partition("\n")[0]
        reason = without_address(message or type(error).__name__, uri)
    if is_damage(error):
        return UserError(
            f"the MLflow store at {visible_address(uri)} is damaged ({reason}); put the file aside, and `entrobench "
            "sync` creates a new one from the records of the cells"
        )
    return UserError(f"the MLflow store at {visible_address(uri)} cannot be used: {reason}{remedy}")


def is_damage(error: Exception) -> bool:
    """Return whether an error reports damaged pages of an SQLite file."""
    cause = getattr(error, "orig", None) or error  # SQLAlchemy wraps the error of sqlite3
    code = getattr(cause, "sqlite_errorcode", None) or sqlite3.SQLITE_OK
    primary_code = code & 0xFF  # SQLite's higher bits only give details
    return isinstance(cause, UnicodeDecodeError) or primary_code == sqlite3.SQLITE_CORRUPT


def is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def refusal(error: Exception) -> str | None:
    """Return the clause on a server that refuses this user or requires a login; None for all other errors."""
    status_of_mlflow = getattr(error, "get_http_status_code", None)
    if status_of_mlflow is not None:
        status = status_of_mlflow()
    else:  # downloads raise the errors of requests
        status = getattr(getattr(error, "response", None), "status_code", None)
    user, password = os.environ.get("MLFLOW_TRACKING_USERNAME"), os.environ.get("MLFLOW_TRACKING_PASSWORD")
    if status == 403:
        return f"does not permit this to the user {user!r}; its administrator can"
    if status != 401:
        return None
    if user and password:
        return f"knows no user {user!r} (MLFLOW_TRACKING_USERNAME) with the password in MLFLOW_TRACKING_PASSWORD"
    return "asks for a user and a password; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"


def check_database(path: Path, uri: str, write: bool) -> None:
    """Refuse a locked, invalid or forbidden database at once; MLflow would report it after minutes of retries."""
    if not write and not path.is_file():
        raise UserError(
            f"found no MLflow store at {visible_address(uri)}; `entrobench run` or `entrobench sync` creates it"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():  # connecting would create an empty file; prepare_tables creates it with its tables
            return
        with closing(sqlite3.connect(path)) as connection:
            # BEGIN IMMEDIATE takes the lock of writers. sqlite3 waits for it for 5 seconds; closing gives it back.
            connection.execute("BEGIN IMMEDIATE" if write else "SELECT 1 FROM sqlite_master")
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
        raise unusable_store(uri, error) from error


@contextmanager
def open_database(uri: str) -> Iterator[sqlite3.Connection]:
    """Open the file of an SQLite store for reading, without loading MLflow."""
    path = database(uri)
    assert path is not None
    check_database(path, uri, write=False)
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            yield connection
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
        if str(error).startswith("no such"):  # a table or a column
            raise UserError(
                f"the MLflow store at {visible_address(uri)} was written by an unknown version of MLflow: {error}"
            ) from error
        raise unusable_store(uri, error) from error


def configure_mlflow() -> None:
    """Load MLflow with our defaults of its environment."""
    for name, value in ENVIRONMENT.items():  # on each call: other code may have set and removed a variable since
        os.environ.setdefault(name, value)
    load_mlflow()


@functools.cache
def load_mlflow() -> None:
    import mlflow  # noqa: F401  first, since importing it sets the levels of the loggers below

    for noisy in ("mlflow", "alembic"):  # they log every table that they create
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("mlflow.store").setLevel(logging.CRITICAL)  # it logs the tracebacks of errors that it also raises


@functools.cache
def prepare_tables(path: Path, write: bool) -> None:
    """Create an SQLite store that is missing or empty, if it is to be written; refuse one of another MLflow."""
    configure_mlflow()
    from mlflow.exceptions import MlflowException
    from mlflow.store.db.utils import _get_latest_schema_revision  # has no public equivalent
    from sqlalchemy.exc import SQLAlchemyError

    try:
        if write and not (path.exists() and path.stat().st_size):
            create_database(path)
        if table_version(path) != _get_latest_schema_revision():
            raise UserError(
                f"another version of MLflow wrote the store: copy the file, then run `mlflow db upgrade sqlite:///{path}`"
                ", or move it away, and `entrobench sync` fills a new one"
            )
    except (MlflowException, SQLAlchemyError, sqlite3.Error, UnicodeDecodeError) as error:
        raise unusable_store(f"sqlite:///{path}", error) from error


def table_version(path: Path) -> str | None:
    """Return the version of MLflow's tables in a database; None if none is recorded."""
    with closing(sqlite3.connect(path)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
            return None
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return row[0] if row else None


def create_database(path: Path) -> None:
    """Create a database with MLflow's tables, which takes its place when it is complete.

    MLflow itself does that in hundreds of statements over a second or more. A process that is killed meanwhile, or a
    full disk, would leave a database that MLflow can neither use nor complete.
    """
    import sqlalchemy
    from mlflow.store.db.utils import _initialize_tables

    for abandoned in path.parent.glob(f".{path.name}.*"):  # by killed processes; the caller holds the lock
        files.remove_path(abandoned)
    # A folder, so that the files that SQLite keeps next to a database are removed with it.
    with files.temporary_path(path) as folder:
        folder.mkdir()
        engine = sqlalchemy.create_engine(f"sqlite:///{folder.absolute() / path.name}")
        # Each of the statements would wait for the disk; one wait at the end is enough.
        sqlalchemy.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
        try:
            _initialize_tables(engine)
        finally:
            engine.dispose()  # closes the file, so that SQLite removes its journal
        for suffix in ("-journal", "-wal", "-shm"):  # of a database that was moved away: SQLite would apply them
            files.remove_path(path.with_name(path.name + suffix))
        files.flush_to_disk(folder / path.name)
        os.replace(folder / path.name, path)
        files.flush_to_disk(path.parent)
        files.remove_path(folder)


@functools.cache
def client_of(uri: str) -> MlflowClient:
    check_scheme(uri)
    configure_mlflow()
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return MlflowClient(tracking_uri=uri)
    except (MlflowException, SQLAlchemyError, ImportError, ValueError) as error:
        # ImportError: the database's driver is not installed. ValueError: an address that urllib cannot parse.
        raise unusable_store(uri, error) from error
