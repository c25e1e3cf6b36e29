"""A matrix as one file: a zip of the records of its cells, without weights, with a manifest of their SHA-256 sums.

    manifest.json    format, matrix, protocol, and the size and SHA-256 of matrix.json and of every record
    matrix.json      the expected cells, and how they are compared
    cells.tar.xz     cells/<cell>/: config.yaml, state.json, made.json, metrics.jsonl, sums.json, evals/*.json,
                     samples/*.jsonl

A slim pack has `columns.jsonl.xz` in place of the last one (slim.py). Cells have much in common, such as the base
model's answers, and compressing all of them as one stream halves the file.

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
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from harness.base import files, seal
from harness.base.errors import Damaged, UserError, root_cause
from harness.cells import evaluations
from harness.config import flat
from harness.packs import slim
from harness.packs.protocol import PARTS, Protocol
from harness.table.board import Board

SUFFIX = ".zip"
FORMAT = 2
MANIFEST, SUMMARY, CELLS = "manifest.json", "matrix.json", "cells"
RECORDS_FILE, COLUMNS_FILE = "cells.tar.xz", "columns.jsonl.xz"
RECORDS = ("config.yaml", "state.json", "made.json", "metrics.jsonl", "sums.json", "evals/*.json", "samples/*.jsonl")
# A pack may come from a stranger: no other path is written to disk.
NAMES = "|".join(re.escape(pattern).replace(r"\*", r"[^/\\]+") for pattern in RECORDS)
MEMBER = re.compile(rf"{CELLS}/(?!\.{{1,2}}/)[^/\\]+/({NAMES})")
BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, tarfile.TarError, RuntimeError, EOFError, OSError, ValueError)
BLOCK = 1 << 16  # bytes that are read at once
HEADERS = 4096 + 2 * tarfile.RECORDSIZE  # bytes between two records of a tar, with those that tarfile reads ahead
# A small file may hold any number of zeros, and a stranger states any protocol: so the bounds follow from the bytes of
# the pack. They are some ten times what honest packs have, and nothing is read beyond them.
MOST_BYTES, RATIO = 8 << 30, 1000  # of all records, which are read by line: 22 times the pack in ours
MOST_READ, RATIO_READ = 256 << 20, 100  # of what is read at once: JSON may take 24 times its bytes; 9 times in ours
MOST_TEXT = 16 << 20  # of manifest.json and matrix.json
MOST_KEYS = 1000  # of a protocol, which each cell is compared with; 40 in ours
FREE = 1 << 20  # that every pack may have
MOST_DICTIONARY = 100 << 20  # of xz: a header may ask for 4 GiB, and that of our presets has 8 or 64 MiB
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "pb": 0}]  # of text: no byte is aligned
BEGAN = (1980, 1, 1, 0, 0, 0)  # the time of every member, so that the same records give the same bytes


@dataclass(frozen=True)
class Pack:
    """A pack whose files were checked and lie in a folder."""

    path: Path
    folder: Path
    manifest: Mapping[str, Any]
    board: Board  # its expected cells

    @property
    def matrix(self) -> str:
        return str(self.manifest["matrix"])

    @property
    def protocol(self) -> Protocol:
        return Protocol(self.manifest["protocol"]["definition"])

    @property
    def cells(self) -> list[Path]:
        """The folders of its cells, in order."""
        return sorted((self.folder / CELLS).glob("*"))

    @property
    def digest(self) -> str:
        """The SHA-256 of the file."""
        return files.sha256_of(self.path)


# Writing


def write_pack(
    path: Path, matrix: str, summary: str, folders: Sequence[Path], protocol: Protocol, *, slim_form: bool = False
) -> None:
    """Write the records of cells as one file; the same records give the same bytes."""
    sums = {SUMMARY: entry_of(summary.encode())}
    sources: dict[str, Path] = {}
    columns = b""
    if slim_form:
        lines = [json.dumps(column, separators=(",", ":")) + "\n" for column in slim.slim_columns(folders).items()]
        columns = "".join(lines).encode()
        sums[COLUMNS_FILE] = entry_of(columns)
    else:
        for folder in folders:
            place = f"{CELLS}/{folder.name}"
            records = [path for pattern in RECORDS for path in folder.glob(pattern) if path.is_file()]
            sources |= {f"{place}/{path.relative_to(folder).as_posix()}": path for path in records}
        sums |= {name: entry_of_file(source) for name, source in sources.items()}
    manifest = {
        "format": FORMAT,
        "matrix": matrix,
        "protocol": {"name": protocol.name, "definition": protocol.definition},
        "files": dict(sorted(sums.items())),
    }
    if path.exists():
        check_replaceable(path, sums, folders)
    with files.temporary_path(path) as temporary:
        with zipfile.ZipFile(temporary, "w") as archive:
            add_member(archive, MANIFEST, json.dumps(manifest, indent=1).encode())
            add_member(archive, SUMMARY, summary.encode())
            if slim_form:
                archive.writestr(member_of(COLUMNS_FILE), lzma.compress(columns, lzma.FORMAT_XZ, filters=FILTERS))
            else:
                add_records(archive, sources, sums)
            archive.comment = bytes(seal.FILE_LENGTH)  # of the right length, which is part of what is summed
        seal.close_file(temporary)
        os.replace(temporary, path)


def check_replaceable(path: Path, sums: Mapping[str, Any], folders: Sequence[Path]) -> None:
    """Refuse to replace a file with answers that the new pack lacks; `sums`: those of the new pack's files.

    It may come from another person under the same name, and be the only copy.
    """
    check_whole(path)
    with opened_zip(path) as archive:
        kept = checked_manifest(read_text(archive, MANIFEST, path), path)["files"]
    if COLUMNS_FILE in kept:  # one file, which changes with each cell that is added
        with unpacked(path) as pack:
            kept, sums = evaluations_of(pack.cells), evaluations_of(folders)
    for name, entry in sorted(kept.items()):
        if name.split("/")[2:3] in (["evals"], ["samples"]) and sums.get(name) != entry:
            raise UserError(
                f"{path} holds answers that the new pack lacks ({name}); --out names another file, or remove this one"
            )


def evaluations_of(folders: Iterable[Path]) -> dict[str, Any]:
    """Return the evaluations of cells as a slim pack has them, by their names in a whole one."""
    return {
        f"{CELLS}/{folder.name}/{evaluations.FOLDER}/{path.name}": slim.slim_evaluation(path, record)
        for folder in folders
        for path, record in evaluations.all_evaluations(folder)
    }


def add_member(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(member_of(name), content, zipfile.ZIP_DEFLATED, 9)


def member_of(name: str) -> zipfile.ZipInfo:
    """Return the header of a file in the zip, the same on every system and at any time."""
    member = zipfile.ZipInfo(name, BEGAN)
    member.create_system = 3  # Unix
    member.external_attr = 0o644 << 16
    return member


def add_records(archive: zipfile.ZipFile, sources: Mapping[str, Path], sums: Mapping[str, list[Any]]) -> None:
    """Add the records of cells, by their names, as one compressed stream; refuse records that no longer fit `sums`."""
    # Records of one kind follow each other: if some are equal in many cells, only the first takes space.
    in_order = sorted(sources, key=lambda name: name.split("/", 2)[::-1])
    with (
        archive.open(member_of(RECORDS_FILE), "w", force_zip64=True) as member,
        lzma.open(member, "wb") as stream,
        tarfile.open(fileobj=stream, mode="w|") as tar,
    ):
        for name in in_order:
            record = tarfile.TarInfo(name)  # as of 1970 and of no user: the same records give the same bytes
            with open(sources[name], "rb") as file:
                record.size = os.fstat(file.fileno()).st_size  # of this one: another may take its place
                tar.addfile(record, file)
            if entry_of_file(sources[name]) != sums[name]:
                raise UserError(f"{sources[name]} changed while it was packed; pack again when its cell has ended")


# Reading


@contextmanager
def unpacked(path: Path) -> Iterator[Pack]:
    """Check a pack, and yield it with its files in a temporary folder."""
    check_whole(path)
    with ExitStack() as deletion:
        folder = Path(tempfile.mkdtemp(prefix="entrobench-pack-"))
        for _ in range(2):  # a signal may stop the first deletion
            deletion.callback(files.remove_path, folder)
        try:
            manifest = extracted(path, folder)
            yield Pack(path, folder, manifest, read_board(path, folder))
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
    if not begins:
        raise UserError(f"{path} is not a pack; `entrobench pack CONFIG --out FILE` writes one")
    seal.check_file(path)


@contextmanager
def opened_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open the zip of a pack; refuse one that cannot be read, or whose files cannot be written."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except BROKEN as error:
        if reason := files.unwritten(root_cause(error)):
            raise UserError(
                f"{path} cannot be opened in {tempfile.gettempdir()}: {reason}; set TMPDIR to another folder"
            ) from error
        if isinstance(error, UserError):
            raise
        raise Damaged(path, f"it is not a zip that `entrobench pack` writes ({error})") from error


def extracted(path: Path, folder: Path) -> dict[str, Any]:
    """Write the files of a pack into a folder, and return its manifest; refuse files that do not fit it."""
    with opened_zip(path) as archive:
        manifest = checked_manifest(read_text(archive, MANIFEST, path), path)
        records = COLUMNS_FILE if COLUMNS_FILE in manifest["files"] else RECORDS_FILE
        if {member.filename for member in archive.infolist()} != {MANIFEST, SUMMARY, records}:
            raise Damaged(path, f"its files are not {MANIFEST}, {SUMMARY} and {records}")
        summary = read_text(archive, SUMMARY, path)
        check_sum(path, SUMMARY, entry_of(summary), manifest)
        (folder / SUMMARY).write_bytes(summary)
        with archive.open(records) as member:
            extract = extract_columns if records == COLUMNS_FILE else extract_records
            extract(Unpacking(member), path, folder, manifest)
    return manifest


def read_board(path: Path, folder: Path) -> Board:
    """Return the expected cells of a pack whose files lie in a folder."""
    try:
        return Board.of_json((folder / SUMMARY).read_bytes())
    except UserError as error:
        raise Damaged(path, f"its {SUMMARY} was not written by this version of entrobench") from error


def read_text(archive: zipfile.ZipFile, name: str, path: Path) -> bytes:
    """Return one of the two small files of a pack; refuse one that is too large for what it is."""
    try:
        member = archive.getinfo(name)
    except KeyError:
        raise Damaged(path, f"it has no {name}") from None
    check_bytes(path, name, member.file_size, min(MOST_TEXT, most_read(path)))
    return archive.read(name)  # never more than the stated size


def most_read(path: Path) -> int:
    """Return the largest size of what is read at once from a pack."""
    return min(MOST_READ, RATIO_READ * path.stat().st_size + FREE)


def check_bytes(path: Path, name: str, size: int, most: int) -> None:
    """Refuse a file in a pack that is larger than it may be."""
    if size > most:
        raise Damaged(path, f"{name} in it has {size:,} bytes, more than a pack of its size may hold")


def extract_records(stream: Unpacking, path: Path, folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the records of the cells into a folder; refuse any that are not exactly those of the manifest."""
    sums = {name: entry for name, entry in manifest["files"].items() if name != SUMMARY}
    most_bytes = min(MOST_BYTES, RATIO * path.stat().st_size + FREE)
    check_bytes(path, RECORDS_FILE, sum(size for size, _ in sums.values()), most_bytes)
    for name, (size, _) in sums.items():
        if not MEMBER.fullmatch(name):
            raise Damaged(path, f"it holds {name!r}, which is not a record of a cell")
        if "/samples/" not in name:  # which are read by line
            check_bytes(path, name, size, most_read(path))
    left = set(sums)
    stream.left = HEADERS
    with tarfile.open(fileobj=io.BufferedReader(stream), mode="r|") as tar:
        for record in tar:
            file = tar.extractfile(record)
            if record.name not in left or file is None or record.size != sums[record.name][0]:
                raise Damaged(path, f"{record.name!r} in it is not the record that its {MANIFEST} names")
            stream.left = record.size + HEADERS
            target = folder / record.name
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "wb") as copy:
                shutil.copyfileobj(file, copy, BLOCK)
            check_sum(path, record.name, entry_of_file(target), manifest)
            left.remove(record.name)
    if left:
        raise Damaged(path, f"it lacks {min(left)}, which its {MANIFEST} names")


