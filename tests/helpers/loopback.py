"""Servers on this machine that answer like the Hugging Face Hub: one has a model or a data set, one takes files."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from patient_server import QuietHandler, serving


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

    class Speaker(QuietHandler):
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
            sent = self.sent().decode()
            if self.path != f"{api}/paths-info/{commit}":
                self.send_error(404)
                return
            paths = json.loads(sent)["paths"] if sent.startswith("{") else parse_qs(sent)["paths"]
            self.answer(json.dumps([each for path in paths for each in describe(path)]).encode())

        def answer(self, found: bytes) -> None:
            wanted = re.fullmatch(r"bytes=([0-9]+)-([0-9]*)", self.headers.get("Range", ""))
            content = found[int(wanted[1]) : int(wanted[2] or len(found)) + 1] if wanted else found
            headers = {"ETag": f'"{hashlib.sha256(found).hexdigest()}"', "X-Repo-Commit": commit}
            if wanted:
                last = int(wanted[1]) + len(content) - 1
                headers["Content-Range"] = f"bytes {wanted[1]}-{last}/{len(found)}"
            self.reply(content, 206 if wanted else 200, headers)

    with serving(Speaker) as address:
        yield address, asked


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
    """Yield the inbox of a repository, which takes small files with the token alone; `full`: it refuses each commit."""

    class Taker(QuietHandler):
        def do_POST(self) -> None:
            sent = self.sent()
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                self.answer({"error": "Invalid username or password."}, 401)
            elif self.path == "/api/validate-yaml":
                received.metadata = json.loads(sent)["content"].partition("---\n")[2].partition("---\n")[0]
                self.answer({})
            elif self.path == "/api/repos/create":
                received.repositories.append(json.loads(sent))
                self.answer({"url": f"{address}/{repository}"})
            elif self.path == f"/api/models/{repository}/preupload/main":
                paths = [file["path"] for file in json.loads(sent)["files"]]
                modes = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]
                self.answer({"files": modes})
            elif self.path == f"/api/models/{repository}/commit/main" and not full:
                header, *operations = map(json.loads, sent.splitlines())
                received.commits.append(header["value"]["summary"])
                for operation in operations:
                    received.files[operation["value"]["path"]] = base64.b64decode(operation["value"]["content"])
                self.answer({"commitUrl": f"{address}/{repository}/commit/1", "commitOid": "1" * 40})
            else:
                self.answer({"error": "No more room."}, 403)

        def answer(self, content: dict[str, object], status: int = 200) -> None:
            self.reply(json.dumps(content).encode(), status, {"X-Error-Message": str(content.get("error", ""))})

    with serving(Taker) as address:
        received = Inbox(address)
        yield received
