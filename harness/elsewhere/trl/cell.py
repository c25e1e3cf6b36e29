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
from harness.base import files
from harness.cells import checksums
from harness.cells.log import early_end
from harness.cells.spec import CellSpec
from harness.elsewhere.portable import PortableMethod
from harness.tokens.metrics import Stopwatch
from harness.train.checkpoint import Checkpoints
from harness.train.parts import Parts
from harness.train.trainer import Trainer


def training_of(spec: CellSpec, parts: Parts, folder: Path, checkpoints: Checkpoints) -> TrlTraining:
    """Return the training of a cell by TRL."""
    # Without it, accelerate sets the threads of torch to all cores where a cell has several ranks.
    os.environ.setdefault("OMP_NUM_THREADS", str(spec.config.hardware.threads))
    method = PortableMethod(spec.key.method, spec.config.plugins, spec.config.method_options)
    return TrlTraining(parts, method, folder, checkpoints)


class TrlTraining(Trainer):
    """The training of one cell by TRL, with the record, the engine and the evaluations of our own."""

    def __init__(self, parts: Parts, method: PortableMethod, folder: Path, checkpoints: Checkpoints) -> None:
        super().__init__(parts, folder, checkpoints)
        self.portable = method

    def run(self, on_durable: Callable[[int], None], leaving: Callable[[], bool] = lambda: False) -> None:
        from harness.elsewhere.trl.cell_trainer import RecordedTrainer

        self.on_durable, self.leaving = on_durable, leaving
        checkpoint = self.checkpoints.newest()
        if checkpoint is not None:
            self.done_steps = checksums.step_of(checkpoint)
            on_durable(self.done_steps)
        self.resume_log()
        with temporary_folder(self.folder / "trl") as place:
            self.trainer = RecordedTrainer(
                self.parts, self.portable, self.collector, place, self.end_step, self.end_checkpoint
            )
            lines = ranks.of_first(self.log.read())
            self.trainer.generated = int(lines[-1]["metrics"].get("tokens/generated_total", 0)) if lines else 0
            if checkpoint is None:
                self.evaluated(0, dict(self.parts.pool.record), Stopwatch(self.parts.heartbeat))
            elif self.done_steps == self.last_step:  # only the trained model is missing
                self.trainer._load_from_checkpoint(str(checkpoint))
            if self.done_steps < self.last_step:
                self.trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        self.checkpoints.keep(1)

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
        if self.evaluation_due(step):
            with watch.phase("evaluate"):
                self.synchronise(step)
                record |= self.evaluate(step)
                self.engine.rest()
        if ranks.own_rank() == 0:
            self.log.append(step, time.time(), record | watch.seconds)
        self.done_steps = step


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