def extract_columns(stream: Unpacking, path: Path, folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the records of slim cells into a folder."""
    size = manifest["files"][COLUMNS_FILE][0]
    check_bytes(path, COLUMNS_FILE, size, most_read(path))
    stream.left = size
    seen = hashlib.sha256()

    def columns() -> Iterator[tuple[str, dict[str, Any]]]:
        for line in io.BufferedReader(stream):
            seen.update(line)
            name, by_cell = json.loads(line)
            if not all(MEMBER.fullmatch(f"{CELLS}/{cell}/state.json") for cell in by_cell):
                raise Damaged(path, f"a cell in its column {name!r} has no name of a folder")
            yield name, by_cell

    try:
        slim.write_cells(columns(), folder / CELLS, most_answers=most_read(path))
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise Damaged(path, f"its columns are not those of cells ({type(error).__name__}: {error})") from error
    check_sum(path, COLUMNS_FILE, [size, seen.hexdigest()], manifest)


class Unpacking(io.RawIOBase):
    """The content of an xz stream, from which only as much can be read as was allowed."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.left = 0  # bytes that may be read from here on
        self.xz = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MOST_DICTIONARY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = b""
        while not content and not self.xz.eof:
            block = self.stream.read(BLOCK) if self.xz.needs_input else b""
            if self.xz.needs_input and not block:
                raise EOFError("its records end early")
            content = self.xz.decompress(block, len(buffer))
        self.left -= len(content)
        if self.left < 0:
            raise tarfile.ReadError("its records are longer than its manifest says")
        buffer[: len(content)] = content
        return len(content)


def entry_of(content: bytes) -> list[Any]:
    """Return the size and the SHA-256 of a file's content, as a manifest has them."""
    return [len(content), hashlib.sha256(content).hexdigest()]


def entry_of_file(path: Path) -> list[Any]:
    return [path.stat().st_size, files.sha256_of(path)]


def check_sum(path: Path, name: str, present: list[Any], manifest: Mapping[str, Any]) -> None:
    """Refuse a file of a pack whose size and SHA-256 are not those in the manifest."""
    if present != manifest["files"][name]:
        raise Damaged(path, f"{name} in it does not fit its sum")


def checked_manifest(content: bytes, path: Path) -> dict[str, Any]:
    """Return a manifest; refuse one of another format, or without a part."""
    manifest = files.parsed_json(content, path, f"its {MANIFEST}")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise Damaged(path, f"its {MANIFEST} is not of format {FORMAT}, which this version of entrobench reads")
    protocol, sums = manifest.get("protocol"), manifest.get("files")
    if not isinstance(protocol, dict) or not isinstance(sums, dict) or SUMMARY not in sums:
        raise Damaged(path, f"its {MANIFEST} must hold matrix, protocol and files, with {SUMMARY} among them")
    definition = protocol.get("definition")
    if not isinstance(definition, dict) or not set(PARTS) <= definition.keys():
        raise Damaged(path, f"the definition of its protocol must hold {', '.join(PARTS)}")
    if (keys := len([*flat(definition)])) > MOST_KEYS:
        raise Damaged(path, f"the definition of its protocol has {keys:,} keys, more than a protocol may have")
    if not files.has_type(definition["seeds"], list[int]):
        raise Damaged(path, "the seeds of its protocol are not a list of numbers")
    if protocol.get("name") != Protocol(definition).name:
        raise Damaged(path, "the hash of its protocol does not follow from its definition")
    for entry in sums.values():
        if not isinstance(entry, list) or [*map(type, entry)] != [int, str] or entry[0] < 0:
            raise Damaged(path, f"its {MANIFEST} must hold the size and the SHA-256 of every file")
    if not isinstance(manifest.get("matrix"), str):
        raise Damaged(path, f"its {MANIFEST} names no matrix")
    return manifest
