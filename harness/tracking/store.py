"""The MLflow store: a client whose troubles are told in one sentence."""

from __future__ import annotations

import functools
import json
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from harness.base.addresses import visible_address, without_address
from harness.base.deadline import finished_within
from harness.base.errors import UserError
from harness.base.locks import lock
from harness.tracking import migration

if TYPE_CHECKING:
    from mlflow import MlflowClient

T = TypeVar("T")

ENVIRONMENT = {  # of MLflow's client, where nobody has set it
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # a server that is away must not hold up a run
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}
PATIENCE = 4  # times MLFLOW_HTTP_REQUEST_TIMEOUT, which is of each read: a server may send a byte at a time for ever


@contextmanager
def store(uri: str, *, write: bool) -> Iterator[MlflowClient]:
    """A client of the MLflow store, whose troubles are told in one sentence."""
    path = database(uri)
    if path is not None:
        probe(path, uri, write)
    try:
        # Two that make the tables at once would fail.
        with lock(path.with_name(f"{path.name}.lock")) if path is not None and write else nullcontext():
            if path is not None:
                prepared(path.absolute(), write)
            client = client_of(absolute(uri))
    except OSError as error:
        raise unusable(uri, error) from error
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        if is_server(uri) and not write:
            yield cast("MlflowClient", Limited(client, uri))
        else:  # a file that is sent may be of any size, so that its answer has no limit but that of the whole sync
            yield client
    except (MlflowException, SQLAlchemyError, OSError, UnicodeDecodeError) as error:
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
    if is_damage(error):
        return UserError(
            f"the MLflow store at {visible_address(uri)} is damaged ({reason}); put the file aside, and `entrobench "
            "sync` makes another from the records of the cells"
        )
    return UserError(f"the MLflow store at {visible_address(uri)} cannot be used: {reason}")


def is_damage(error: Exception) -> bool:
    """Return whether an error says that the pages of an SQLite file do not hold what was written to them."""
    cause = getattr(error, "orig", None) or error  # what SQLAlchemy wraps
    code = getattr(cause, "sqlite_errorcode", None) or sqlite3.SQLITE_OK
    return isinstance(cause, UnicodeDecodeError) or code & 0xFF == sqlite3.SQLITE_CORRUPT  # further bits say where


def foreign(uri: str, why: object) -> UserError:
    """Return the error of a server whose answers are not those of MLflow."""
    return UserError(
        f"the server at {visible_address(uri)} does not answer as MLflow does ({without_address(str(why), uri)}); "
        "tracking.uri or MLFLOW_TRACKING_URI must be the address of an MLflow server"
    )


def is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def answer_limit() -> float:
    """Return the seconds in which a server must have sent the whole of an answer."""
    return PATIENCE * float(os.environ.get(name := "MLFLOW_HTTP_REQUEST_TIMEOUT", ENVIRONMENT[name]))


def answered(uri: str, ask: Callable[[], T]) -> T:
    """Return the answer of a server; refuse one that is not here in full within the limit."""
    answers: list[T] = []
    limit = answer_limit()
    if not finished_within(limit, lambda: answers.append(ask())):
        raise UserError(f"the MLflow store at {visible_address(uri)} did not answer in full within {limit:g} s")
    return answers[0]


class Limited:
    """MLflow's client of a server, each of whose calls must end within the limit."""

    def __init__(self, client: MlflowClient, uri: str) -> None:
        self.client, self.uri = client, uri

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.client, name)
        if not callable(found):
            return found
        return lambda *given, **named: answered(self.uri, partial(found, *given, **named))


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
        if not path.exists():  # nor is it made here: it gets its name when it has its tables
            return
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("BEGIN IMMEDIATE" if write else "SELECT 1 FROM sqlite_master")
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
        raise unusable(uri, error) from error


def quieted() -> None:
    """Load MLflow as its client is wanted here."""
    for name, value in ENVIRONMENT.items():  # each time: whoever sets one for a while takes it away afterwards
        os.environ.setdefault(name, value)
    load_mlflow()


@functools.cache
def load_mlflow() -> None:
    import mlflow  # noqa: F401  which sets the level of its log

    for noisy in ("mlflow", "alembic"):  # they log every table that they make
        logging.getLogger(noisy).setLevel(logging.WARNING)


@functools.cache
def prepared(path: Path, write: bool) -> None:
    """Have an SQLite store hold the tables that the client needs; refuse one without them where nothing is written."""
    quieted()
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        if write:
            migration.make_ready(path)
        elif not migration.is_ready(path):
            raise UserError(f"the MLflow store {path} lacks tables of this version; `entrobench sync` makes them")
    except (MlflowException, SQLAlchemyError, sqlite3.Error, UnicodeDecodeError) as error:
        raise unusable(f"sqlite:///{path}", error) from error


@functools.cache
def client_of(uri: str) -> MlflowClient:
    quieted()
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        client = MlflowClient(tracking_uri=uri)
        if is_server(uri):
            check_server(client, uri)
    except (MlflowException, SQLAlchemyError, ImportError, UnicodeDecodeError) as error:
        raise unusable(uri, error) from error  # ImportError: of the database's driver
    return client


def check_server(client: MlflowClient, uri: str) -> None:
    """Refuse a server that does not answer as MLflow does, or not to the end, when it is first asked."""
    from google.protobuf.json_format import ParseError

    def ask() -> None:
        try:
            # MLflow's client takes any JSON for its own, and leaves empty whatever it does not find there.
            for experiment in client.search_experiments(max_results=1):
                if not (experiment.experiment_id and experiment.name):
                    raise foreign(uri, "an experiment has no id or no name")
        except (ParseError, json.JSONDecodeError, AttributeError, TypeError, KeyError) as error:
            raise foreign(uri, error) from error

    answered(uri, ask)
