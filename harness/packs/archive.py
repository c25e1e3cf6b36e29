"""A matrix as one file: a zip of the records of its cells, without weights, with a manifest of their SHA-256 sums.

    manifest.json    format, matrix, protocol, and the size and SHA-256 of matrix.json and of every record
    matrix.json      the expected cells, and how they are compared
    cells.tar.xz     cells/<cell>/: config.yaml, state.json, made.json, metrics.jsonl, sums.json, evals/*.json,
                     samples/*.jsonl

Cells have much in common, such as the base model's answers, and compressing all of them as one stream halves the file.

The comment at the end of the zip is the SHA-256 of all bytes before it. So a file that was cut off, or in which any
byte changed, is refused before anything in it is read. The sums protect against accidents. A person can compute them
again, and then the answers decide: `entrobench verify` judges each of them.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import re
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from harness.base import files
from harness.base.errors import Damaged, UserError
from harness.cells.spec import CellSpec
from harness.packs.protocol import PARTS, Protocol
from harness.terminal.units import plural

SUFFIX = ".zip"
FORMAT = 2
MANIFEST, SUMMARY, CELLS = "manifest.json", "matrix.json", "cells"
RECORDS_FILE = "cells.tar.xz"
RECORDS = ("config.yaml", "state.json", "made.json", "metrics.jsonl", "sums.json", "evals/*.json", "samples/*.jsonl")
# A pack may come from a stranger: no other path is written to disk.
MEMBER = re.compile(
    rf"{CELLS}/[^/\\]+/(config\.yaml|state\.json|made\.json|metrics\.jsonl|sums\.json|evals/[^/\\]+\.json"
    r"|samples/[^/\\]+\.jsonl)"
)
MARK = b"entrobench pack sha256 "
END = len(MARK) + 64
MOST_BYTES = 8 << 30  # of all files in a pack; more is not read, since a small zip may hold any number of zeros
HEADERS = 4096  # bytes of a record's headers in a tar, at most: two blocks, and two more for a long name
BEGAN = (1980, 1, 1, 0, 0, 0)  # the time of every member, so that the same records give the same bytes


@dataclass(frozen=True)
class Pack:
    """A pack whose files were checked and lie in a folder."""

    path: Path
    folder: Path
    manifest: Mapping[str, Any]

    @property
    def matrix(self) -> str:
        name: str = self.manifest["matrix"]
        return name

    @property
    def protocol(self) -> Protocol:
        return Protocol(self.manifest["protocol"]["definition"])

    @property
    def summary(self) -> bytes:
        return (self.folder / SUMMARY).read_bytes()

    @property
    def cells(self) -> list[Path]:
        """The folders of its cells, in order."""
        folder = self.folder / CELLS
        return sorted(folder.iterdir()) if folder.is_dir() else []

    @property
    def digest(self) -> str:
        """The SHA-256 of the file."""
        return files.sha256_of(self.path)


# Writing


def write_pack(path: Path, matrix: str, summary: str, folders: Sequence[Path], protocol: Protocol) -> None:
    """Write the records of cells as one file; the same records give the same bytes."""
    summary_content = summary.encode()
    sums = {SUMMARY: [len(summary_content), hashlib.sha256(summary_content).hexdigest()]}
    sources: dict[str, Path] = {}
    for folder in folders:
        for source in record_paths(folder):
            name = f"{CELLS}/{folder.name}/{source.relative_to(folder).as_posix()}"
            sources[name] = source
            sums[name] = [source.stat().st_size, files.sha256_of(source)]
    manifest = {
        "format": FORMAT,
        "matrix": matrix,
        "protocol": {"name": protocol.name, "definition": protocol.definition},
        "files": dict(sorted(sums.items())),
    }
    if path.exists():
        check_replaceable(path, sums)
    with files.temporary_path(path) as temporary:
        with zipfile.ZipFile(temporary, "w") as archive:
            add_member(archive, MANIFEST, json.dumps(manifest, indent=1).encode())
            add_member(archive, SUMMARY, summary_content)
            add_records(archive, sources)
            archive.comment = bytes(END)  # of the right length, which is part of what is summed
        with open(temporary, "r+b") as file:
            digest = digest_before_end(temporary)
            file.seek(-END, os.SEEK_END)
            file.write(MARK + digest.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


def check_replaceable(path: Path, sums: Mapping[str, Any]) -> None:
    """Refuse to replace a file with answers that the new pack lacks; `sums`: those of the new pack's files.

    It may come from another person under the same name, and be the only copy.
    """
    check_whole(path)
    with zipfile.ZipFile(path) as archive:
        held = checked_manifest(archive.read(MANIFEST), path)["files"]
    lost = set()
    for name, digest in held.items():
        is_result = name.split("/")[2:3] in (["evals"], ["samples"])
        if is_result and sums.get(name) != digest:
            lost.add(name.split("/")[1])
    if lost:
        raise UserError(
            f"{path} holds answers that the new pack lacks, of {plural(len(lost), 'cell')} ({min(lost)}); --out names "
            "another file, or remove this one"
        )


def record_paths(folder: Path) -> list[Path]:
    """Return the records of a cell that a pack holds."""
    paths: list[Path] = []
    for pattern in RECORDS:
        paths += filter(Path.is_file, sorted(folder.glob(pattern)))
    return paths


def add_member(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(member_of(name), content, zipfile.ZIP_DEFLATED, 9)


def member_of(name: str) -> zipfile.ZipInfo:
    """Return the header of a file in the zip, the same on every system and at any time."""
    member = zipfile.ZipInfo(name, BEGAN)
    member.create_system = 3  # Unix
    member.external_attr = 0o644 << 16
    return member


def add_records(archive: zipfile.ZipFile, sources: Mapping[str, Path]) -> None:
    """Add the records of cells, by their names, as one compressed stream."""
    # Records of one kind follow each other: if some are equal in many cells, only the first takes space.
    in_order = sorted(sources, key=lambda name: name.split("/", 2)[::-1])
    with (
        archive.open(member_of(RECORDS_FILE), "w", force_zip64=True) as member,
        lzma.open(member, "wb") as stream,
        tarfile.open(fileobj=stream, mode="w|") as tar,
    ):
        for name in in_order:
            record = tarfile.TarInfo(name)  # as of 1970 and of no user: the same records give the same bytes
            record.size = sources[name].stat().st_size
            with open(sources[name], "rb") as file:
                tar.addfile(record, file)


def digest_before_end(path: Path) -> str:
    """Return the SHA-256 of a file without its last bytes, which are the mark."""
    digest = hashlib.sha256()
    left = path.stat().st_size - END
    with open(path, "rb") as file:
        while left > 0:
            block = file.read(min(left, 1 << 20))
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()


# Reading


@contextmanager
def unpacked(path: Path) -> Iterator[Pack]:
    """Check a pack, and yield it with its files in a temporary folder."""
    check_whole(path)
    with tempfile.TemporaryDirectory(prefix="entrobench-pack-") as folder:
        try:
            yield Pack(path, Path(folder), extracted(path, Path(folder)))
        except UserError as error:
            # The folder is gone when the message is read, and says nothing about the pack.
            error.args = (str(error).replace(f"{folder}/", f"{path}: "),)
            raise


def check_whole(path: Path) -> None:
    """Refuse a file that is not a pack, or of which a byte is missing or changed."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; a pack is a file, which `entrobench pack CONFIG --out FILE` writes")
    if not path.is_file():
        raise UserError(f"the pack {path} is missing; `entrobench pack CONFIG --out FILE` writes one")
    with open(path, "rb") as file:
        begins = file.read(4) == b"PK\x03\x04"  # as every zip with a file in it
        file.seek(max(path.stat().st_size - END, 0))
        end = file.read()
    if not begins:
        raise UserError(f"{path} is not a pack; `entrobench pack CONFIG --out FILE` writes one")
    if not end.startswith(MARK):
        raise Damaged(path, "it does not end with the sum of its bytes: it was cut off or edited, or is another zip")
    if end[len(MARK) :].decode(errors="replace") != digest_before_end(path):
        raise Damaged(path, "it was edited since `entrobench pack` wrote it: its bytes do not fit its sum")


