"""The methods: one file each, and one explicit table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from baselines.adaptive_entropy import AdaptiveEntropy
from baselines.ce_gppo import CeGppo
from baselines.clip_b import ClipB
from baselines.clip_predict import ClipPredict
from baselines.clip_servo import ClipServo
from baselines.clip_v import ClipV
from baselines.covariance import ClipCov, KlCov
from baselines.entrocraft import Entrocraft
from baselines.entropic import Entropic
from baselines.entropy_advantage import EntropyAdvantage
from baselines.entropy_bonus import EntropyBonus
from baselines.erc import Erc
from baselines.grpo import Grpo
from baselines.low_prob import LowProb
from baselines.opefo import Opefo
from baselines.ppo import Ppo
from baselines.quadrant import Quadrant
from baselines.random_reward import RandomReward
from baselines.repo_r import RepoR
from baselines.sequence_mask import SequenceMask
from baselines.siren import Siren
from baselines.stare import Stare
from baselines.steer import Steer
from baselines.top_entropy import TopEntropy
from baselines.ucpo import Ucpo
from baselines.unlikeliness import Unlikeliness
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
    "clip_cov": ClipCov,
    "kl_cov": KlCov,
    "top_entropy": TopEntropy,
    "low_prob": LowProb,
    "entropy_advantage": EntropyAdvantage,
    "unlikeliness": Unlikeliness,
    "ucpo": Ucpo,
    "erc": Erc,
    "steer": Steer,
    "stare": Stare,
    "opefo": Opefo,
    "siren": Siren,
    "entropic": Entropic,
    "entrocraft": Entrocraft,
    "repo_r": RepoR,
    "sequence_mask": SequenceMask,
    "quadrant": Quadrant,
    "random_reward": RandomReward,
    "clip_servo": ClipServo,
    "clip_predict": ClipPredict,
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
