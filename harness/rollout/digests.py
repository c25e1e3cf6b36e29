"""The digest of a model's folder: one hash of its weights, tokenizer and configuration; imports no torch."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Mapping
from pathlib import Path

from harness.base import files, identities
from harness.base.errors import Damaged, Unwritten

SUMS = "sums.json"  # in the folder of a model that was made here: the SHA-256 of each other file
PATTERNS = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
# These files name the version of transformers that wrote them, which changes no result.
VERSIONED = ("config.json", "generation_config.json")
VERSION = "transformers_version"
SHOWN = 12  # digits of a digest in messages and tables

Stamp = tuple[int, int, int]  # size, and times of the last change of content and of metadata
Stamps = tuple[tuple[str, Stamp], ...]  # by the names of files


def model_digest(folder: Path) -> str:
    """Return the digest of a model; read only files that have changed since they were read last."""
    stamps = tuple((path.name, file_stamp(path)) for path in model_files(folder))
    folder = folder.resolve()
    return digest_of_files(folder, checksums_at_stamps(folder, stamps, folder))


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file; read it only if it has changed since it was read last."""
    return checksums_at_stamps(path.parent, ((path.name, file_stamp(path)),), path)[path.name]


def model_files(folder: Path) -> list[Path]:
    """Return the files that define a model, sorted."""
    matching = {path for pattern in PATTERNS for path in folder.glob(pattern)}
    return sorted(path for path in matching if path.is_file() and path.name != SUMS and not path.name.startswith("."))


def file_stamp(path: Path) -> Stamp:
    status = path.stat()
    # The time of the content alone is not enough, since tools that copy files with their times set it to an old one. No
    # tool can set the time of the metadata.
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


@functools.cache
def checksums_at_stamps(folder: Path, stamps: Stamps, what: Path) -> dict[str, str]:
    """Return the checksums of a folder's files that have these stamps, and remember them on disk under `what`."""
    memory = files.default_cache() / "digests" / f"{identities.key(str(what))}.json"
    before = read_noted_checksums(memory)
    after: dict[str, list[int | str]] = {}
    for name, stamp in stamps:
        noted = before.get(name, [])
        checksum = noted[-1] if noted[:-1] == [*stamp] else files.sha256_of(folder / name)
        after[name] = [*stamp, checksum]
    if after != before:
        # A cache that cannot be written is not an error here: the next command reads the files again.
        with contextlib.suppress(Unwritten, NotADirectoryError, FileExistsError):
            files.write_json(memory, after)
    return {name: str(checksum) for name, (*_, checksum) in after.items()}


def read_noted_checksums(memory: Path) -> dict[str, list[int | str]]:
    """Return the remembered stamps and checksums of a folder's files; empty if there are none that can be read."""
    try:
        noted = files.read_json(memory)
    except (FileNotFoundError, NotADirectoryError, Damaged):  # then the model's files are read
        return {}
    return noted if files.has_type(noted, dict[str, list[int | str]]) else {}


def file_checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a model, read now."""
    return files.sums_of(folder, [path.name for path in model_files(folder)])


def digest_of_files(folder: Path, checksums: Mapping[str, str]) -> str:
    """Return the digest of a model whose files have these checksums."""
    parts = dict(checksums)
    for name in VERSIONED:
        if name in parts:
            parts[name] = unversioned((folder / name).read_bytes(), parts[name])
    return identities.hash_of(parts)


def unversioned(content: bytes, checksum: str) -> str:
    """Return the hash of a configuration without the version of its writer; the checksum if it is not JSON."""
    try:
        settings = json.loads(content)
    except ValueError:  # the configuration's reader reports it
        return checksum
    if isinstance(settings, dict):
        settings.pop(VERSION, None)
    return identities.hash_of(settings)


# Models that were made here


def seal_model(folder: Path) -> None:
    """Write the checksums of a model's files into its folder."""
    files.write_json(folder / SUMS, file_checksums(folder))


def model_damage(folder: Path) -> str | None:
    """Return a description of the first file that differs from its checksum; None if the model is intact."""
    try:
        checksums = files.read_json(folder / SUMS)
    except FileNotFoundError:
        return f"{folder / SUMS} is missing"
    except Damaged:
        return f"{folder / SUMS} is damaged"
    present = file_checksums(folder)
    if not isinstance(checksums, dict) or not checksums:
        return f"{folder / SUMS} is damaged"
    for name in sorted(checksums.keys() | present.keys()):
        if name not in present:
            return f"{folder / name} is missing"
        if checksums.get(name) != present[name]:
            return f"{folder / name} has changed since it was made"
    return None