def extracted(path: Path, folder: Path) -> dict[str, Any]:
    """Write the files of a pack into a folder, and return its manifest; refuse files that do not fit it."""
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {member.filename: member.file_size for member in archive.infolist()}
            # The sizes that the zip states: zipfile never reads more of a file than that.
            if sum(sizes.values()) > MOST_BYTES:
                raise Damaged(path, f"its files have more than {MOST_BYTES >> 30} GiB")
            if MANIFEST not in sizes:
                raise Damaged(path, f"it has no {MANIFEST}")
            manifest = checked_manifest(archive.read(MANIFEST), path)
            if sizes.keys() != {MANIFEST, SUMMARY, RECORDS_FILE}:
                raise Damaged(path, f"its files are not {MANIFEST}, {SUMMARY} and {RECORDS_FILE}")
            summary = archive.read(SUMMARY)
            check_sum(path, SUMMARY, summary, manifest)
            (folder / SUMMARY).write_bytes(summary)
            extract_records(archive, path, folder, manifest)
    except (
        *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, tarfile.TarError),
        *(NotImplementedError, RuntimeError, EOFError, OSError),
    ) as error:
        if reason := files.unwritten(error):
            raise UserError(
                f"{path} cannot be opened in {folder.parent}: {reason}; set TMPDIR to another folder"
            ) from error
        raise Damaged(path, f"it is not a zip that `entrobench pack` writes ({error})") from error
    return manifest


