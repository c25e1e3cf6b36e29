"""Files that exist in full or not at all, even if the process is killed while it writes."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from hashlib import file_digest
from io import BufferedReader
from pathlib import Path
from types import UnionType
from typing import IO, Any, TypeVar, get_args, get_origin, get_type_hints

import yaml

from harness.base import seal
from harness.base.errors import Damaged, Taken, Unwritten, UserError

T = TypeVar("T")
# Of YAML files of ours, at most: values, and levels of lists and mappings. Bytes that hold too few levels to matter.
MOST_VALUES, DEEPEST, SHALLOW = 100_000, 100, 10_000
LONGEST_LINE = 64 << 20  # bytes: eight times 64 answers of 32,000 tokens to one problem
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is ten times as fast, but optional


def default_cache() -> Path:
    """Return the folder that keeps models and problem sets."""
    if folder := os.environ.get("ENTROBENCH_CACHE"):
        if Path(folder).is_file():
            raise UserError(f"ENTROBENCH_CACHE is {folder!r}, which is a file; it must name a folder")
        return Path(folder)
    try:
        return Path.home() / ".cache" / "entrobench"
    except RuntimeError as error:  # HOME is not set, and the system has no entry for the user
        raise UserError("this user has no home folder, where models are kept; set ENTROBENCH_CACHE") from error


def make_cache_folder(folder: Path) -> None:
    """Make a folder in the cache; raise UserError where that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the cache {folder} cannot be written ({error.strerror}); set ENTROBENCH_CACHE") from error


TEMPORARY = re.compile(r"\..+\.(\d+)")  # a file that is being written, with the id of the process that writes it

# The lease's directory of each cell that this process holds, by the cell's folder: files of a cell are written there
# before they are put in place (cells/lease.py says why). This is global on purpose. A lease belongs to a process, and
# every write into the cell's folder must go through it, from any thread and from inside any library. If the lease were
# an argument, one call that lacks it would write past the fence unnoticed; a context variable would not reach threads.
lease_dirs: dict[Path, Path] = {}


@contextlib.contextmanager
def temporary_path(path: Path, writer: int | None = None) -> Iterator[Path]:
    """Yield the path of a temporary file or folder, which the caller renames to `path`; it is removed after an error.

    `writer`: the process id in its name, if several processes write one folder together. Raises Taken if
    another process has taken over the cell.
    """
    # The folder of the cell that the file belongs to, if this process holds that cell.
    folder = next((folder for folder in lease_dirs if folder in path.parents), path.parent)
    directory = lease_dirs.get(folder, folder)
    temporary = directory / f".{path.name}.{writer or os.getpid()}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
    except BaseException as error:
        remove_path(temporary)
        if isinstance(error, FileNotFoundError) and folder.exists() and not directory.exists():
            raise Taken(folder) from error
        if reason := unwritten(error):
            raise Unwritten(path, reason) from error
        raise


def unwritten(error: BaseException) -> str | None:
    """Return the reason if an error says that a place cannot be written to; None for all other errors."""
    known = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
    if isinstance(error, OSError) and error.errno in known:
        return os.strerror(error.errno)
    return None


def check_folder(folder: Path, what: str, *, make: bool = False) -> None:
    """Refuse a folder in which nothing can be written; `what`: to be written; `make`: a missing folder is made."""
    present = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
    if not present.is_dir():
        reason = f"{present} is not a folder"
    elif present != folder and not make:
        reason = f"the folder {folder} does not exist; make it first"
    elif not os.access(present, os.W_OK | os.X_OK):
        reason = f"the folder {present} is read-only; name another"
    else:
        return
    raise UserError(f"{what} cannot be written: {reason}")


def remove_path(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def sweep(folder: Path) -> None:
    """Remove the half-written files of killed processes from a folder; no other process may be writing there now."""
    for path in folder.glob(".*"):
        if TEMPORARY.fullmatch(path.name):
            remove_path(path)


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that takes the place of `path` when it is complete and on disk."""
    with temporary_path(path) as temporary:
        with open(temporary, "wb") as file:
            yield file
            # Before the rename: after a power failure the new name must not belong to a file without its content.
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder, which takes the place of an older one of that name when it is complete."""
    with temporary_path(path) as temporary:
        temporary.mkdir()
        yield temporary
        readable = usual_mode(temporary)
        for file in temporary.rglob("*"):
            if file.is_file():
                file.chmod(file.stat().st_mode | readable)  # safetensors lets only the owner read what it writes
            flush_to_disk(file)
        flush_to_disk(temporary)
        # A rename replaces only an empty folder. After a kill in between there is none, and the caller makes it again.
        shutil.rmtree(path, ignore_errors=True)
        os.rename(temporary, path)
        flush_to_disk(path.parent)  # else a crash may leave the old name, or none


def usual_mode(folder: Path) -> int:
    """Return the permissions of a new file in a folder, which the user's umask decides."""
    # By a file: os.umask can be read only by setting it, for all threads.
    probe = folder / ".mode"
    probe.touch()
    mode = probe.stat().st_mode & 0o777
    probe.unlink()
    return mode


def flush_to_disk(path: Path) -> None:
    """Wait until a file or a folder is on disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def append_text(path: Path, text: str) -> None:
    """Append to a file; the text is on disk when this returns."""
    with temporary_path(path) as temporary:
        # Through the lease's directory: after another process has removed that, the file can no longer be opened.
        through_lease = temporary.parent / os.path.relpath(path, temporary.parent)
        with open(through_lease, "a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


def sha256_of(path: Path) -> str:
    with open_record(path) as file:
        return file_digest(file, "sha256").hexdigest()


def sums_of(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of files in a folder, by their names."""
    return {name: sha256_of(folder / name) for name in names}


def write_text(path: Path, text: str) -> None:
    with atomic(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, allow_nan=False))


