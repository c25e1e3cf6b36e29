"""Real MLflow servers on the loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

LIMIT_S = 120  # it takes some seconds, and on a busy machine many


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def mlflow_server(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yields the address of a server whose database, `mlflow.db`, and files lie in the folder."""
    uri = f"http://127.0.0.1:{(port := free_port())}"
    place = [
        "--backend-store-uri",
        f"sqlite:///{folder / 'mlflow.db'}",
        "--artifacts-destination",
        str(folder / "kept"),
    ]
    command = [sys.executable, "-m", "mlflow", "server", *place, "--port", str(port), "--workers", "1", *arguments]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    with open(folder / "server.log", "wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**plain, **(environment or {})},
            stdout=log,
            stderr=log,
            start_new_session=True,  # with its workers, so that they end together
        )
    try:
        wait(process, uri, folder / "server.log")
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait(process: subprocess.Popen[bytes], uri: str, log: Path) -> None:
    """Returns when the server answers."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            urllib.request.urlopen(f"{uri}/health", timeout=5).close()
        except urllib.error.HTTPError:  # it answers, though only to those who say who they are
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
