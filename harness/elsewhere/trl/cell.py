"""A cell that TRL trains: the same records, evaluations and checkpoints as of a cell that our own trainer trains.

TRL is imported when training begins: its imports take seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import ranks
from harness.base import files, seeds
from harness.cells import checksums
from harness.cells.evaluations import evaluation_due
from harness.cells.log import MetricsLog, early_end
from harness.cells.spec import CellSpec
from harness.elsewhere.portable import PortableMethod
from harness.rollout import proof
from harness.tokens.metrics import Stopwatch
from harness.train.cell_evaluation import CellEvaluator
from harness.train.checkpoint import Checkpoints
from harness.train.parts import Parts


def training_of(spec: CellSpec, parts: Parts, folder: Path, checkpoints: Checkpoints) -> TrlTraining:
    """Return the training of a cell by TRL."""
    # Without it, accelerate sets the threads of torch to all cores where a cell has several ranks.
    os.environ.setdefault("OMP_NUM_THREADS", str(spec.config.hardware.threads))
    method = PortableMethod(spec.key.method, spec.config.plugins, spec.config.method_options)
    return TrlTraining(parts, method, folder, checkpoints)


class TrlTraining:
    """The training of one cell by TRL, as `harness.train.trainer.Trainer` is ours."""

    def __init__(self, parts: Parts, method: PortableMethod, folder: Path, checkpoints: Checkpoints) -> None:
        self.parts, self.method, self.folder, self.checkpoints = parts, method, folder, checkpoints
        self.config, self.policy = parts.config, parts.policy
        self.log = MetricsLog(folder)
        self.done_steps = -1  # -1: not even the evaluation before training is done
        self.early_end: int | None = None  # the step after which `stop` ends training

    @property
    def last_step(self) -> int:
        """The step at which training ends, as far as it is known."""
        return self.config.train.steps if self.early_end is None else self.early_end

    def run(self, on_durable: Callable[[int], None], leaving: Callable[[], bool] = lambda: False) -> None:
        """Train from the last checkpoint to the end, or until the process is asked to stop (`leaving`)."""
        from harness.elsewhere.trl.cell_trainer import RecordedTrainer

        self.on_durable, self.leaving = on_durable, leaving
        checkpoint = self.resume()
        with temporary_folder(self.folder / "trl") as place:
            self.trainer = RecordedTrainer(
                self.parts, self.method, self.folder, place, self.end_step, self.end_checkpoint
            )
            self.trainer.generated = self.generated_before()
            if checkpoint is None:
                self.evaluated(0, dict(self.parts.pool.record), Stopwatch(self.parts.heartbeat))
            elif self.done_steps == self.last_step:  # only the trained model is missing
                self.trainer._load_from_checkpoint(str(checkpoint))
            if self.done_steps < self.last_step:
                self.trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        self.checkpoints.keep(1)

    def resume(self) -> Path | None:
        """Take over the newest whole checkpoint, if there is one; return its folder."""
        checkpoint = self.checkpoints.newest()
        if checkpoint is not None:
            self.done_steps = checksums.step_of(checkpoint)
            self.on_durable(self.done_steps)
        if ranks.own_rank() == 0:
            self.log.truncate(self.done_steps)  # later steps are trained again, and logged again
            self.early_end = early_end(self.log.read(), self.config.stop)
        self.early_end = ranks.of_first(self.early_end)
        return checkpoint

    def generated_before(self) -> int:
        """Return the tokens that were sampled up to the checkpoint."""
        lines = ranks.of_first(self.log.read())
        return int(lines[-1]["metrics"].get("tokens/generated_total", 0)) if lines else 0

    # After each step

    def end_step(self, record: dict[str, float]) -> None:
        """Log the step that TRL has done, and decide whether it saves a checkpoint and goes on."""
        step, control = self.done_steps + 1, self.trainer.control
        assert step == self.trainer.step - 1
        # Before the evaluation: this may make the step the last one, which is always evaluated.
        self.early_end = early_end([{"step": step, "metrics": record}], self.config.stop)
        self.evaluated(step, record, Stopwatch(self.parts.heartbeat))
        early = ranks.of_first(self.leaving())  # one rank's answer for all, or some would wait for the others forever
        control.should_save = early or step % self.config.checkpoint.every == 0 or step == self.last_step
        control.should_training_stop = early or step == self.last_step

    def end_checkpoint(self, saved: Path) -> None:
        """Make the checkpoint that TRL has saved one of the cell's."""
        self.checkpoints.take(saved, self.done_steps)
        self.on_durable(self.done_steps)

    def evaluated(self, step: int, record: dict[str, float], watch: Stopwatch) -> None:
        """Append a step to the log, with its evaluation if that is due."""
        if evaluation_due(self.config, step, self.last_step):
            with watch.phase("evaluate"):
                record |= self.evaluate(step)
        if ranks.own_rank() == 0:
            self.log.append(step, time.time(), record | watch.seconds)
        self.done_steps = step

    def evaluate(self, step: int) -> dict[str, float]:
        """Evaluate the present weights with the cell's engine; return the scores."""
        parts, module = self.parts, self.policy.module
        parts.engine.load(module)
        seed = seeds.derive("proof", parts.seed, step)
        proof.check_engine_weights(parts.engine, module, self.policy.dtype, seed)
        record = CellEvaluator.of_parts(parts, self.folder, parts.engine).evaluate(step)
        parts.engine.rest()
        return record


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder of all ranks, which rank 0 removes at the end."""
    if ranks.own_rank() == 0:
        with files.temporary_path(path) as place:
            yield ranks.of_first(place)
            ranks.meet()  # TRL on another rank may still read it
            files.remove_path(place)
    else:
        place_of_first = ranks.of_first(None)
        assert place_of_first is not None
        yield place_of_first
        ranks.meet()
