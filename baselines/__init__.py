"""The methods: one file each, and one explicit table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from baselines.adaptive_entropy import AdaptiveEntropy
from baselines.ce_gppo import CeGppo
from baselines.clip_b import ClipB
from baselines.clip_v import ClipV
from baselines.entropy_bonus import EntropyBonus
from baselines.grpo import Grpo
from baselines.ppo import Ppo
from harness.base.errors import UserError
from harness.base.plugins import extended
from harness.method import Component, Composition, Control, Objective

METHODS: dict[str, type[Component] | Composition] = {
    "grpo": Grpo,
    "ppo": Ppo,
    "ce_gppo": CeGppo,
    "clip_b": ClipB,
    "clip_v": ClipV,
    "entropy_bonus": EntropyBonus,
    "adaptive_entropy": AdaptiveEntropy,
}


def table(plugins: Iterable[str] = ()) -> dict[str, type[Component] | Composition]:
    """All methods by name: METHODS, those of installed packages (entry points), and those of plugin modules."""
    return extended("method", METHODS, "METHODS", plugins, check)


def check(name: str, cls: Any, plugin: str) -> None:
    if not (isinstance(cls, Composition) or (isinstance(cls, type) and issubclass(cls, Objective | Control))):
        raise UserError(
            f"method {name!r} of plugin {plugin} is {cls!r}; it must be a subclass of Objective or Control, or a "
            "Composition of them"
        )
