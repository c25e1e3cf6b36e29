from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import Grouped
from harness.methods.verbs import ClippedObjective

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Otb(ClippedObjective, Grouped):
    """Clipped policy gradient with the minimum-variance baseline at each token, over responses to one prompt.

        W_t  = sum_{j <= t} (1 - 2 p_j + sum_i p_i^2)
        B_t  = sum_i W_it R_i / (sum_i W_it + 1e-8)
        A_it = R_i - B_t

    W_t is the squared norm of the gradient of log p by the logits, summed from the start of the response. The sums of
    B_t cover the responses of the group that reach position t. If only one response reaches t, B_t = 0, or its own
    reward with `zero_tail=false`. In a group of equal rewards, B_t is exactly that reward. J is GRPO's.

    Defaults: verl, with `zero_tail` as in its later versions (false in earlier ones); clips as in `grpo`.

    Differs: no difference is known, without rollout weights in W.
    """

    source = "arXiv:2602.07078"
    needs = frozenset({"sum_p2"})

    zero_tail: bool = True

    def advantages(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        assert old.sum_p2 is not None
        summed_T = (1 - 2 * old.logp.exp() + old.sum_p2).double().cumsum(0)
        # The sum up to the token before the response; roll brings the last token to the front, where 0 is due.
        start_T = batch.starts_B[batch.sequence_T]
        before_T = summed_T.roll(1)[start_T] * (start_T > 0)
        weights_T = summed_T - before_T
        rewards_T = batch.rewards_B[batch.sequence_T].double()
        longest = int(batch.lengths_B.max())
        cell_T = (batch.groups_B - batch.groups_B[0])[batch.sequence_T] * longest + batch.within_T

        def over_group(x_T: Tensor) -> Tensor:
            """Return the sum over the responses of a group at each position."""
            cells = int(batch.groups_B[-1] - batch.groups_B[0] + 1) * longest
            return x_T.new_zeros(cells).index_add(0, cell_T, x_T)[cell_T]

        baseline_T = over_group(weights_T * rewards_T) / (over_group(weights_T) + 1e-8)
        rewards_PG = batch.grouped(batch.rewards_B)
        equal_P1 = rewards_PG.amax(1, keepdim=True) == rewards_PG.amin(1, keepdim=True)
        equal_T = equal_P1.expand_as(rewards_PG).flatten()[batch.sequence_T]
        baseline_T = rewards_T.where(equal_T, baseline_T)  # 1e-8 and rounding would move it slightly
        if self.zero_tail:
            baseline_T = baseline_T.masked_fill(over_group(weights_T * 0 + 1) == 1, 0)
        return (rewards_T - baseline_T).to(old.logp.dtype)
