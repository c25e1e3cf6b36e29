"""An address on this machine that speaks as the Hugging Face hub does of one model or one data set."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def hub(
    kind: str, name: str, files: Mapping[str, bytes], commit: str, revisions: Iterable[str] = ()
) -> Iterator[tuple[str, list[str]]]:
    """Yields the address, and the paths that it was asked for. `kind` is models or datasets, `name` owner/name; the
    revisions mean the commit, as it does itself. The files may still change."""
    asked: list[str] = []
    known = {f"/api/{kind}/{name}/revision/{each}" for each in (commit, *revisions)}
    place = f"/{name}/resolve/{commit}/" if kind == "models" else f"/{kind}/{name}/resolve/{commit}/"

    class Speaker(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(path := self.path.partition("?")[0])
            if path in known:
                found = json.dumps({"id": name, "sha": commit, "siblings": [{"rfilename": f} for f in files]}).encode()
            elif path == f"/api/{kind}/{name}/tree/{commit}":
                listed = [{"type": "file", "path": f, "size": len(files[f]), "oid": "0" * 40} for f in files]
                found = json.dumps(listed).encode()
            elif path.startswith(place) and path.removeprefix(place) in files:
                found = files[path.removeprefix(place)]
            else:
                self.send_error(404)
                return
            self.send_response(200)
            for header, value in (
                ("Content-Length", str(len(found))),
                ("ETag", f'"{hashlib.sha256(found).hexdigest()}"'),
                ("X-Repo-Commit", commit),
            ):
                self.send_header(header, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(found)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Speaker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
