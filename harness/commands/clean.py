"""entrobench clean: deletes the cells in a matrix's folder that its configuration does not include."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from harness.base.terminal import confirm, console
from harness.base.units import gib
from harness.cells import lease
from harness.cells.spec import BASE_ANSWERS
from harness.commands.common import Commands, command, config_of_arguments, with_config
from harness.matrix import cells, check_owner, leftovers

EXAMPLES = ("entrobench clean demo", "entrobench clean my.yaml train.steps=20 --plugin my_methods --yes")


def add(commands: Commands) -> None:
    parser = with_config(command(commands, "clean", "delete what this configuration no longer includes", EXAMPLES))
    parser.add_argument("--yes", action="store_true", help="delete without asking")


def call(arguments: argparse.Namespace) -> int:
    config = config_of_arguments(arguments)
    check_owner(config)
    left: dict[Path, str] = {}
    for folder, edited in leftovers(config, cells(config)).items():
        why = "that is not of this configuration" if edited is None else f"of an earlier version of {edited}"
        left[folder] = f"a cell {why}"
    if not left:
        found = "holds only cells of this configuration" if config.folder.exists() else "does not exist"
        console.print(f"{config.folder} {found}: nothing to clean")
        return 0
    kept = config.folder / BASE_ANSWERS
    if any(kept.glob("*.json")):  # some may be of these cells; a further cell samples them again
        left[kept] = "answers of untrained models"
    sizes = {folder: size_of(folder) for folder in left}
    for folder, what in left.items():
        console.print(f"{folder}  {gib(sizes[folder])}  {what}")
    question = f"Remove these {len(left)} ({gib(sum(sizes.values()))})?"
    refusal = "nothing was removed, since without a terminal this command cannot ask; --yes removes the listed cells"
    if not arguments.yes and not confirm(question, refusal):
        console.print("nothing was removed")
        return 0
    removed = sum(map(delete, left))
    console.print(f"removed {removed} of {len(left)}; MLflow keeps the runs that it was fed")
    return 0


def size_of(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def delete(folder: Path) -> bool:
    """Delete kept answers, or a cell unless a process works on it; return whether they were deleted."""
    if folder.name == BASE_ANSWERS:
        for answers in folder.glob("*.json"):  # not the locks and the folder, which running cells rely on
            answers.unlink(missing_ok=True)
        return True
    with lease.hold(folder, wait=0) as ours:
        if ours is None:
            console.print(f"{folder} is left: {lease.holder(folder)} works on it", style="yellow")
            return False
        shutil.rmtree(folder)
    return True
