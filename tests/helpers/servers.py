from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import wait_until
from patient_server import QuietHandler, serving
from places import RARELY_SEARCHING


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def mlflow_server(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None, port: int | None = None
) -> Iterator[str]:
    """Yield the address of a server, killed at the end, whose database, `mlflow.db`, and files lie in the folder.

    It has no helpers for jobs, of which MLflow would start eight, and nothing is asked of them here.
    """
    port = port or free_port()
    uri = f"http://127.0.0.1:{port}"
    place = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", f"{folder}/kept"]
    command = [sys.executable, "-m", "mlflow", "server", *place, "--port", str(port), "--workers", "1", *arguments]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    variables |= {"PYTHONPATH": RARELY_SEARCHING, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **(environment or {})}
    with open(folder / "server.log", "wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdout=log,
            stderr=log,
            start_new_session=True,  # so that the server and its workers end together
        )
    try:
        wait(process, uri, folder / "server.log")
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


PASSWORD = "pass-of-the-admin"  # of the user `admin`
AUTHENTICATION = """[mlflow]
default_permission = NO_PERMISSIONS
database_uri = sqlite:///{folder}/auth.db
admin_username = admin
admin_password = {password}
"""


@contextmanager
def guarded_server(folder: Path) -> Iterator[str]:
    """Yield the address of a server that requires a password."""
    if importlib.util.find_spec("flask_wtf") is None:
        pytest.skip("Flask-WTF is not installed, which a server with passwords needs; it is in the extra test")
    settings = folder / "auth.ini"
    settings.write_text(AUTHENTICATION.format(folder=folder, password=PASSWORD))
    secrets = {"MLFLOW_AUTH_CONFIG_PATH": str(settings), "MLFLOW_FLASK_SERVER_SECRET_KEY": "of-the-server"}
    with mlflow_server(folder, "--app-name", "basic-auth", environment=secrets) as uri:
        yield uri


def wait(process: subprocess.Popen[bytes], uri: str, log: Path) -> None:
    """Wait until the server answers."""

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(f"{uri}/health", timeout=5).close()
        except urllib.error.HTTPError:  # it requires a login
            return True
        except OSError:
            return False
        return True

    wait_until(answers)


class Between:
    """A proxy between a client and a server that delays or refuses calls, or answers slowly or never."""

    def __init__(self, behind: str) -> None:
        self.behind, self.late, self.calls = behind, 0.0, 0
        self.refuses: Callable[[int], bool] = lambda number: False
        self.seconds_per_byte: Callable[[str], float] = lambda path: 0.0
        self.silent = threading.Event()
        self.heard = threading.Event()

    def answer(self, to: QuietHandler) -> None:
        self.calls += 1
        self.heard.set()
        number = self.calls
        body = to.sent()
        if self.silent.is_set():
            time.sleep(3600)
        time.sleep(self.late)
        if self.refuses(number):
            to.send_error(503)
            return
        headers = {name: value for name, value in to.headers.items() if name not in ("Host", "Connection")}
        asked = urllib.request.Request(self.behind + to.path, body or None, headers, method=to.command)
        try:
            with urllib.request.urlopen(asked, timeout=60) as found:
                status, answer = found.status, found.read()
        except urllib.error.HTTPError as error:
            status, answer = error.code, error.read()
        to.send_response(status)
        to.send_header("Content-Length", str(len(answer)))
        to.end_headers()
        if seconds := self.seconds_per_byte(to.path):
            with contextlib.suppress(ConnectionError):  # the client has gone
                for byte in answer:
                    time.sleep(seconds)
                    to.wfile.write(bytes([byte]))
        else:
            to.wfile.write(answer)


@contextmanager
def between(behind: str) -> Iterator[tuple[str, Between]]:
    """Yield the address of a proxy for a server, and the object that controls the proxy."""
    found = Between(behind)

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found.answer(self)

        do_POST = do_PUT = do_PATCH = do_GET

    with serving(Handler) as address:
        yield address, found
