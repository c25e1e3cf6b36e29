from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.methods.verbs import ClippedObjective

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Ppo(ClippedObjective):
    """Clipped policy gradient with a learned critic and generalized advantage estimation.

        delta_t = R_t + gamma V_{t+1} - V_t
        A_t     = sum_l (gamma lam)^l delta_{t+l}
        Ret_t   = A_t + V_t
        L_V     = 0.5 max((V - Ret)^2, (clip(V, V_old - value_clip, V_old + value_clip) - Ret)^2)

    The last token gets the reward, and V = 0 after it. J is that of `grpo` with the advantages whitened over all tokens
    of the rollout batch: (A - mean A) / sqrt(var A + 1e-8).

    Defaults: verl; `gamma=1, lam=1` also in Open-Reasoner-Zero. Generalized advantage estimation is from
    arXiv:1506.02438.

    Differs: whitening covers all ranks and divides by the population deviation (verl: n - 1). A KL term is in the loss
    and not in the reward. A response that was cut off ends with value 0, like one that ended with the end-of-sequence
    token.
    """

    source = "arXiv:1707.06347"
    needs = frozenset({"values"})

    gamma: float = number(1.0, least=0, most=1)
    lam: float = number(1.0, least=0, most=1)
    value_clip: float | None = number(0.5, least=0)
    critic_lr: float = number(1e-5, above=0)

    def advantages(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        return whitened(self.estimated(old, batch), batch)

    def returns(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        assert old.values is not None
        return self.estimated(old, batch) + old.values

    def estimated(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        """Return the advantages of the estimate, in the units of the reward."""
        assert old.values is not None
        after_T = batch.lengths_B[batch.sequence_T] - 1 - batch.within_T
        last_T = after_T == 0
        rewards_T = batch.rewards_B[batch.sequence_T] * last_T
        delta_T = rewards_T + self.gamma * old.values.roll(-1) * ~last_T - old.values
        return discounted(delta_T, self.gamma * self.lam, after_T)

    def value_loss(self, values_T: Tensor, old_values_T: Tensor, returns_T: Tensor) -> Tensor:
        loss_T = (values_T - returns_T) ** 2
        if self.value_clip is not None:
            near_T = values_T.clamp(old_values_T - self.value_clip, old_values_T + self.value_clip)
            loss_T = loss_T.maximum((near_T - returns_T) ** 2)
        return 0.5 * loss_T


def whitened(advantages_T: Tensor, batch: TokenBatch) -> Tensor:
    """Return the advantages with mean 0 and deviation 1 over the rollout batch; all 0 if they are equal."""
    centered_T = batch.global_centered(advantages_T)
    return (centered_T / (batch.global_mean(centered_T**2) + 1e-8).sqrt()).to(advantages_T.dtype)


def discounted(x_T: Tensor, factor: float, after_T: Tensor) -> Tensor:
    """Return sum_l factor^l x_{t+l} within each response, where `after_T` tokens follow token t.

    Each pass doubles the number of terms in every sum, so a response of n tokens takes log2(n) passes instead of n.
    """
    terms = 1
    while (after_T >= terms).any():
        x_T = x_T + factor**terms * x_T.roll(-terms) * (after_T >= terms)
        terms *= 2
    return x_T
