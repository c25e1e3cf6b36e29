"""entrobench clean: deletes the cells in a matrix's folder that its configuration does not include."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.base import files
from harness.cells import lease
from harness.commands.common import Commands, command, config_of_arguments, with_config
from harness.config import Config
from harness.matrix import cells, check_owner, leftovers
from harness.terminal.layout import confirm, console
from harness.terminal.units import gib


@dataclass(frozen=True)
class Removable:
    path: Path
    why: str
    is_cell: bool = False  # whose lease is taken first

    @property
    def bytes(self) -> int:
        if not self.path.is_dir():
            return self.path.lstat().st_size
        files_inside = [path for path in self.path.rglob("*") if not path.is_dir()]
        return sum(path.lstat().st_size for path in files_inside)


EXAMPLES = ("entrobench clean demo", "entrobench clean my.yaml train.steps=20 --plugin my_methods --yes")


def add(commands: Commands) -> None:
    parser = with_config(command(commands, "clean", "delete what this configuration no longer includes", EXAMPLES))
    parser.add_argument("--yes", action="store_true", help="delete without asking")


def call(arguments: argparse.Namespace) -> int:
    config = config_of_arguments(arguments)
    check_owner(config)
    candidates = list(removable(config))
    if not candidates:
        console.print(f"{config.folder} holds only cells of this configuration: nothing to clean")
        return 0
    for leftover in candidates:
        console.print(f"{leftover.path}  {gib(leftover.bytes)}  {leftover.why}")
    total = sum(leftover.bytes for leftover in candidates)
    question = f"Remove these {len(candidates)} ({gib(total)})?"
    refusal = "nothing was removed, since without a terminal this command cannot ask; --yes removes the listed files"
    if not arguments.yes and not confirm(question, refusal):
        console.print("nothing was removed")
        return 0
    removed = [leftover for leftover in candidates if delete(leftover)]
    console.print(f"removed {len(removed)} of {len(candidates)}; MLflow keeps the runs that it was fed")
    return 0


def removable(config: Config) -> Iterator[Removable]:
    """Yield the folders and files of a matrix that are not of the configuration; never files of other programs."""
    left = leftovers(config, cells(config))
    for folder, edited in left.items():
        why = "a cell that is not of this configuration"
        if edited is not None:
            why = f"a cell of an earlier version of {edited}"
        yield Removable(folder, why, is_cell=True)
    gone = set(left)
    # Sorted, so that a folder comes before the files in it, which are removed with it and not listed.
    for path in sorted(config.folder.rglob(".*")):
        match = files.TEMPORARY.fullmatch(path.name)
        if match is None or alive(int(match[1])):
            continue
        if gone.isdisjoint(path.parents):
            gone.add(path)
            yield Removable(path, "left by a process that ended while it wrote")


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 reaches no process, and only asks whether there is one
    except (ProcessLookupError, OverflowError):  # OverflowError: a number too large for any process
        return False
    except PermissionError:  # another user's process
        return True
    return True


def delete(leftover: Removable) -> bool:
    """Delete it, unless a process works on its cell; return whether it was deleted."""
    if not leftover.is_cell:
        files.remove_path(leftover.path)
        return True
    with lease.hold(leftover.path, wait=0) as ours:
        if ours is None:
            console.print(f"{leftover.path} is left: {lease.holder(leftover.path)} works on it", style="yellow")
            return False
        shutil.rmtree(leftover.path)
    return True
