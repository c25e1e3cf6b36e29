"""Mends the records of a cell that were damaged or lost, so that the cell goes on from its last good state.

A checkpoint vouches for nothing but itself: it is used where all steps and evaluations up to it are whole. Without such
a checkpoint the attempt is set aside, and the cell begins anew. What was found and done stands in the cell's log.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from harness.base import files
from harness.base.errors import Damaged
from harness.record import log, made, state, sums
from harness.record.log import MetricsLog
from harness.record.made import Made
from harness.record.state import State

SAVED = re.compile(r"step-(\d+)")  # a checkpoint
STEP = re.compile(r".+-(\d+)\.jsonl?")  # an evaluation or samples, by the step


def mend(folder: Path) -> None:
    """Makes a cell able to go on. Nobody else may be working on it."""
    files.sweep(folder)
    lines, _ = MetricsLog(folder).whole()
    saved = sorted(
        int(found[1]) for path in (folder / "checkpoints").glob("*") if (found := SAVED.fullmatch(path.name))
    )
    try:
        State.read(folder)
    except Damaged as damage:
        seconds = lines[-1]["time"] - lines[0]["time"] if lines else 0.0  # at least nearly
        State("running", seconds=seconds).write(folder)
        say(folder, f"{damage}; the cell goes on without it")
    try:
        sums.noted(folder)
    except Damaged as damage:
        (folder / sums.FILE).unlink()
        say(folder, f"{damage}; the cell goes on without it")
    attempt = attempt_of(folder, begun=bool(lines or saved))
    damages = dict(harms(folder, max(saved, default=-1)))
    if attempt is None or not damages:
        return
    good = min(len(lines), *damages.values()) - 1
    told = "; ".join(str(damage) for damage in damages)
    usable = [step for step in saved if step <= good]
    keep_whole_lines(folder)
    if usable:
        for step in saved[len(usable) :]:
            shutil.rmtree(folder / "checkpoints" / f"step-{step:06d}")
        (folder / sums.FILE).unlink(missing_ok=True)
        state.change(folder, state="running", reason=None, durable_step=usable[-1])
        say(folder, f"{told}; the cell goes on from step {usable[-1]}")
    elif saved or State.read(folder).state == "done":
        state.change(folder, state="failed", reason=told)
        aside = made.set_aside(folder, attempt)
        say(folder, f"{told}; the cell begins anew, and the earlier attempt is kept in {aside}")


def say(folder: Path, text: str) -> None:
    files.append(folder / "log.txt", f"warning: {text}\n")


def attempt_of(folder: Path, *, begun: bool) -> Made | None:
    """Returns the record of the attempt, which is one that nobody noted where it is lost; None before the first."""
    try:
        found = Made.read(folder)
    except Damaged as damage:
        say(folder, str(damage))
        (folder / made.FILE).unlink()
        found = None
    return made.unnoted(folder) if found is None and begun else found


def harms(folder: Path, saved: int) -> Iterator[tuple[Damaged, int]]:
    """Yields what is wrong with the records of the steps up to the newest checkpoint, each with the first step that it
    takes from them."""
    lines, damage = MetricsLog(folder).whole()
    if damage is not None:
        yield damage, len(lines)
    elif len(lines) <= saved:
        yield Damaged(folder / log.FILE, f"it holds {len(lines)} steps, and the checkpoint {saved + 1}"), len(lines)
    for line in lines[: saved + 1]:
        for task in {key.split("/")[1] for key in line["metrics"] if key.startswith("eval/")}:
            try:
                check_evaluation(folder / "evals" / f"{task}-{line['step']:06d}.json")
            except Damaged as error:
                yield error, line["step"]
    for wrong, name in sums.changed(folder):
        if name.startswith(f"{sums.MODEL}/"):
            yield wrong, len(lines)  # the last checkpoint makes it anew
        else:
            yield wrong, int(found[1]) if (found := STEP.fullmatch(name)) else 0


def check_evaluation(path: Path) -> None:
    """Refuses what is no whole evaluation."""
    try:
        found = files.read_json(path)
    except FileNotFoundError:
        raise Damaged(path, "it is missing") from None
    right, problems = (found.get(key) if isinstance(found, dict) else None for key in ("right", "problems"))
    if not right or not problems or len(right) != len(problems) or len({*map(len, right)}) != 1:
        raise Damaged(path, "it holds no answer of some problem")


def keep_whole_lines(folder: Path) -> None:
    """Leaves the steps before the damage in metrics.jsonl, and keeps what was there beside it."""
    lines = MetricsLog(folder)
    whole, damage = lines.whole()
    if damage is not None:
        lines.path.rename(lines.path.with_suffix(".damaged"))
        lines.write(whole)
