from __future__ import annotations

from dataclasses import dataclass

from baselines.w_reinforce import Verdicts
from harness.method import ClippedObjective


@dataclass(frozen=True)
class WReinforcePpo(ClippedObjective, Verdicts):
    """W-REINFORCE with PPO's clipped ratio, as the authors run it.

    A = right for a right response, -wrong for a wrong one, in PPO's clipped objective. At one update per rollout batch
    it has the gradient of w_reinforce.

    For NSR and PSR the authors' code takes the other responses out of the batch, so that its mean is over the tokens
    of wrong or of right ones alone; here it is over all tokens.
    """

    source = "arXiv:2506.01347"
