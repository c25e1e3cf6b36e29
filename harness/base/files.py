"""Files that are either there in full or not at all, whenever the process is killed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import yaml

from harness.base import seal
from harness.base.errors import Damaged, Taken, Unwritten, UserError

YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it was built


def default_cache() -> Path:
    """Where models and problem sets are kept once they are made."""
    if given := os.environ.get("ENTROBENCH_CACHE"):
        return Path(given)
    try:
        return Path.home() / ".cache" / "entrobench"
    except RuntimeError as error:  # neither HOME nor the system says where that is
        raise UserError("this user has no home folder, where models are kept; set ENTROBENCH_CACHE") from error


TEMPORARY = re.compile(r"\..+\.(\d+)")  # what is being written, with the process that does it

# Where files of a folder are written before they are put in their place, by folder: beside it, if it is not here.
rooms: dict[Path, Path] = {}


@contextlib.contextmanager
def place(path: Path, writer: int | None = None) -> Iterator[Path]:
    """Yields where this process, or several for one of them, write what becomes `path`; when they may write no more,
    that is no place any more. What cannot be written to its end leaves nothing."""
    folder, room = next(((f, r) for f, r in rooms.items() if f in path.parents), (path.parent, path.parent))
    temporary = room / f".{path.name}.{writer or os.getpid()}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
    except FileNotFoundError as error:
        if folder.exists() and not room.exists():
            raise Taken(folder) from error
        raise
    except BaseException as error:
        remove(temporary)
        if reason := unwritten(error):
            raise Unwritten(path, reason) from error
        raise


def unwritten(error: BaseException) -> str | None:
    """Returns why nothing can be written at some place; None for all other errors."""
    known = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
    if isinstance(error, OSError) and error.errno in known:
        return os.strerror(error.errno)
    return None


def remove(path: Path) -> None:
    """Removes a file or a folder, if it is there."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def sweep(folder: Path) -> None:
    """Removes what killed processes have half written into a folder, in which nobody else may be writing now."""
    for path in folder.glob(".*"):
        if TEMPORARY.fullmatch(path.name):
            remove(path)


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[IO[bytes]]:
    with place(path) as temporary:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yields a new folder, which takes the place of an older one of that name when it is complete."""
    with place(path) as temporary:
        temporary.mkdir()
        yield temporary
        for file in temporary.rglob("*"):
            sync(file)
        shutil.rmtree(path, ignore_errors=True)
        os.rename(temporary, path)


def sync(path: Path) -> None:
    """Waits until a file or a folder is on disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def append(path: Path, text: str) -> None:
    """Adds to a file; it is on disk when this returns."""
    with place(path) as temporary, open(temporary.parent / os.path.relpath(path, temporary.parent), "a") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    with atomic(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, allow_nan=False))


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise Damaged(path, f"it is no JSON ({error})") from error


def read_yaml(path: Path) -> Any:
    return parse_yaml(path.read_bytes(), path)


def parse_yaml(content: bytes, path: Path) -> Any:
    """Returns the content of a file; `path` says where it was."""
    try:
        return yaml.load(content, YAML_LOADER)
    except yaml.YAMLError as error:
        raise Damaged(path, f"it is no YAML ({str(error).splitlines()[0]})") from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    return parse_lines(path.read_bytes(), path)


def parse_lines(content: bytes, path: Path) -> list[dict[str, Any]]:
    """Return the record of each sealed line, whatever else ends a line in Unicode; refuse lines that were changed.

    Earlier versions wrote no sums: a file in which no line has one is read as it is.
    """
    lines = [line for line in content.split(b"\n") if line]
    if any(seal.has_sum(line) for line in lines):
        lines = [seal.open_json(line, path, "one of its lines") for line in lines]
    try:
        return [json.loads(line) for line in lines]
    except (ValueError, RecursionError) as error:
        raise Damaged(path, f"one of its lines is not JSON ({error})") from error


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a sealed line of JSON for each record."""
    sealed = [seal.close_json(json.dumps(record, allow_nan=False)) for record in records]
    write_text(path, "".join(f"{line}\n" for line in sealed))
