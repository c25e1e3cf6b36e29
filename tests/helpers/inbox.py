"""A server on this machine that takes the small files of an upload as the Hugging Face Hub does."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from patient_server import PatientServer

TOKEN = "hf_of_a_test"


@dataclass
class Inbox:
    """What a server has received."""

    address: str
    repositories: list[dict[str, object]] = field(default_factory=list)  # as they were asked for
    metadata: str = ""  # of a card, which is sent ahead to be checked
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)  # their messages


@contextmanager
def inbox(repository: str, *, full: bool = False) -> Iterator[Inbox]:
    """Yield the inbox of a repository, which takes files with the token alone; `full`: it refuses each commit."""

    class Taker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                self.answer({"error": "Invalid username or password."}, 401)
            elif self.path == "/api/validate-yaml":
                received.metadata = json.loads(sent)["content"].partition("---\n")[2].partition("---\n")[0]
                self.answer({})
            elif self.path == "/api/repos/create":
                received.repositories.append(json.loads(sent))
                self.answer({"url": f"{received.address}/{repository}"})
            elif self.path == f"/api/models/{repository}/preupload/main":
                modes = [
                    {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for file in json.loads(sent)["files"]
                ]
                self.answer({"files": modes})
            elif self.path == f"/api/models/{repository}/commit/main" and not full:
                header, *operations = map(json.loads, sent.splitlines())
                received.commits.append(header["value"]["summary"])
                for operation in operations:
                    received.files[operation["value"]["path"]] = base64.b64decode(operation["value"]["content"])
                self.answer({"commitUrl": f"{received.address}/{repository}/commit/1", "commitOid": "1" * 40})
            else:
                self.answer({"error": "No more room."}, 403)

        def answer(self, content: dict[str, object], status: int = 200) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("X-Error-Message", str(content.get("error", "")))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with PatientServer(("127.0.0.1", 0), Taker) as server:
        received = Inbox(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield received
        server.shutdown()
