"""The curves that the rules read, and the keys under which each trainer logs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.diagnose.curves import MetricCurve

OURS, TRL, VERL = "entrobench", "TRL", "verl"
# Prefix of our keys that our methods log in TRL (entrobench.trl) and in verl (entrobench.verl).
DOOR = "entrobench/"
BONUS = "entropy_bonus.coefficient"  # from the configuration of a cell: no step logs it
CLIPPED = "ratio/clipped_low + ratio/clipped_high"

TRAINERS = (OURS, TRL, VERL)
Keys = tuple[str, ...]

# By name: the keys of entrobench, TRL 1.16 and verl 0.9, the newest first; empty where a trainer logs no such curve.
# TRL's keys were read in `grpo_trainer.py`, verl's in `metric_utils.py`, `core_algos.py` and `utils/debug/metrics.py`.
SIGNALS: Mapping[str, tuple[Keys, Keys, Keys]] = {
    "entropy": (("entropy/mean",), ("entropy",), ("actor/entropy", "actor/entropy_loss")),
    "reward": (("reward/mean",), ("reward",), ("critic/score/mean", "critic/rewards/mean")),
    # TRL's and verl's rewards have no known maximum, so their curves cannot say that nearly all answers are right.
    "right": (("reward/mean",), (), ()),
    "without_signal": (("reward/groups_without_signal",), ("frac_reward_zero_std",), ()),
    "unparsed": (("verdicts/unparsed",), (), ()),
    "distinct": (("responses/distinct_answers",), (), ()),
    "truncated": (("responses/truncated",), ("completions/clipped_ratio",), ("response_length/clip_ratio",)),
    "after_answer": (("responses/after_answer",), (), ()),
    "clipped": ((CLIPPED,), ("clip_ratio/region_mean",), ("actor/pg_clipfrac",)),
    "gradient": (("gradient/norm",), ("grad_norm",), ("actor/grad_norm",)),
    # The mean of old minus present log p over the updates of a step, which entrobench and TRL do not log.
    "step_kl": ((), (), ("actor/ppo_kl",)),
    "reference_kl": ((), ("kl",), ("actor/kl_loss",)),
    # verl's is of probabilities, which differ at most as much as their logarithms.
    "mismatch": (
        ("mismatch/mean",),
        ("sampling/sampling_logp_difference/mean",),
        ("training/rollout_probs_diff_mean",),
    ),
    "bonus": ((BONUS, "state/adaptive_entropy/coefficient"), ("entropy_coef",), ()),
    "positive_mass": (("mass/positive",), (f"{DOOR}mass/positive",), (f"{DOOR}mass/positive",)),
    "negative_mass": (("mass/negative",), (f"{DOOR}mass/negative",), (f"{DOOR}mass/negative",)),
    "push_likely_right": (("dynamics/positive_above/push",), (), ()),
    "push_unlikely_wrong": (("dynamics/negative_below/push",), (), ()),
}

KEYS = {key for by_trainer in SIGNALS.values() for keys in by_trainer for key in keys}


@dataclass(frozen=True)
class LoggedRun:
    """The curves of one run by key, as a trainer has logged them."""

    path: Path
    trainer: str
    curves: Mapping[str, MetricCurve]
    method: str | None = None  # known of a cell of ours
    stopped: int | None = None  # the step at which stop.entropy_below ended a cell of ours
    notes: list[str] = field(default_factory=list)

    def signal(self, name: str) -> MetricCurve | None:
        """Return the curve of a signal; None if the run has not logged it."""
        for key in signal_keys(name, self.trainer):
            curve = self.curves.get(key)
            if curve is not None and curve.steps:
                return curve
        return None


def signal_keys(name: str, trainer: str) -> Keys:
    """Return the keys under which a trainer may log a signal."""
    return SIGNALS[name][TRAINERS.index(trainer)]
