"""The record of an attempt at a cell: the code, the libraries and the machine that make its numbers; no torch."""

from __future__ import annotations

import dataclasses
import platform
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from harness.base import devices, files, identities
from harness.base.errors import Damaged
from harness.cells.source_digest import harness_digest

FILE = "made.json"
UNPACKED = "unpacked.json"  # only of a cell that comes from a pack
CHECKED_TAG = "checked"  # of its run
BASE_MODEL_TAG, HARNESS_TAG = "model.digest", "code.harness"
VERSION_TAG, ROUNDING_TAG = "version.", "rounding."  # beginnings of tags
COMMIT_DIGITS = 8  # digits of a commit in tables and messages
PACKAGES = ("torch", "transformers", "lm-eval", "math-verify")


@dataclass(frozen=True)
class Made:
    """One attempt at a cell, from step 0 to its end through all interruptions; recorded when it begins."""

    attempt: str
    started: float  # seconds since 1970
    version: str | None  # of entrobench; None if it is not installed
    commit: str | None  # of the repository that the code runs from; None if it is not a git checkout
    dirty: bool | None
    sources: dict[str, str]  # source digests of the components of its method and tasks, by name
    versions: dict[str, str]  # of the libraries that compute
    processor: str
    device: str  # cpu or cuda
    base_model: str | None = None  # the digest of its weights and tokenizer, or its commit on the hub
    harness: str | None = None  # the hash of the source of the harness; None in records of earlier versions
    # Of the hardware, what decides the order of floating-point sums; empty in records of earlier versions.
    rounding: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Made | None:
        """Return the record of the attempt in a cell's folder; None before the first attempt."""
        if not (folder / FILE).exists():
            return None
        return files.read_record(cls, folder / FILE, optional=["base_model", "harness", "rounding"])

    def write(self, folder: Path) -> None:
        files.write_json(folder / FILE, dataclasses.asdict(self))

    def tags(self) -> dict[str, str]:
        """Return the record as the tags of a run; unknown values have no tag."""
        tags = {
            "attempt": self.attempt,
            "code.version": self.version,
            "code.commit": self.commit,
            "code.dirty": None if self.dirty is None else str(self.dirty).lower(),
            HARNESS_TAG: self.harness,
            BASE_MODEL_TAG: self.base_model,
            "processor": self.processor,
            "source": identities.key(self.sources),
        }
        tags |= {f"source.{name}": digest for name, digest in self.sources.items()}
        tags |= {f"{VERSION_TAG}{name}": version for name, version in self.versions.items()}
        tags |= {f"{ROUNDING_TAG}{name}": value for name, value in self.rounding.items()}
        return {key: value for key, value in tags.items() if value is not None}


def begin_attempt(
    folder: Path,
    sources: dict[str, str],
    device: str,
    gpu: str | None,
    packages: Iterable[str] = (),
    *,
    base_model: str | None = None,
    harness: str | None = None,
    rounding: Mapping[str, str] | None = None,
) -> Made:
    """Write the record of a new attempt.

    `gpu`: the name of the device if it is one. `packages`: further ones that compute. `harness`: the hash of its source
    as it was imported; None for the present one. `rounding`: as in the record.
    """
    commit, dirty = checkout(Path(__file__).parents[2])
    versions = {name: known for name in (*PACKAGES, *packages) if (known := package_version(name)) is not None}
    versions["python"] = platform.python_version()
    made = Made(
        attempt=uuid.uuid4().hex,
        started=time.time(),
        version=package_version("entrobench"),
        commit=commit,
        dirty=dirty,
        sources=sources,
        versions=versions,
        processor=gpu or devices.processor(),
        device=device,
        base_model=base_model,
        harness=harness or harness_digest(),
        rounding=dict(rounding or {}),
    )
    made.write(folder)
    return made


def note_runner(folder: Path, runner: str) -> None:
    """Add to the record of the attempt which part of the engine samples, as known once it runs."""
    made = Made.read(folder)
    assert made is not None
    dataclasses.replace(made, rounding=made.rounding | {"runner": runner}).write(folder)


def package_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def checkout(root: Path) -> tuple[str | None, bool | None]:
    """Return the commit of a git checkout, and whether its files differ from it; None outside a checkout."""
    if not (root / ".git").exists():  # git would search the parents: a package may be installed inside another checkout
        return None, None
    # Without optional locks: `git status` would write the index, and get in the way of other git commands.
    git = ["git", "-C", str(root), "--no-optional-locks"]
    try:
        commit = output_of([*git, "rev-parse", "HEAD"])
        changes = output_of([*git, "status", "--porcelain", "--untracked-files=no"])
    except (OSError, subprocess.SubprocessError):
        return None, None
    return commit, bool(changes)


def output_of(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()


# Cells from a pack


def write_mark(folder: Path, mark: str) -> None:
    """Record that a cell comes from a pack, and how far that was verified."""
    files.write_json(folder / UNPACKED, {CHECKED_TAG: mark})


def mark_tags(folder: Path) -> dict[str, str]:
    """Return the tag with the mark of a cell that comes from a pack; none of other cells."""
    path = folder / UNPACKED
    if not path.exists():
        return {}
    record = files.read_json(path)
    if not isinstance(record, dict) or not isinstance(record.get(CHECKED_TAG), str):
        raise Damaged(path, f"it must hold {CHECKED_TAG}")
    return {CHECKED_TAG: record[CHECKED_TAG]}


# The components of a cell


def component_classes(components: Iterable[object], *tables: Mapping[str, type]) -> dict[str, type]:
    """Return the classes of the components by the names that the tables give them."""
    names = {cls: name for table in tables for name, cls in table.items()}
    return {names[type(component)]: type(component) for component in components}


def sources_in(tags: Mapping[str, str]) -> dict[str, str] | None:
    """Return the digests of the source that made a run's numbers; None if no record of it was kept."""
    if "source" not in tags:
        return None
    return {key.removeprefix("source."): tag for key, tag in tags.items() if key.startswith("source.")}
