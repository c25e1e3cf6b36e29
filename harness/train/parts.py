"""Names all that a cell trains with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.composition import Method
from harness.config import Config
from harness.rollout.protocol import Engine
from harness.rollout.rendering import Chat
from harness.train.filter import Pool
from harness.train.policy import Critic, Policy
from tasks import Task, Verifier


@dataclass(frozen=True)
class Parts:
    """All that a cell trains with."""

    config: Config
    seed: int
    method: Method
    task: Task
    evaluation_tasks: list[Task]
    pool: Pool  # the problems that are trained on
    policy: Policy
    critic: Critic | None
    reference: Policy | None  # the model before training
    engine: Engine
    tokenizer: Any
    verifier: Verifier
    chat: Chat
