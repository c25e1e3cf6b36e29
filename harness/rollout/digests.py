"""The digest of a model's folder: its weights, tokenizer and configuration as one hash; imports no torch."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Mapping
from pathlib import Path

from harness.base import files, identities
from harness.base.errors import Damaged, Unwritten
from harness.base.seal import file_sha256

SUMS = "sums.json"  # in the folder of a model that was made here: the SHA-256 of each other file
PATTERNS = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
# These name the version of the library that wrote them, which changes no result.
VERSIONED = ("config.json", "generation_config.json")
VERSION = "transformers_version"
SHOWN = 12  # digits of a digest that people see

Stamp = tuple[int, int, int]  # size, time of the last change of the content, and of the entry


def model_files(folder: Path) -> list[Path]:
    """Return the files that make a model, by name."""
    every = {path for pattern in PATTERNS for path in folder.glob(pattern)}
    return sorted(path for path in every if path.is_file() and path.name != SUMS and not path.name.startswith("."))


def file_checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a model, all of them read now."""
    return {path.name: file_sha256(path) for path in model_files(folder)}


def digest_of_files(folder: Path, known: Mapping[str, str]) -> str:
    """Return the digest of a model whose files have these sums."""
    parts = dict(known)
    for name in VERSIONED:
        if name in parts:
            parts[name] = unversioned((folder / name).read_bytes(), parts[name])
    return identities.digest(parts)


def unversioned(content: bytes, otherwise: str) -> str:
    """Return the hash of a configuration without the version of its writer, or another one if it is not JSON."""
    try:
        settings = json.loads(content)
    except ValueError:  # refused where the configuration is read
        return otherwise
    if isinstance(settings, dict):
        settings.pop(VERSION, None)
    return identities.digest(settings)


def model_digest(folder: Path) -> str:
    """Return the digest of a model, reading only files that were written since they were read last."""
    stamps = tuple((path.name, file_stamp(path)) for path in model_files(folder))
    return digest_at_stamps(folder.resolve(), stamps)


def file_stamp(path: Path) -> Stamp:
    status = path.stat()
    # Tools that copy with times leave an old time of the content; no tool sets the time of the entry.
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


@functools.cache
def digest_at_stamps(folder: Path, stamps: tuple[tuple[str, Stamp], ...]) -> str:
    kept = files.default_cache() / "digests" / f"{identities.key(str(folder))}.json"
    before = read_noted_checksums(kept)
    after = {name: [*when, checksum_at(folder / name, when, before)] for name, when in stamps}
    if after != before:
        with contextlib.suppress(Unwritten, NotADirectoryError, FileExistsError):  # the next command reads them again
            files.write_json(kept, after)
    return digest_of_files(folder, {name: str(each[-1]) for name, each in after.items()})


def checksum_at(path: Path, when: Stamp, before: Mapping[str, list[int | str]]) -> str:
    """Return the sum of a file: the one that was noted at these times, or else one that is read now."""
    *then, known = before.get(path.name, [""])
    return str(known) if then == [*when] else file_sha256(path)


def read_noted_checksums(kept: Path) -> dict[str, list[int | str]]:
    """Return the sums that were noted of a folder with the times of its files; nothing if there are none."""
    try:
        found = files.read_json(kept)
    except (FileNotFoundError, NotADirectoryError, Damaged):  # the files are read instead
        return {}
    whole = isinstance(found, dict) and all(isinstance(each, list) and len(each) == 4 for each in found.values())
    return found if whole else {}


# Of a model that was made here


def seal_model(folder: Path) -> None:
    """Write the sums of a model's files beside them."""
    files.write_json(folder / SUMS, file_checksums(folder))


def model_damage(folder: Path) -> str | None:
    """Return which file of a model is not as it was made, and how; None if all are."""
    try:
        known = files.read_json(folder / SUMS)
    except FileNotFoundError:
        return f"{folder / SUMS} is missing"
    except Damaged:
        return f"{folder / SUMS} is damaged"
    present = file_checksums(folder)
    if not isinstance(known, dict) or not known:
        return f"{folder / SUMS} is damaged"
    changed = [name for name in sorted(known.keys() | present.keys()) if known.get(name) != present.get(name)]
    if not changed:
        return None
    return f"{folder / changed[0]} is not as it was made"
