"""The MLflow store: a client whose troubles are told in one sentence."""

from __future__ import annotations

import functools
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base.addresses import visible_address, without_address
from harness.base.errors import UserError
from harness.base.locks import lock

if TYPE_CHECKING:
    from mlflow import MlflowClient

ENVIRONMENT = {  # of MLflow's client, where nobody has set it
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # a server that is away must not hold up a run
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}


@contextmanager
def store(uri: str, *, write: bool) -> Iterator[MlflowClient]:
    """A client of the MLflow store, whose troubles are told in one sentence."""
    path = database(uri)
    if path is not None:
        probe(path, uri, write)
    try:
        with lock(path.with_name(f"{path.name}.lock")) if path is not None and write else nullcontext():
            client = client_of(absolute(uri))  # which makes the tables: two that do so at once fail
    except OSError as error:
        raise unusable(uri, error) from error
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield client
    except (MlflowException, SQLAlchemyError, OSError) as error:
        raise unusable(uri, error) from error


def database(uri: str) -> Path | None:
    """The file of an SQLite store."""
    location = uri.removeprefix("sqlite:///")
    return None if location == uri else Path(location.partition("?")[0])


def absolute(uri: str) -> str:
    """Returns an address that means the same in another folder, where this process may be when it is used again."""
    path = database(uri)
    return uri if path is None else f"sqlite:///{path.absolute()}{''.join(uri.partition('?')[1:])}"


def unusable(uri: str, error: Exception) -> UserError:
    if refused := refusal(error):
        return UserError(f"the MLflow store at {visible_address(uri)} {refused}")
    reason = (without_address(str(error), uri) or type(error).__name__).splitlines()[0]
    return UserError(f"the MLflow store at {visible_address(uri)} cannot be used: {reason}")


def refusal(error: Exception) -> str | None:
    """Returns what a server said that asks who one is, and does not take the answer; None for all other errors."""
    ask = getattr(error, "get_http_status_code", None)  # of MLflow's errors; those of its files are of requests
    status = ask() if ask else getattr(getattr(error, "response", None), "status_code", None)
    user, password = (os.environ.get(f"MLFLOW_TRACKING_{name}") for name in ("USERNAME", "PASSWORD"))
    if status == 403:
        return f"does not permit this to the user {user!r}; its administrator can"
    if status != 401:
        return None
    if user and password:
        return f"knows no user {user!r} (MLFLOW_TRACKING_USERNAME) with the password in MLFLOW_TRACKING_PASSWORD"
    return "asks for a user and a password; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"


def probe(path: Path, uri: str, write: bool) -> None:
    """Find out at once what MLflow would find out after minutes of retries: locked, no database, no permission."""
    if not write and not path.is_file():
        raise UserError(
            f"there is no MLflow store at {visible_address(uri)}; `entrobench run` or `entrobench sync` makes it"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("BEGIN IMMEDIATE" if write else "SELECT 1 FROM sqlite_master")
    except (sqlite3.Error, OSError) as error:
        raise unusable(uri, error) from error


@functools.cache
def client_of(uri: str) -> MlflowClient:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    for noisy in ("mlflow", "alembic"):  # they tell of every table that they make
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        return MlflowClient(tracking_uri=uri)
    except (MlflowException, SQLAlchemyError, ImportError) as error:  # ImportError: the database's driver
        raise unusable(uri, error) from error
