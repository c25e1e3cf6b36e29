"""Repair of a cell with damaged or lost records, so that it resumes from its last good state.

A checkpoint is used only if all steps and evaluations up to it are whole as well. Without such a checkpoint the attempt
is set aside and training starts at step 0, except for a cell that is done and lacks only its model. The damage and the
repair are written to the cell's log.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from harness.base import files
from harness.base.errors import Damaged
from harness.cells import attempts, checksums, evaluation_files, log, provenance, state
from harness.cells import checkpoint_seal as seals
from harness.cells.checkpoint_seal import FOLDER as CHECKPOINTS
from harness.cells.log import MetricsLog
from harness.cells.provenance import Made
from harness.cells.spec import CellSpec, id_in
from harness.cells.state import State

STEP = re.compile(r".+-(\d+)\.jsonl?")  # an evaluation or samples, by the step


def mend(folder: Path, spec: CellSpec) -> None:
    """Repair a cell's records so that it can run, and write its spec. No other process may be working on it."""
    files.sweep(folder)
    attempts.finish_taking_back(folder)  # before the state is read, which it may still have to move back
    try:
        State.read(folder)
    except Damaged as damage:
        lines, _ = MetricsLog(folder).whole()
        seconds = lines[-1]["time"] - lines[0]["time"] if lines else 0.0  # at least nearly
        State("running", seconds=seconds).write(folder)
        say(folder, f"{damage}; the cell resumes without it")
    restore(folder, spec)
    lines, _ = MetricsLog(folder).whole()
    saved, unusable = sealed_checkpoints(folder, spec.id)
    has_checkpoints = bool(saved or unusable)
    attempt = attempt_of(folder, begun=bool(lines or has_checkpoints))
    damages = dict(harms(folder, max(saved, default=-1)))
    done = State.read(folder).state == "done"
    lacks_checkpoint = has_checkpoints and not saved and not done
    if attempt is None or not (damages or lacks_checkpoint):
        return
    last_good_step = min([len(lines), *damages.values()]) - 1
    damage_text = "; ".join(map(str, damages or unusable))
    usable = [step for step in saved if step <= last_good_step]  # the first ones, since `saved` is sorted
    keep_whole_lines(folder)
    # Damage to the model counts as that of the step after the last line (see `harms`).
    model_alone_is_damaged = all(step == len(lines) for step in damages.values())
    has_all_steps = len(lines) == log.last_step(lines, spec.config) + 1  # step 0 has a line too
    only_model = done and has_all_steps and model_alone_is_damaged
    if only_model and not any(seals.is_whole_checkpoint(path, spec.id) for path in checkpoints(folder).values()):
        keep_numbers(folder, damage_text)
    elif usable:
        for step in saved[len(usable) :]:
            shutil.rmtree(folder / CHECKPOINTS / seals.step_folder_name(step))
        # Before the state: a cell that is done without its sums is damaged, so after a kill in between it is mended.
        (folder / checksums.FILE).unlink(missing_ok=True)
        state.change(folder, state="running", reason=None, durable_step=usable[-1])
        say(folder, f"{damage_text}; the cell resumes from step {usable[-1]}")
    elif has_checkpoints or done:
        # Before it is set aside: a damaged attempt must not be kept as one that is done.
        state.change(folder, state="failed", reason=damage_text)
        aside = attempts.set_aside(folder, attempt)
        say(folder, f"{damage_text}; training starts at step 0, and the earlier attempt is kept in {aside}")


def restore(folder: Path, spec: CellSpec) -> None:
    """Write the spec of a cell; records of another cell in its folder are set aside first."""
    begun = (folder / state.FILE).exists() or (folder / log.FILE).exists()
    other = id_in(folder)
    if begun and other not in (None, spec.id):
        aside = attempts.set_aside(folder, Made.known(folder) or attempts.record_unknown(folder))
        spec.write(folder)
        say(folder, f"the records were those of the cell {other}; they are kept in {aside}")
        return
    try:
        CellSpec.read(folder)
    except Damaged as damage:
        if begun:
            say(folder, f"{damage}; it is written again, with the hardware of the present configuration")
    spec.write(folder)


def checkpoints(folder: Path) -> dict[int, Path]:
    """Return the checkpoints in a cell's folder by the steps in their names."""
    return {seals.step_of(path): path for path in seals.checkpoints_in(folder / CHECKPOINTS)}


def sealed_checkpoints(folder: Path, cell: str) -> tuple[list[int], list[Damaged]]:
    """Return the steps of the checkpoints with a valid seal of this cell, and the damage to the others."""
    steps, damages = [], []
    for step, path in checkpoints(folder).items():
        try:
            seals.read_seal(path, cell)
        except Damaged as damage:
            say(folder, f"{damage}; this checkpoint is not used")
            damages.append(damage)
        else:
            steps.append(step)
    return steps, damages


def keep_numbers(folder: Path, damage_text: str) -> None:
    """Keep a cell done if its steps and evaluations are whole, though no checkpoint is left for its model."""
    model = folder / checksums.MODEL
    if model.exists():
        files.remove_path(aside := folder / f"{checksums.MODEL}.damaged")
        model.rename(aside)
    checksums.write_checksums(folder)
    reason = f"warning: {damage_text}; no checkpoint is left to make the model from, and the numbers are whole"
    state.change(folder, reason=reason)
    files.append(folder / "log.txt", f"{reason}\n")


def say(folder: Path, text: str) -> None:
    files.append(folder / "log.txt", f"warning: {text}\n")


def attempt_of(folder: Path, *, begun: bool) -> Made | None:
    """Read the record of the attempt, and write a new one if it was lost; None before the first attempt."""
    try:
        made = Made.read(folder)
    except Damaged as damage:
        say(folder, str(damage))
        (folder / provenance.FILE).unlink()
        made = None
    if made is None and begun:
        return attempts.record_unknown(folder)
    return made


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
            path = evaluation_files.evaluation_path(folder, task, line["step"])
            try:
                evaluation_files.check_scores(path, evaluation_files.read_evaluation(path), line["metrics"])
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


def keep_whole_lines(folder: Path) -> None:
    """Keep the steps before the damage in metrics.jsonl, and the damaged file next to it."""
    lines = MetricsLog(folder)
    whole, damage = lines.whole()
    if damage is not None:
        # A copy, and not a rename: after a kill in between, the next repair finds the file as it was.
        shutil.copyfile(lines.path, lines.path.with_suffix(".damaged"))
        lines.write(whole)
