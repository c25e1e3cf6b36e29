"""Attempts at a cell: an earlier one is set aside when training restarts, and taken back if its edit is undone."""

from __future__ import annotations

import dataclasses
import shutil
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from harness.base import files
from harness.base.errors import Damaged
from harness.base.locks import lock
from harness.cells import checksums, lease, provenance
from harness.cells.log import MetricsLog
from harness.cells.provenance import Made
from harness.cells.source_digest import edited_components
from harness.cells.spec import FILE as SPEC
from harness.cells.state import FILE as STATE
from harness.cells.state import State

# The folder of an earlier attempt is named by the cell's folder, this text and the attempt's id.
ASIDE = ".attempt-"
ID_DIGITS = 12  # of an attempt's id in the name of its folder
MLFLOW_RUN = "mlflow.json"  # the id of the attempt's run
# These stay in the cell's folder when an attempt is set aside: they say which cell it is and which process works on it.
# The record of the attempt is moved last.
STAYING = (SPEC, lease.NAME, "mlflow.lock", provenance.FILE)


def earlier_attempts(folder: Path) -> list[Path]:
    """Return the folders of the attempts at a cell that were set aside."""
    return sorted(folder.parent.glob(f"{folder.name}{ASIDE}*"))


def aside_of(folder: Path, attempt: str) -> Path:
    """Return the folder that an attempt at a cell is set aside to."""
    return folder.with_name(f"{folder.name}{ASIDE}{attempt[:ID_DIGITS]}")


def record_unknown(folder: Path) -> Made:
    """Write a record for an attempt that has none, so that it can be set aside like any other."""
    lines, _ = MetricsLog(folder).whole()
    started = lines[0]["time"] if lines else folder.stat().st_mtime
    made = Made(uuid.uuid4().hex, started, None, None, None, sources={}, versions={}, processor="", device="")
    made.write(folder)
    return made


def set_aside(folder: Path, made: Made) -> Path:
    """Move the records of an attempt to a folder next to the cell's, so that the next attempt begins at step 0.

    The attempt's own record is moved last: if the process is killed half way, the record still says that there is
    something left to move. Files that were moved before the kill are kept, and later ones of the same name are removed.
    """
    aside = aside_of(folder, made.attempt)
    with lock(folder / "mlflow.lock"):  # no half-moved attempt is sent to MLflow
        # First, so that the folder says which cell it is of before it has any other record.
        files.write_text(aside / SPEC, (folder / SPEC).read_text())
        for path in sorted(folder.iterdir()):
            if path.name in STAYING:
                continue
            if not (aside / path.name).exists():
                path.rename(aside / path.name)
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        (folder / provenance.FILE).rename(aside / provenance.FILE)
    return aside


# Taking back


def complete_attempt(folder: Path, sources: Mapping[str, str]) -> Path | None:
    """Return the newest complete attempt at a cell that was set aside and has these sources; None if there is none."""
    candidates = []
    for aside in earlier_attempts(folder):
        made = Made.known(aside)
        if made is None or edited_components(made.sources, sources):
            continue
        if State.known(aside).state == "done" and is_whole(aside):
            candidates.append((made.started, aside))
    return max(candidates)[1] if candidates else None


def is_whole(aside: Path) -> bool:
    """Return whether all records of an attempt are as they were when it was done."""
    try:
        checksums.check_sizes(aside)
    except Damaged:
        return False
    return not any(checksums.changed_records(aside))


def take_back(folder: Path, aside: Path) -> bool:
    """Make an attempt that was set aside the cell's own again, and set the present one aside.

    Return False if another process works on the cell. The attempt gets a new id and a new MLflow run: of several
    complete attempts the one that began last counts, and that must be this one.
    """
    with lease.briefly(folder) as ours:
        if not ours:
            return False
        present = Made.known(folder)
        if present is None and (folder / STATE).exists():
            present = record_unknown(folder)
        if present is not None:
            set_aside(folder, present)
        # After a kill before the renaming below, the attempt is complete in its folder and can be taken back again.
        made = Made.read(aside)
        assert made is not None
        dataclasses.replace(made, attempt=uuid.uuid4().hex, started=time.time()).write(aside)
        files.remove_path(aside / MLFLOW_RUN)
        (aside / provenance.FILE).rename(folder / provenance.FILE)
        finish_taking_back(folder)
    return True


def finish_taking_back(folder: Path) -> None:
    """Move the rest of an attempt that is taken back, which a killed process may have left half moved.

    The attempt's record is moved first and its state last. An attempt without a record but with a state is one that is
    being taken back, if the cell has a record but no state.
    """
    if (folder / STATE).exists() or not (folder / provenance.FILE).exists():
        return
    for aside in earlier_attempts(folder):
        if (aside / provenance.FILE).exists() or not (aside / STATE).exists():
            continue
        with lock(folder / "mlflow.lock"):  # no half-moved attempt is sent to MLflow
            moved = [path for path in sorted(aside.iterdir()) if path.name not in (*STAYING, STATE)]
            for path in moved:
                files.remove_path(folder / path.name)  # such as the log of a process that was started in between
                path.rename(folder / path.name)
            (aside / STATE).rename(folder / STATE)
        shutil.rmtree(aside)
