"""Addresses as they are shown: nothing that may be secret."""

from __future__ import annotations

import dataclasses
import string
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import config
from harness.base.addresses import may_be_written, visible_address, without_address, without_secrets
from harness.base.errors import UserError
from harness.matrix import cells
from harness.tracking.store import unusable_store

SECRET = "s3cRet"
WRITTEN = [
    "http://host",
    "http://host:5000/",
    "https://host:5000/mlflow",
    "http://[::1]:5000",
    "sqlite:///results/mlflow.db",
    "sqlite:////home/a@b/mlflow.db",
    "postgresql+psycopg2://host:5432/runs",
    "file:///srv/mlruns",
    "mlruns",
    "databricks",
]
HIDDEN = [  # with what is shown of them
    (f"http://me:{SECRET}@host:5000", "http://host:5000/***"),
    (f"http://me:{SECRET}@host:5000/mlflow", "http://host:5000/***"),
    (f"http://{SECRET}@host/", "http://host/***"),
    (f"http://:{SECRET}@host", "http://host/***"),
    (f"postgresql://bob:{SECRET}/et@h/db", "postgresql://***"),
    (f"postgresql://bob:x{SECRET}@y@h/db", "postgresql://***"),
    (f"postgresql://host/db?user=bob&password=p@{SECRET}", "postgresql://***"),
    (f"postgresql://host/db?sslmode=require&sslkey={SECRET}", "postgresql://host/***"),
    (f"mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3D{SECRET}", "mssql+pyodbc://***"),
    (f"http://host/#{SECRET}", "http://host/***"),
    (f"http://host#{SECRET}", "http://host/***"),
    (f"http:bob:{SECRET}@host", "***"),
    (f"http://bob:{SECRET}", "http://***"),
    (f"http://bob\\{SECRET}@host", "http://***"),
    (f"http://[u:{SECRET}@::1]/", "http://***"),
    (f"bob:{SECRET}@host", "***"),
    (f"sqlite:///x.db?password={SECRET}", "sqlite://***"),
    (f"sqlite+pysqlcipher://:{SECRET}@/x.db", "sqlite+pysqlcipher://***"),
]
SIGNS = st.text(string.ascii_letters + string.digits + "/?#@:;=&%\\ +.-_~", max_size=12)
ANY_SECRET = st.builds(lambda before, after: f"{before}{SECRET}{after}", SIGNS, SIGNS)
REMOTE = ["http:", "https:", "postgresql:", "mysql+driver:"]
BEGINNINGS = [*REMOTE, "sqlite:", "file:"]


@pytest.mark.parametrize(("uri", "shown"), [*((uri, uri) for uri in WRITTEN), *HIDDEN])
def test_visible_address(uri: str, shown: str) -> None:
    assert visible_address(uri) == shown
    assert may_be_written(uri) == (uri in WRITTEN)


@given(st.sampled_from(BEGINNINGS), SIGNS, ANY_SECRET)
def test_visible_address_with_a_password(beginning: str, user: str, password: str) -> None:
    """But a sign that ends the whole address there, before any host, may make the password the path of a file."""
    for uri in (f"{beginning}//{user}:{password}@host/db", f"{beginning}//host/db?user=bob&password={password}"):
        if not uri.partition(":")[2].startswith("///"):
            assert SECRET not in visible_address(uri)
            assert not may_be_written(uri)


@given(st.sampled_from(REMOTE), ANY_SECRET)
def test_visible_address_with_a_query(beginning: str, secret: str) -> None:
    for uri in (f"{beginning}//host/db?{secret}", f"{beginning}//host?{secret}", f"{beginning}//host#{secret}"):
        assert SECRET not in visible_address(uri)
    assert SECRET not in visible_address(f"{beginning}{secret.lstrip('/')}")


@given(ANY_SECRET)
def test_visible_address_of_sqlite(secret: str) -> None:
    assert visible_address(f"sqlite:///r/x.db?{secret}") == visible_address(f"sqlite:///r/x.db#{secret}")
    assert SECRET not in visible_address(f"sqlite:///r/x.db?{secret}")


@given(st.sampled_from([uri for uri, _ in HIDDEN]), st.sampled_from(["{}", "could not reach {}: refused", "('{}', 3)"]))
def test_without_address(uri: str, text: str) -> None:
    for quoted in (uri, quote(uri), repr(uri)[1:-1], uri.partition("//")[2] or uri):
        assert SECRET not in without_address(text.format(quoted), uri)
    assert SECRET not in str(unusable_store(uri, OSError(text.format(uri))))


@pytest.mark.parametrize("uri", [uri for uri, _ in HIDDEN if "//" in uri and not uri.startswith(SECRET)])
def test_without_secrets(uri: str) -> None:
    for text in (f"at {uri}, it failed", f"at '{uri}'", f"({uri})", f"at {uri}; see below"):
        assert SECRET not in str(UserError(text)), text
    assert str(UserError("http://:secret@host and http://me:secret@other")) == "http://host/*** and http://other/***"
    plain = "see https://host/docs/a.html; line 3: x=[0.1]"
    assert without_secrets(plain) == plain


@pytest.mark.parametrize("uri", [uri for uri, _ in HIDDEN])
def test_tracking_uri_with_a_secret(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(f"base: smoke\ntracking: {{uri: '{uri}'}}\n")
    with pytest.raises(UserError, match=r"tracking\.uri may hold a user, a password or a token") as error:
        config.load_config(str(file))
    assert SECRET not in str(error.value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    loaded = config.load_config("smoke", [f"results={tmp_path}"])
    assert loaded.tracking_uri == uri
    one = cells(dataclasses.replace(loaded, tracking=config.Tracking(uri)))[0]
    assert one.config.tracking_uri == uri
    assert one.spec.settings["tracking"]["uri"] == visible_address(uri)
    one.spec.write(one.folder)
    assert SECRET not in (one.folder / "config.yaml").read_text()
