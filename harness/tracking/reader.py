"""Open an MLflow store for reading: an SQLite file directly, any other store through MLflow's client.

Loading MLflow takes seconds, and its client takes as long again for a thousand runs. To avoid that, a few queries of
our own are worth it for the default store; a client of our own for servers would not be.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from harness.base.addresses import visible_address
from harness.base.errors import UserError
from harness.tracking.runs import ClientReader, DatabaseReader, StoreReader
from harness.tracking.store import check_database, database, store, unusable_store


@contextmanager
def reader(uri: str) -> Iterator[StoreReader]:
    """Open an MLflow store for reading."""
    path = database(uri)
    if path is None:
        with store(uri, write=False) as client:
            yield ClientReader(client, uri)
    else:
        with database_reader(uri) as source:
            yield source


@contextmanager
def database_reader(uri: str) -> Iterator[DatabaseReader]:
    """Open an SQLite store for reading, without loading MLflow."""
    path = database(uri)
    assert path is not None
    check_database(path, uri, write=False)
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            yield DatabaseReader(connection, uri)
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
        if str(error).startswith("no such"):  # a table or a column
            raise UserError(
                f"the MLflow store at {visible_address(uri)} was written by an unknown version of MLflow: {error}"
            ) from error
        raise unusable_store(uri, error) from error
