"""A cell's folder on two machines that share no disk: what one of them writes, the other gets piece by piece.

Names that begin with a dot are of files half written and stay behind, as do leases, which hold on one machine alone.
A cell's state vouches for other files, so that it is read before them and written after them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.base import files
from harness.cells import lease
from harness.cells.attempts import earlier_attempts
from harness.cells.state import FILE as STATE

PIECE = 2**26  # bytes of a file that are sent at a time


@dataclass(frozen=True)
class Piece:
    """The next bytes of a file."""

    path: str
    data: bytes


@dataclass(frozen=True)
class Whole:
    """All pieces of a change were sent."""

    gone: list[str]
    state: bytes | None  # None: the cell has none


class Sender:
    """Sends what is new in a cell's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sent = folder, dict[str, tuple[int, int]]()

    def mark(self) -> None:
        """Takes what is there as sent."""
        for _ in self.changes():
            pass

    def changes(self) -> Iterator[Piece | Whole]:
        state = self.folder / STATE
        vouches = state.read_bytes() if state.exists() else None
        there: dict[str, tuple[int, int]] = {}
        for path in found(self.folder):
            name = str(path.relative_to(self.folder.parent))
            try:
                with open(path, "rb") as file:
                    status = os.fstat(file.fileno())
                    there[name] = status.st_mtime_ns, status.st_size
                    if self.sent.get(name) != there[name]:
                        yield Piece(name, file.read(min(PIECE, status.st_size)))
                        for start in range(PIECE, status.st_size, PIECE):
                            yield Piece(name, file.read(min(PIECE, status.st_size - start)))
            except FileNotFoundError:  # of a checkpoint that is old by now
                continue
        yield Whole(sorted(self.sent.keys() - there.keys()), vouches)
        self.sent = there


class Receiver:
    """Does to a cell's folder what was done to another one, each change at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with files.temporary_path(folder / "incoming") as incoming:
            self.incoming = incoming
        shutil.rmtree(incoming, ignore_errors=True)

    def take(self, change: Piece | Whole) -> None:
        with files.temporary_path(self.folder / "incoming"):  # while this process may write there
            self.incoming.mkdir(exist_ok=True)
            if isinstance(change, Piece):
                path = self.incoming / change.path
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(path, "ab") as file:
                    file.write(change.data)
                return
            merge(self.incoming, self.folder.parent)
            for name in change.gone:
                remove(self.folder.parent / name)
            if change.state is None:
                remove(self.folder / STATE)
            else:
                files.write_text(self.folder / STATE, change.state.decode())


def found(folder: Path) -> Iterator[Path]:
    """Yields the files of a cell and of its earlier attempts that are whole."""
    for top in (folder, *earlier_attempts(folder)):
        for parent, folders, names in os.walk(top):
            folders[:] = [name for name in folders if not name.startswith(".") and name != lease.NAME]
            own = {STATE, "mlflow.lock"} if parent == str(folder) else set()
            yield from (Path(parent, name) for name in names if not name.startswith(".") and name not in own)


def merge(source: Path, target: Path) -> None:
    """Moves files to their places; a folder that is not there yet comes as a whole."""
    for path in list(source.iterdir()):
        if path.is_dir() and (target / path.name).is_dir():
            merge(path, target / path.name)
        else:
            path.replace(target / path.name)


def remove(path: Path) -> None:
    """Removes a file, and the folders that it leaves empty."""
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # one that is not empty
        for folder in path.parents:
            folder.rmdir()
