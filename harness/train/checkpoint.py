"""The checkpoints of a cell: written during training by all ranks, and read by any number of them.

A folder `step-000020` holds the tensors in safetensors files, by torch.distributed.checkpoint (each rank writes its
shards; nothing is pickled), everything else as JSON, and, sealed, the SHA-256 sums of these files with their cell and
step. It gets its name when all of that is on disk. While a cell trains the newest two are kept, or as many as its
configuration says: if by its sums the newest one is damaged, or another cell's, the one before it is used.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException

from harness import ranks
from harness.base import files
from harness.base.errors import CellFailure, Damaged
from harness.cells import checksums
from harness.config import Checkpoint
from harness.train.weights import fill

PIECE = 2**28  # bytes of one file, which is in memory once more while it is written
REST, ROWS = "rest.json", "rest.safetensors"


@dataclass(frozen=True)
class SavedCheckpoint:
    """A whole checkpoint on disk."""

    path: Path
    step: int
    names: list[str]  # of its tensors
    rest: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> SavedCheckpoint:
        rows = load_file(path / ROWS)

        def unpacked(value: dict[str, Any]) -> Any:
            """Return a tensor for its reference, and a mapping for one in a list, as `packed_state` wrote them."""
            if value.keys() != {"rows"}:
                return value
            inner = value["rows"]
            return {"rows": inner[0]} if isinstance(inner, list) else rows[inner]

        return cls(path, **json.loads((path / REST).read_bytes(), object_hook=unpacked))

    def of(self, who: str) -> set[str]:
        """Return the names of one learner's tensors."""
        return {name.removeprefix(f"{who}.") for name in self.names if name.startswith(f"{who}.")}

    def fill(self, who: str, tensors: Mapping[str, Tensor]) -> None:
        """Read one learner's tensors into the given ones; of shards only this rank's rows."""
        fill({f"{who}.{name}": x for name, x in tensors.items()}, self.path)


