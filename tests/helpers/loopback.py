"""A server on this machine that answers like the Hugging Face Hub for one model or one data set."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs

from patient_server import PatientServer


@contextmanager
def hub(
    kind: str, name: str, files: Mapping[str, bytes], commit: str, revisions: Iterable[str] = ()
) -> Iterator[tuple[str, list[str]]]:
    """Yield the address, and the paths that were requested. `kind` is models or datasets, `name` owner/name; the
    revisions mean the commit, as it does itself. The files may still change."""
    asked: list[str] = []
    api = f"/api/{kind}/{name}"
    known = {api, *(f"{api}/revision/{each}" for each in (commit, *revisions))}
    tree = f"{api}/tree/{commit}"
    place = f"/{name}/resolve/{commit}/" if kind == "models" else f"/{kind}/{name}/resolve/{commit}/"

    def describe(path: str) -> list[dict[str, object]]:
        """A file, or a folder that is given by the beginning of its files' paths; nothing if there is neither."""
        if path in files:
            return [{"type": "file", "path": path, "size": len(files[path]), "oid": "0" * 40}]
        is_folder = any(file.startswith(f"{path}/") for file in files)
        return [{"type": "directory", "path": path, "oid": "0" * 40}] if is_folder else []

    def listed(folder: str, recursive: bool) -> list[dict[str, object]]:
        depth = folder.count("/") + 1 if folder else 0
        inside = [file for file in files if not folder or file.startswith(f"{folder}/")]
        paths = inside if recursive else dict.fromkeys("/".join(file.split("/")[: depth + 1]) for file in inside)
        return [each for path in paths for each in describe(path)]

    class Speaker(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            asked.append(path)
            if path in known:
                found = json.dumps({"id": name, "sha": commit, "siblings": [{"rfilename": f} for f in files]}).encode()
            elif path == tree or path.startswith(f"{tree}/"):
                folder = path.removeprefix(tree)[1:]
                found = json.dumps(listed(folder, "recursive=true" in query.lower())).encode()
            elif path.startswith(place) and path.removeprefix(place) in files:
                found = files[path.removeprefix(place)]
            else:
                self.send_error(404)
                return
            self.answer(found)

        do_HEAD = do_GET

        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"])).decode()
            if self.path != f"{api}/paths-info/{commit}":
                self.send_error(404)
                return
            paths = json.loads(sent)["paths"] if sent.startswith("{") else parse_qs(sent)["paths"]
            self.answer(json.dumps([each for path in paths for each in describe(path)]).encode())

        def answer(self, found: bytes) -> None:
            wanted = re.fullmatch(r"bytes=([0-9]+)-([0-9]*)", self.headers.get("Range", ""))
            content = found[int(wanted[1]) : int(wanted[2] or len(found)) + 1] if wanted else found
            self.send_response(206 if wanted else 200)
            for header, value in (
                ("Content-Length", str(len(content))),
                ("ETag", f'"{hashlib.sha256(found).hexdigest()}"'),
                ("X-Repo-Commit", commit),
            ):
                self.send_header(header, value)
            if wanted:
                self.send_header("Content-Range", f"bytes {wanted[1]}-{int(wanted[1]) + len(content) - 1}/{len(found)}")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    with PatientServer(("127.0.0.1", 0), Speaker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
