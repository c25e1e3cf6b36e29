"""The answers of the model before training: sampled by the first cell of a matrix that needs them, taken by the others.

All cells of a seed begin with the same weights, problems and sampling seeds, and so with the same answers. These are
kept in the matrix's folder under the hash of everything that decides them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tasks
from harness import ranks
from harness.base import files, identities, locks
from harness.base.errors import Damaged
from harness.cells.provenance import Made, component_classes
from harness.cells.spec import BASE_ANSWERS, MARKER
from harness.config import Config
from harness.rollout.rendering import Chat
from tasks import Problem, Task

# In the record of an attempt, what decides answers along with the configuration.
COMPUTES = ("base_model", "harness", "versions", "processor", "device", "rounding")


@dataclass(frozen=True)
class BaseAnswers:
    """The kept answers to the problems of a task."""

    folder: Path
    task: Task
    deciding: dict[str, Any]  # everything that decides the answers, but the problems and the sampling
    rendered: Callable[[Problem], list[int]]  # the tokens of a prompt
    on_progress: Callable[[], None]

    @classmethod
    def of_cell(
        cls,
        cell: Path,
        config: Config,
        task: Task,
        rendered: Callable[[Problem], list[int]],
        chat: Chat,
        on_progress: Callable[[], None],
    ) -> BaseAnswers | None:
        """Return the answers that a cell shares; None outside of a matrix, or where nothing says what computes."""
        made = Made.read(cell) if (cell.parent / MARKER).exists() else None
        if made is None or made.base_model is None or made.harness is None:
            return None
        (name,) = component_classes([task], tasks.task_table(config.plugins))
        deciding = {
            **{part: getattr(made, part) for part in COMPUTES},
            "engine": config.rollout.engine,
            "dtype": config.train.dtype,
            "ranks": ranks.count(),
            "chat": chat.identity(),
            "task": identities.component_identity(task),
            "source": made.sources[name],
            "verify": [config.verify.limit_s, config.verify.max_failures],
        }
        return cls(cell.parent / BASE_ANSWERS, task, deciding, rendered, on_progress)

    def answers(self, sample: ranks.Work, problems: Sequence[Problem], **sampling: Any) -> list[dict[str, Any]]:
        """Return the records of the answers to problems: the kept ones, or those of `sample`, which are then kept."""
        as_seen = [[problem.identity(), self.rendered(problem)] for problem in problems]
        identity = {**self.deciding, "problems": identities.hash_of(as_seen), "sampling": sampling}
        path = self.folder / f"{self.task.name}-{identities.key(identity)}.json"
        self.folder.mkdir(exist_ok=True)
        with locks.held(path.with_suffix(".lock"), self.on_progress):  # after a cell that samples the same answers now
            records = kept_records(path, identity)
            if records is None:
                records = sample(problems, **sampling)
                files.write_sealed(path, {"identity": identity, "records": records})
        return records


def kept_records(path: Path, identity: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the records in a file; None without one, or if it was changed or holds other answers."""
    if not path.exists():
        return None
    try:
        kept = files.read_sealed(path)
    except Damaged as damage:
        print(f"warning: {damage}; the model before training is evaluated again", flush=True)
        return None
    same = identities.hash_of(kept["identity"]) == identities.hash_of(identity)
    return kept["records"] if same else None