def open_record(path: Path | str) -> BufferedReader:
    """Open a file for reading; refuse a pipe or a device in its place, which may have no end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise Damaged(Path(path), "it is not a file")
    return open(path, "rb")


def read_bytes(path: Path) -> bytes:
    with open_record(path) as file:
        return file.read()


def read_present(path: Path) -> bytes:
    """Return the content of a file that must be there."""
    try:
        return read_bytes(path)
    except FileNotFoundError:
        raise Damaged(path, "it is missing") from None


def parsed_json(content: bytes, path: Path, what: str = "it") -> Any:
    """Return the value of JSON; raise Damaged if it is none. `what`: the part of the file, for the message."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(path, f"{what} is not JSON ({error})") from error


def read_json(path: Path) -> Any:
    return parsed_json(read_bytes(path), path)


def write_sealed(path: Path, record: Mapping[str, Any]) -> None:
    write_text(path, seal.close_json(json.dumps(record, allow_nan=False)))


def read_sealed(path: Path) -> Any:
    """Return the content of a sealed file of JSON; refuse one that is missing or was changed."""
    return parsed_json(seal.open_json(read_present(path), path), path)


@cache  # a matrix has thousands of settings and records of one kind
def hints_of(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields."""
    return get_type_hints(kind)


def read_record(kind: type[T], path: Path, optional: Collection[str] = ()) -> T:
    """Return the dataclass that a file of JSON holds; refuse missing or unknown fields, and values of other types."""
    fields: type = kind
    record, hints = read_json(path), hints_of(fields)
    needed = [name for name in hints if name not in optional]
    if not isinstance(record, dict) or not set(needed) <= record.keys() <= hints.keys():
        raise Damaged(path, f"it must hold {', '.join(needed)}")
    if wrong := wrong_fields(fields, record):
        raise Damaged(path, f"{', '.join(wrong)} is not what it must be")
    return kind(**record)


def wrong_fields(kind: type, record: Mapping[str, Any]) -> list[str]:
    """Return the keys of a record whose values are not of the types that the fields of a dataclass have."""
    hints = hints_of(kind)
    return [name for name, value in record.items() if not has_type(value, hints[name])]


def has_type(value: Any, hint: Any) -> bool:
    """Return whether a value of JSON has a type; a number must be finite or fit 64 bits, and a truth value is none."""
    arguments = get_args(hint)
    if isinstance(hint, UnionType):
        return any(has_type(value, each) for each in arguments)
    if get_origin(hint) in (dict, Mapping):
        return isinstance(value, dict) and all(has_type(each, arguments[1]) for each in value.values())
    if get_origin(hint) in (list, Sequence):
        return isinstance(value, list) and all(has_type(each, arguments[0]) for each in value)
    if hint is int:
        return type(value) is int and abs(value) < 1 << 63  # as tables and databases hold it
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)
    return hint is Any or type(value) is hint


def parse_yaml(content: bytes, path: Path) -> Any:
    """Parse the content of a file; `path` is named in errors.

    Earlier versions wrote aliases, each of which repeats a value. A few of them can repeat it without bound.
    """
    loader = YAML_LOADER(content)
    try:
        if len(content) > SHALLOW and is_too_deep(content):
            raise Damaged(path, f"it has more than {DEEPEST} levels")
        node = loader.get_single_node()
        if node is not None and number_of_values(node, {}) > MOST_VALUES:
            raise Damaged(path, f"it holds more than {MOST_VALUES} values, most of them repeated by aliases")
        return None if node is None else loader.construct_document(node)
    except Damaged:
        raise
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # the last of an impossible date or an endless number
        raise Damaged(path, f"it is not YAML ({(str(error) or 'endless').splitlines()[0]})") from error
    finally:
        loader.dispose()


def is_too_deep(content: bytes) -> bool:
    """Return whether YAML has more levels than the C loader, which crashes on too many, can read."""
    depth = 0
    for event in yaml.parse(content, YAML_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            return True
    return False


def number_of_values(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of values in a node, with those that aliases repeat; `known`: of nodes that were counted."""
    if id(node) not in known:
        known[id(node)] = MOST_VALUES + 1  # until it is counted: a value that contains itself has no end
        children: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        known[id(node)] = 1 + sum(number_of_values(child, known) for child in children)
    return known[id(node)]


def read_lines(path: Path) -> list[dict[str, Any]]:
    return parse_lines(read_bytes(path), path)


def parse_lines(content: bytes, path: Path) -> list[dict[str, Any]]:
    """Return the record of each sealed line, and refuse a line that was changed.

    Other line ends of Unicode are part of a value. Earlier versions wrote no sums: a file without any is read as it is.
    """
    lines = [line for line in content.split(b"\n") if line]
    sealed = any(seal.has_sum(line) for line in lines)
    return [parse_line(line, path, sealed=sealed) for line in lines]


def stream_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file like `parse_lines`, one in memory at a time."""
    sealed = False
    with open_record(path) as file:
        for line in iter(partial(file.readline, LONGEST_LINE), b""):
            content = line.rstrip(b"\n")
            sealed |= seal.has_sum(content)
            yield parse_line(content, path, sealed=sealed)


def parse_line(line: bytes, path: Path, *, sealed: bool = True) -> Any:
    """Return the record of a line; refuse one that was changed since it was written."""
    what = "one of its lines"
    return parsed_json(seal.open_json(line, path, what) if sealed else line, path, what)


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a sealed line of JSON for each record."""
    sealed = [seal.close_json(json.dumps(record, allow_nan=False)) for record in records]
    write_text(path, "".join(f"{line}\n" for line in sealed))
