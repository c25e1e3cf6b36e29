"""Repair of a cell with damaged or lost records: it resumes from its newest whole checkpoint, or starts over.

A checkpoint is used only if all steps and evaluations up to it are whole as well. Without one, all records are deleted.
The damage and the repair are written to the cell's log.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from harness.base import files
from harness.base.errors import Damaged
from harness.base.locks import lock
from harness.cells import checksums, evaluations, lease, log, provenance, state
from harness.cells.checksums import CHECKPOINTS
from harness.cells.log import MetricsLog
from harness.cells.provenance import Made
from harness.cells.spec import FILE as SPEC
from harness.cells.spec import CellSpec, id_in
from harness.cells.state import State

MLFLOW_LOCK = "mlflow.lock"
# These stay when a cell starts over: its spec and log, who works on it, and whether it was stopped by hand.
STAYING = (SPEC, "log.txt", lease.NAME, MLFLOW_LOCK, state.STOP_MARK)
STEP = re.compile(r".+-(\d+)\.jsonl?")  # an evaluation or samples, by the step


def mend(folder: Path, spec: CellSpec) -> None:
    """Repair a cell's records so that it can run, clear an earlier failure, and write its spec.

    No other process may be working on it.
    """
    files.sweep(folder)
    begun = (folder / state.FILE).exists() or (folder / log.FILE).exists()
    other = id_in(folder)
    if begun and other not in (None, spec.id):
        start_over(folder, f"the records are those of the cell {other}")
        begun = False
    elif begun:
        try:
            CellSpec.read(folder)
        except Damaged as damage:
            say(folder, f"{damage}; it is written again, with the hardware of the present configuration")
    spec.write(folder)
    if begun:
        mend_records(folder, spec)


def mend_records(folder: Path, spec: CellSpec) -> None:
    """Make the records of a cell whole up to its newest whole checkpoint, or delete them."""
    try:
        if State.read(folder).state == "failed":  # it is retried: from here on, a failure is its next process's
            state.change(folder, state="running" if (folder / provenance.FILE).exists() else "planned", reason=None)
    except Damaged as damage:
        lines, _ = MetricsLog(folder).whole()
        seconds = lines[-1]["time"] - lines[0]["time"] if lines else 0.0  # at least nearly
        State("running", seconds=seconds).write(folder)
        say(folder, f"{damage}; the cell resumes without it")
    saved, unusable = sealed_checkpoints(folder, spec.id)
    lines, _ = MetricsLog(folder).whole()
    try:
        if Made.read(folder) is None and (lines or saved or unusable):
            raise Damaged(folder / provenance.FILE, "it is missing")
    except Damaged as damage:  # nothing says what made the numbers
        start_over(folder, str(damage))
        return
    damages = dict(harms(folder, max(saved, default=-1)))
    done = State.read(folder).state == "done"
    if not damages and (done or saved or not unusable):
        return
    last_good_step = min([len(lines), *damages.values()]) - 1
    damage_text = "; ".join(map(str, damages or unusable))
    usable = [step for step in saved if step <= last_good_step]  # the first ones, since `saved` is sorted
    if usable:
        for step in saved[len(usable) :]:
            shutil.rmtree(folder / CHECKPOINTS / checksums.step_folder_name(step))
        # Before the state: a cell that is done without its sums is damaged, so after a kill in between it is mended.
        (folder / checksums.FILE).unlink(missing_ok=True)
        state.change(folder, state="running", reason=None, durable_step=usable[-1])
        MetricsLog(folder).write(lines[: last_good_step + 1])
        say(folder, f"{damage_text}; the cell resumes from step {usable[-1]}")
    elif saved or unusable or done:
        start_over(folder, damage_text)
    else:  # before its first checkpoint it starts at step 0 in any case
        MetricsLog(folder).write(lines)


def start_over(folder: Path, why: str) -> None:
    """Delete the records of a cell, whose next attempt begins at step 0.

    The steps are deleted first: after a kill in between, the next repair finds checkpoints or a state without them.
    """
    say(folder, f"{why}; training starts at step 0")
    with lock(folder / MLFLOW_LOCK):  # no half of an attempt is sent to MLflow
        (folder / log.FILE).unlink(missing_ok=True)
        for path in sorted(folder.iterdir()):
            if path.name not in STAYING:
                files.remove_path(path)


def sealed_checkpoints(folder: Path, cell: str) -> tuple[list[int], list[Damaged]]:
    """Return the steps of the checkpoints with a valid seal of this cell, and the damage to the others."""
    steps, damages = [], []
    for path in checksums.checkpoints_in(folder / CHECKPOINTS):
        try:
            checksums.read_seal(path, cell)
        except Damaged as damage:
            say(folder, f"{damage}; this checkpoint is not used")
            damages.append(damage)
        else:
            steps.append(checksums.step_of(path))
    return steps, damages


def say(folder: Path, text: str) -> None:
    files.append_text(folder / "log.txt", f"warning: {text}\n")


def harms(folder: Path, saved: int) -> Iterator[tuple[Damaged, int]]:
    """Yield the damage to the records of all steps up to the newest checkpoint; of all steps if the cell is done.

    Each comes with the first step that is lost by it.
    """
    done = State.read(folder).state == "done"
    lines, damage = MetricsLog(folder).whole()
    if damage is not None:
        yield damage, len(lines)
    elif len(lines) <= saved:
        yield Damaged(folder / log.FILE, f"it holds {len(lines)} steps, and the checkpoint {saved + 1}"), len(lines)
    checked_lines = lines if done else lines[: saved + 1]
    for line in checked_lines:
        evaluated_tasks = {key.split("/")[1] for key in line["metrics"] if key.startswith("eval/")}
        for task in evaluated_tasks:
            path = evaluations.evaluation_path(folder, task, line["step"])
            try:
                evaluations.check_scores(path, evaluations.read_evaluation(path), line["metrics"])
            except Damaged as error:
                yield error, line["step"]
    if not done and not (folder / checksums.FILE).exists():
        return
    for damaged, name in checksums.changed_records(folder):
        if name == checksums.FILE or name.startswith(f"{checksums.MODEL}/"):
            yield damaged, len(lines)  # no step is lost: the model is made again from the last checkpoint
        else:
            match = STEP.fullmatch(name)
            first_lost = int(match[1]) if match else 0
            yield damaged, first_lost
