"""Reads runs out of MLflow: an SQLite file and a server directly, since loading MLflow takes seconds and its client as
long again for a thousand runs, and any other store through that client."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from harness.base.addresses import visible_address
from harness.base.errors import UserError
from harness.tracking.runs import Client, Direct, Reader
from harness.tracking.store import database, probe, store, unusable


@contextmanager
def reader(uri: str) -> Iterator[Reader]:
    path = database(uri)
    if path is None and asked_directly(uri):
        from harness.tracking.served import Served

        try:
            yield Served(uri)
        except OSError as error:  # as those of requests are
            raise unusable(uri, error) from error
        return
    if path is None:
        with store(uri, write=False) as client:
            yield Client(client)
        return
    probe(path, uri, write=False)
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            yield Direct(connection, uri)
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
        if str(error).startswith("no such"):  # a table or a column
            raise UserError(
                f"the MLflow store at {visible_address(uri)} was written by an unknown version of MLflow: {error}"
            ) from error
        raise unusable(uri, error) from error


def asked_directly(uri: str) -> bool:
    """Returns whether an address is of a server that asks for a user and a password, if for anything: other ways to
    sign in, by tokens or certificates, are left to MLflow's client."""
    others = {name for name in os.environ if name.startswith("MLFLOW_TRACKING_")}
    others -= {f"MLFLOW_TRACKING_{name}" for name in ("URI", "USERNAME", "PASSWORD")}
    kept = Path(os.path.expanduser("~/.mlflow/credentials"))
    return uri.startswith(("http://", "https://")) and not others and not kept.exists()