def extract_records(archive: zipfile.ZipFile, path: Path, folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the records of the cells into a folder; refuse any that are not exactly those of the manifest."""
    sums = manifest["files"]
    expected = sums.keys() - {SUMMARY}
    most = sum(size for size, _ in sums.values()) + HEADERS * len(sums) + tarfile.RECORDSIZE
    if most > MOST_BYTES:
        raise Damaged(path, f"its records have more than {MOST_BYTES >> 30} GiB")
    found = set()
    with (
        archive.open(RECORDS_FILE) as member,
        lzma.open(member) as stream,
        tarfile.open(fileobj=io.BufferedReader(Bounded(stream, most)), mode="r|") as tar,
    ):
        for record in tar:
            if not MEMBER.fullmatch(record.name):
                raise Damaged(path, f"it holds {record.name!r}, which is not a record of a cell")
            file = tar.extractfile(record)
            if record.name not in expected or file is None:
                raise Damaged(path, f"its {MANIFEST} names no file {record.name}")
            content = file.read()
            check_sum(path, record.name, content, manifest)
            target = folder / record.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            found.add(record.name)
    if found != expected:
        raise Damaged(path, f"it lacks {min(expected - found)}, which its {MANIFEST} names")


class Bounded(io.RawIOBase):
    """A stream from which only so much can be read: a small file may unpack to any number of bytes."""

    def __init__(self, stream: IO[bytes], most: int) -> None:
        self.stream, self.left = stream, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self.stream.read(len(buffer))
        self.left -= len(content)
        if self.left < 0:
            raise tarfile.ReadError("its records are longer than its manifest says")
        buffer[: len(content)] = content
        return len(content)


def check_sum(path: Path, name: str, content: bytes, manifest: Mapping[str, Any]) -> None:
    """Refuse a file of a pack whose size or SHA-256 is not the one in the manifest."""
    if [len(content), hashlib.sha256(content).hexdigest()] != manifest["files"][name]:
        raise Damaged(path, f"{name} in it does not fit its sum")


def checked_manifest(content: bytes, path: Path) -> dict[str, Any]:
    """Return a manifest; refuse one of another format, or without a part."""
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(path, f"its {MANIFEST} is not JSON ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise Damaged(path, f"its {MANIFEST} is not of format {FORMAT}, which this version of entrobench reads")
    protocol, sums = manifest.get("protocol"), manifest.get("files")
    if not isinstance(protocol, dict) or not isinstance(sums, dict) or SUMMARY not in sums:
        raise Damaged(path, f"its {MANIFEST} must hold matrix, protocol and files, with {SUMMARY} among them")
    definition = protocol.get("definition")
    if not isinstance(definition, dict) or not set(PARTS) <= definition.keys():
        raise Damaged(path, f"the definition of its protocol must hold {', '.join(PARTS)}")
    if protocol.get("name") != Protocol(definition).name:
        raise Damaged(path, "the hash of its protocol does not follow from its definition")
    if not isinstance(manifest.get("matrix"), str):
        raise Damaged(path, f"its {MANIFEST} names no matrix")
    return manifest


def specs_of(pack: Pack) -> dict[Path, CellSpec]:
    """Return the records of all cells of a pack, by their folders."""
    return {folder: CellSpec.read(folder) for folder in pack.cells}