class NoneWhole(CellFailure):
    """The failure of a cell whose checkpoints are all damaged, or another cell's."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"no checkpoint in {folder} is whole; remove that folder to begin from the start")


class Checkpoints:
    """The checkpoints of a cell; every method is a collective."""

    def __init__(self, folder: Path, cell: str, kept: int = Checkpoint.keep) -> None:
        self.folder, self.cell, self.kept, self.group = folder, cell, kept, ranks.apart()
        self.writer = ranks.of_first(os.getpid())  # all ranks write into one temporary folder, which has it in its name
        self.known: Path | None = None  # the one that `newest` found, until another is saved
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.writing: tuple[int, Future[None]] | None = None

    def save(self, step: int, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
        """Copy a state, and begin to write the copy in a thread; `written` says when it is on disk."""
        assert self.writing is None
        self.known = None
        rows: dict[str, Tensor] = {}  # the tensors of `rest`, which `packed_state` adds
        text = json.dumps({"step": step, "names": list(tensors), "rest": packed_state(rest, rows)})
        copies = {name: ranks.on_cpu(x) for name, x in tensors.items()}  # training goes on, and changes the originals
        self.writing = step, self.thread.submit(self._write, step, copies, text, rows)

    def written(self, *, wait: bool) -> int | None:
        """Return the step of a finished checkpoint, once; None otherwise. Errors of the thread are raised here."""
        if self.writing is None or not (wait or self.writing[1].done()):
            return None
        (step, future), self.writing = self.writing, None
        future.result()
        return step

    def _write(self, step: int, tensors: dict[str, Tensor], text: str, rows: dict[str, Tensor]) -> None:
        path = self.folder / checksums.step_folder_name(step)
        with files.temporary_path(path, self.writer) as partial:
            writer = HuggingFaceStorageWriter(str(partial), in_files(tensors), save_distributed=True)
            try:
                dcp.save(tensors, storage_writer=writer, process_group=self.group)
            except CheckpointException as error:  # derived from BaseException
                cause, _ = next(iter(error.failures.values()))
                raise cause from error
            # Each rank reads its own files again, and no other: the writer numbers them by the rank, from 1.
            own_shards = partial.glob(f"shard-{ranks.own_rank() + 1:05d}-*")
            own_sums = files.sums_of(partial, [file.name for file in own_shards])
            sums = {name: digest for of_rank in ranks.each(own_sums, self.group) for name, digest in of_rank.items()}
            if ranks.own_rank() == 0:
                with files.atomic(partial / ROWS) as rows_file:
                    rows_file.write(save(rows))
                files.write_text(partial / REST, text)
                self.publish(partial, step, sums | files.sums_of(partial, [ROWS, REST]))

    def publish(self, folder: Path, step: int, sums: Mapping[str, str]) -> None:
        """Seal the folder of a checkpoint, and give it its name."""
        path = self.folder / checksums.step_folder_name(step)
        path.parent.mkdir(exist_ok=True)
        checksums.write_seal(folder, self.cell, step, sums)
        # Both syncs are needed: without the first, a crash may leave the name with files missing; without the second, a
        # checkpoint that was announced as durable may lose its name.
        files.flush_to_disk(folder)
        folder.rename(path)
        files.flush_to_disk(path.parent)
        self.keep(self.kept)

    def keep(self, count: int) -> None:
        """Remove all but the newest `count` checkpoints."""
        if ranks.own_rank() == 0:
            newest_first = checksums.checkpoints_in(self.folder)[::-1]
            for older in newest_first[count:]:
                shutil.rmtree(older)

    def take(self, folder: Path, step: int) -> None:
        """Seal a folder that another trainer has written, on its only rank, and make it the checkpoint of a step."""
        self.known = None
        names = sorted(entry.name for entry in folder.iterdir())
        for name in names:
            files.flush_to_disk(folder / name)
        self.publish(folder, step, files.sums_of(folder, names))

    def latest(self) -> SavedCheckpoint | None:
        """Return the newest whole checkpoint; None before the first."""
        path = self.newest()
        return None if path is None else SavedCheckpoint.read(path)

    def newest(self) -> Path | None:
        """Return the newest whole checkpoint, with a warning for each damaged newer one; None before the first."""
        if self.known is not None:
            return self.known
        if ranks.own_rank() == 0:
            for unfinished in self.folder.glob(".step-*"):  # of a process that ended while it wrote
                shutil.rmtree(unfinished)
        newest_first = checksums.checkpoints_in(self.folder)[::-1]
        paths: list[Path] = ranks.of_first(newest_first)
        for number, path in enumerate(paths):
            # Each rank reads a part of the files, and all ranks must agree on the checkpoint.
            wrong = [name for of_rank in ranks.each(damaged(path, self.cell)) for name in of_rank]
            if not wrong:
                # Training comes to the steps of the damaged ones again, and a rename replaces no folder with files.
                if ranks.own_rank() == 0:
                    for newer in paths[:number]:
                        shutil.rmtree(newer)
                self.known = path
                return path
            if ranks.own_rank() == 0:
                print(f"warning: the checkpoint {path} is damaged ({', '.join(wrong)})", flush=True)
        if paths:
            raise NoneWhole(self.folder)
        return None


def in_files(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the number of each tensor's file."""
    numbers: dict[str, int] = {}
    start = 0  # of the next tensor, in bytes of a rank's shards
    for name, x in tensors.items():
        numbers[name] = 1 + start // PIECE
        start += x.numel() * x.element_size() // ranks.count()
    return numbers


def packed_state(value: Any, rows: dict[str, Tensor]) -> Any:
    """Return a value for JSON, with references for its tensors, which go to `rows`; in mappings of any depth.

    A reference is the mapping {"rows": name}. The value's own mapping of that form gets a list around its content.
    """
    if isinstance(value, Mapping):
        packed = {str(key): packed_state(inner, rows) for key, inner in value.items()}
        return {"rows": [packed["rows"]]} if packed.keys() == {"rows"} else packed
    if isinstance(value, list | tuple):
        return [packed_state(inner, rows) for inner in value]
    if not isinstance(value, Tensor):
        return value
    name = str(len(rows))
    rows[name] = value
    return {"rows": name}


def damaged(path: Path, cell: str) -> list[str]:
    """Return the faults of a checkpoint of a cell, in the part of the files that this rank reads."""
    try:
        sums = checksums.read_seal(path, cell)
    except Damaged as damage:
        return [str(damage)] if ranks.own_rank() == 0 else []
    names = sorted(sums)[ranks.own_rank() :: ranks.count()]
    return [name for name in names if files.sha256_of(path / name) != sums[name]]
