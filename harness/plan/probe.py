"""A measurement of a few steps of the largest cell, and the time of the matrix at that speed."""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from harness import runs
from harness.base.errors import UserError
from harness.base.terminal import console
from harness.base.units import about_duration, plural
from harness.cells.log import MetricsLog
from harness.cells.state import State
from harness.config import Config, Stop
from harness.launch import launcher
from harness.matrix import Cell, Shared
from harness.plan import cost
from harness.plan.estimate import CellTime, Plan, seconds_of_step
from harness.plan.show import side_by_side_line

STEPS = 3  # the first one takes longer than the others and does not count


@dataclass(frozen=True)
class StepProbe:
    """The measured time of a step."""

    label: str
    step: float  # seconds
    prompts: int  # of a step
    response: float  # seconds of the engine for each response of a step
    length: float  # mean tokens of a response
    start: float  # seconds of a cell besides its steps: its process, the model, the verifier

    def seconds(self, config: Config, length: int | None = None) -> float:
        """Return the seconds of a cell at this speed, with its evaluations and without a filter that cells share.

        They are in proportion to the prompts of a step, and to the length of responses if one is given, but for those
        of the start, which are most of a small model's.
        """
        evaluated = sum(count.responses for count in cost.evaluation_responses(config).values())
        steps = config.train.steps * self.step * config.train.prompts / self.prompts
        longer = 1 if length is None else length / self.length
        return longer * (steps + cost.evaluation_count(config) * evaluated * self.response) + self.start


def largest_cell(plan: Plan) -> Cell:
    """Return the missing cell that needs the most memory."""
    peaks = {(each.model, method): each.memory.peak for each in plan.footprints for method in each.methods}
    missing = [cell for cell, now in plan.progress if now.missing and (cell.model, cell.method) in peaks]
    if not missing:
        raise UserError("--probe measures a missing cell, but there is none whose model has a known shape")
    return max(missing, key=lambda cell: peaks[cell.model, cell.method])


def short_cell(cell: Cell, folder: Path) -> Cell:
    """Return a cell that runs only a few steps, with a folder of its own."""
    config = cell.config
    # The filter and the evaluations are not part of a step: without the one, and as few of the other as is allowed. A
    # cell that ends early would leave nothing to measure.
    train = dataclasses.replace(config.train, steps=STEPS, filter=None)
    rollout = dataclasses.replace(config.rollout, lag=min(config.rollout.lag, STEPS - 1))
    evaluation = dataclasses.replace(config.eval, problems=1, samples=config.eval.k, every=0, by_task={})
    checkpoint = dataclasses.replace(config.checkpoint, save_model=False)
    short_config = dataclasses.replace(
        config, results=str(folder), train=train, rollout=rollout, eval=evaluation, stop=Stop(), checkpoint=checkpoint
    )
    return dataclasses.replace(cell, config=short_config, shared=Shared(short_config))


def read_probe(ran: Cell) -> StepProbe:
    """Return the measurement that a short cell left in its folder."""
    state = State.read(ran.folder)
    if state.state != "done":
        raise UserError(f"the measured cell, {ran.label}, failed: {state.reason}")
    steps = [line["metrics"] for line in MetricsLog(ran.folder).read()[2:]]  # without step 0 and the first
    rollout = fmean(step["time/rollout_s"] for step in steps)
    return StepProbe(
        ran.label,
        step=fmean(map(seconds_of_step, steps)),
        prompts=ran.config.train.prompts,
        response=rollout / cost.step_responses(ran.config).responses,
        length=fmean(step["responses/length"] for step in steps),
        start=CellTime.read(ran.folder, state.seconds).rest,
    )


def probe_lines(probe: StepProbe, plan: Plan, length: int | None = None) -> list[str]:
    """Return the measurement as text, with the time of the matrix if all missing cells are as fast.

    `length`: the mean tokens of a response, if not those that were measured.
    """
    seconds, cells = plan.missing * probe.seconds(plan.config, length), plural(plan.missing, "cell")
    scaled = "" if length is None else f" and {length:,} tokens a response"
    return [
        f"measured: a step of {probe.label} took {probe.step:.3g} s with responses of {probe.length:,.0f} tokens, of "
        f"{plan.config.rollout.max_new_tokens:,} at most",
        f"at that speed{scaled}, {cells} will take {about_duration(seconds)} one after the other",
        side_by_side_line(plan, seconds),
    ]


def measured_step(config: Config, plan: Plan) -> StepProbe:
    """Run a few steps of the largest missing cell of a plan."""
    cell = largest_cell(plan)
    with tempfile.TemporaryDirectory() as folder:
        runs.check_engines([cell])
        runs.fetch_models(config)
        short = short_cell(cell, Path(folder))
        with console.status(f"measuring {cell.label}"):
            launcher.run_cells([short], runs.local_launcher(short.settled, 1), launcher.Watcher())
        return read_probe(short)
