"""The replay of a packed cell: its first steps are trained again, and must have the same metrics bit for bit."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.base.devices import processor
from harness.base.errors import UserError, nearest
from harness.cells import evaluations
from harness.cells.evaluations import evaluation_path
from harness.cells.log import MetricsLog
from harness.cells.provenance import Made
from harness.cells.spec import CellSpec
from harness.methods.refusals import trainer_obstacle
from harness.packs.archive import Pack
from harness.packs.slim import is_slim, slim_line
from harness.rollout import digests, models

CLOCK = ("time/", "trl/step_time")  # metrics that differ from run to run


def obstacle(folder: Path, spec: CellSpec) -> str | None:
    """Return why a cell cannot be replayed on this machine, as a sentence; None if it can."""
    made = Made.read(folder)
    if made is None:
        return "no record says what made it"
    if made.device != "cpu":
        return f"it was trained on {made.device}, where sums are not repeated bit for bit"
    if spec.config.hardware.world > 1:
        return f"it was trained by {spec.config.hardware.world} ranks"
    if made.processor != processor():
        return f"it was trained on {made.processor}, and this machine is {processor()}: floating-point sums may differ"
    if reason := trainer_obstacle(spec.config):
        return reason
    model = models.resolve(spec.key.model)
    present = model.digest(model.folder())
    if made.base_model != present:
        recorded = (made.base_model or "an unknown one")[: digests.SHOWN]
        return (
            f"the base model {spec.key.model} is {present[: digests.SHOWN]} on this machine, and it began from "
            f"{recorded}"
        )
    return None


def replay_steps(folder: Path, steps: int, plugins: Sequence[str] = ()) -> str | None:
    """Train the first steps of a packed cell again; return the first difference as a sentence, None if there is none.

    The cell passed `check_replay` before. `plugins`: modules that the reader trusts, not the pack's.
    """
    spec = CellSpec.read(folder)
    spec = dataclasses.replace(spec, settings={**spec.settings, "plugins": list(plugins)})
    with tempfile.TemporaryDirectory(prefix="entrobench-replay-") as temporary:
        lines = trained_lines(spec, Path(temporary), steps)
        other_answers = [*different_answers(folder, Path(temporary), steps)]
    slim = is_slim(folder)
    for kept, new in zip(MetricsLog(folder).read(), lines, strict=False):
        if slim:
            kept, new = slim_line(kept), slim_line(new)
        if difference := first_difference(kept, new):
            return f"step {kept['step']}: {difference}"
    if len(lines) <= steps:
        return f"training ends at step {len(lines) - 1}"
    return next(iter(other_answers), None)


def different_answers(folder: Path, trained: Path, steps: int) -> Iterator[str]:
    """Yield the evaluations up to a step whose answers another training of the cell does not repeat, as sentences."""
    for path, record in evaluations.all_evaluations(folder):
        again = evaluation_path(trained, record["task"], record["step"])
        if record["step"] > steps or not again.exists():  # the last of the training again ends earlier
            continue
        answers = evaluations.answers_sha256(again, evaluations.read_evaluation(again))
        if evaluations.answers_sha256(path, record) != answers:
            yield f"{record['task']} at step {record['step']}: its answers are other ones"


def check_replay(pack: Pack, cell: str, steps: int) -> None:
    """Refuse a cell that the pack lacks or this machine cannot repeat, and more steps than it has."""
    folders = {CellSpec.read(folder).id: folder for folder in pack.cells}
    if cell not in folders:
        raise UserError(f"--replay is {cell!r}, which is not a cell of the pack; {nearest(cell, folders)}")
    folder, spec = folders[cell], CellSpec.read(folders[cell])
    most = len(MetricsLog(folder).read()) - 1  # the first line is of step 0, before any training
    if most < 1:
        raise UserError(f"{spec.key.run_name} has no step of training, so nothing of it can be replayed")
    if not 1 <= steps <= most:
        raise UserError(f"--steps is {steps}; allowed: 1 to {most}, the steps of the cell")
    if reason := obstacle(folder, spec):
        raise UserError(f"{spec.key.run_name} cannot be replayed here: {reason}")


def trained_lines(spec: CellSpec, folder: Path, steps: int) -> list[dict[str, Any]]:
    """Train the first steps of a cell in a folder, and return the lines of its log."""
    import transformers

    from harness.cells.checksums import CHECKPOINTS
    from harness.launch.cell import trainer_of
    from harness.train.checkpoint import Checkpoints
    from harness.train.parts import build_parts
    from harness.verify.pool import VerifierPool

    transformers.utils.logging.disable_progress_bar()
    spec.write(folder)
    with VerifierPool.of(spec.config.verify) as verifier:
        parts = build_parts(spec, verifier, say=lambda message: None)
        trainer = trainer_of(parts, folder, Checkpoints(folder / CHECKPOINTS, spec.id))
        # The second function is asked after each step whether training should stop.
        trainer.run(lambda step: None, lambda: trainer.done_steps >= steps)
    return MetricsLog(folder).read()


def first_difference(kept: dict[str, Any], new: dict[str, Any]) -> str | None:
    """Return the first metric in which two lines differ, as a sentence; None if they are equal."""
    ours, theirs = new["metrics"], kept["metrics"]
    for key in {**theirs, **ours}:
        # As text, since NaN differs from itself.
        before, now = json.dumps(theirs.get(key)), json.dumps(ours.get(key))
        if before != now and not key.startswith(CLOCK):
            return f"{key} is {now}, and {before} in the pack"
    return None
