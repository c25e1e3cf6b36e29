"""The checkpoints of a cell: written beside the training by all ranks, and read by any number of them.

A folder `step-000020` holds, by torch.distributed.checkpoint, the tensors in safetensors files (each rank writes its
shards; nothing is pickled), all else as JSON, and, sealed, the SHA-256 sums of these files with the cell and the step
that they are of. It gets its name when all of that is on disk. While a cell trains the newest two are kept: where the
sums say that the newest is damaged, or another cell's, the one before it is used.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException

from harness.base import files
from harness.base.errors import CellFailure, Damaged
from harness.cells import checkpoint_seal
from harness.dist import ranks
from harness.train.weights import fill

KEPT = 2
PIECE = 2**28  # bytes of one file, which is copied once more in memory while it is written
REST, ROWS = "rest.json", "rest.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """One that is whole."""

    path: Path
    step: int
    names: list[str]  # of its tensors
    rest: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        rows = load_file(path / ROWS)

        def unpacked(found: dict[str, Any]) -> Any:
            return rows[found["rows"]] if found.keys() == {"rows"} else found

        return cls(path, **json.loads((path / REST).read_bytes(), object_hook=unpacked))

    def of(self, who: str) -> set[str]:
        """Returns the names of one learner's tensors."""
        return {name.removeprefix(f"{who}.") for name in self.names if name.startswith(f"{who}.")}

    def fill(self, who: str, tensors: Mapping[str, Tensor]) -> None:
        """Reads them into tensors, of shards only the rows that are here."""
        fill({f"{who}.{name}": x for name, x in tensors.items()}, self.path)


class NoneWhole(CellFailure):
    """All checkpoints of a cell are damaged, or another cell's."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"no checkpoint in {folder} is whole; remove that folder to begin from the start")


class Checkpoints:
    """The checkpoints of a cell. All ranks make it, and call each of its methods."""

    def __init__(self, folder: Path, cell: str) -> None:
        self.folder, self.cell, self.group = folder, cell, ranks.apart()
        self.writer = ranks.of_first(os.getpid())
        self.known: Checkpoint | None = None  # the one that `latest` found, until another is saved
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.writing: tuple[int, Future[None]] | None = None

    def save(self, step: int, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
        """Copies a state, and begins to write the copy; `written` tells when it is on disk."""
        assert self.writing is None
        self.known = None
        rows: dict[str, Tensor] = {}
        said = json.dumps({"step": step, "names": list(tensors), "rest": packed(rest, rows)})
        copies = {name: ranks.on_cpu(x) for name, x in tensors.items()}
        self.writing = step, self.thread.submit(self._write, step, copies, said, rows)

    def written(self, *, wait: bool) -> int | None:
        """Returns the step that was saved last, once, as soon as its checkpoint is on disk."""
        if self.writing is None or not (wait or self.writing[1].done()):
            return None
        (step, future), self.writing = self.writing, None
        future.result()
        return step

    def _write(self, step: int, tensors: dict[str, Tensor], said: str, rows: dict[str, Tensor]) -> None:
        path = self.folder / checkpoint_seal.name_of(step)
        with files.temporary_path(path, self.writer) as partial:
            writer = HuggingFaceStorageWriter(str(partial), in_files(tensors), save_distributed=True)
            try:
                dcp.save(tensors, storage_writer=writer, process_group=self.group)
            except CheckpointException as error:  # which is no Exception
                raise next(iter(error.failures.values()))[0] from error
            mine = {file.name: files.sha256_of(file) for file in partial.glob(f"shard-{ranks.number() + 1:05d}-*")}
            sums = {name: found for each in ranks.each(mine, self.group) for name, found in each.items()}
            if ranks.number() == 0:
                with files.atomic(partial / ROWS) as file:
                    file.write(save(rows))
                files.write_text(partial / REST, said)
                sums |= {name: files.sha256_of(partial / name) for name in (ROWS, REST)}
                checkpoint_seal.write_seal(partial, self.cell, step, sums)
                complete(partial, path)
                self.keep(KEPT)

    def keep(self, count: int) -> None:
        """Removes all but the newest ones."""
        if ranks.number() == 0:
            for older in sorted(self.folder.glob("step-*"))[:-count]:
                shutil.rmtree(older)

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint that is whole, after it has named those that are not; None before the first."""
        if self.known is not None:
            return self.known
        if ranks.number() == 0:
            for left in self.folder.glob(".step-*"):  # by a process that ended while it wrote
                shutil.rmtree(left)
        paths: list[Path] = ranks.of_first(sorted(self.folder.glob("step-*"), reverse=True))
        for number, path in enumerate(paths):
            wrong = [name for each in ranks.each(damaged(path, self.cell)) for name in each]
            if not wrong:
                if ranks.number() == 0:
                    for newer in paths[:number]:
                        shutil.rmtree(newer)
                self.known = Checkpoint.read(path)
                return self.known
            if ranks.number() == 0:
                print(f"warning: the checkpoint {path} is damaged ({', '.join(wrong)})", flush=True)
        if paths:
            raise NoneWhole(self.folder)
        return None


def in_files(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Returns the number of the file that each tensor goes to."""
    starts = accumulate((x.numel() * x.element_size() // ranks.count() for x in tensors.values()), initial=0)
    return {name: 1 + start // PIECE for name, start in zip(tensors, starts, strict=False)}


def packed(value: Any, rows: dict[str, Tensor]) -> Any:
    """Returns a value for JSON, whose tensors, in mappings of any depth, go to `rows`."""
    if isinstance(value, Mapping):
        return {str(key): packed(each, rows) for key, each in value.items()}
    if not isinstance(value, Tensor):
        return value
    name = str(len(rows))
    rows[name] = value
    return {"rows": name}


def complete(partial: Path, path: Path) -> None:
    """Gives a folder its name, after its entries are on disk."""
    files.flush_to_disk(partial)
    partial.rename(path)
    files.flush_to_disk(path.parent)


def damaged(path: Path, cell: str) -> list[str]:
    """Return what is wrong with a checkpoint of a cell, as far as this rank looks at it."""
    try:
        sums = checkpoint_seal.read_seal(path, cell)
    except Damaged as damage:
        return [str(damage)] if ranks.number() == 0 else []
    return checkpoint_seal.changed_files(path, sums, sorted(sums)[ranks.number() :: ranks.count()])
