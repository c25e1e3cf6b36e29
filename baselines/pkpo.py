from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING

from baselines.grpo import Grouped
from harness.base.schema import choice, number
from harness.methods.verbs import ClippedObjective

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch


@dataclass(frozen=True)
class Pkpo(ClippedObjective, Grouped):
    """Clipped policy gradient of the best reward among k responses, estimated without bias from all n of a group.

        s_i = k mean_J max(R_i, max_J R)
        A_i = k mean_J (max(R_i, max_J R) - max_J R)        baseline=sloo_minus_one
        A_i = s_i - k n / (n - 1) mean_K max_K R            baseline=sloo

    J runs over the choices of k - 1 other responses to the prompt, and K over those of k others. With rewards of 0 and
    1 the best reward is Pass@k; other rewards give max@k. The surrogate is GRPO's. Neither baseline depends on its own
    response, so neither biases the gradient. With `sloo_minus_one` no advantage is below 0, and equal rewards have
    none. With `sloo` equal rewards R have the advantage -k R / (n - 1).

    Defaults: the paper recommends `sloo_minus_one` (its equation 33; `sloo` is 29); k as in `passk`; clips as in
    `grpo`.

    Differs: the paper sums s_i over a group, where the loss here is a mean; so s_i and A_i have a factor of n. The
    paper has no ratio and no clip.
    """

    source = "arXiv:2505.15201"

    k: int = number(4, least=2)
    baseline: str = choice("sloo_minus_one", ("sloo_minus_one", "sloo"))

    @property
    def min_group(self) -> int:
        return self.k + (self.baseline == "sloo")

    def compared(self, rewards_PG: Tensor, batch: TokenBatch) -> Tensor:
        n = rewards_PG.shape[1]
        another_GG = ~rewards_PG.new_ones(n).diag().bool()
        # O: the other responses of the group, by ascending reward as largest_weights expects them.
        others_PGO = rewards_PG[:, None].expand(-1, n, -1)[:, another_GG].view(-1, n, n - 1).sort(2).values
        best_PGO = rewards_PG[:, :, None].maximum(others_PGO)
        fewer_O = largest_weights(rewards_PG, n - 1, self.k - 1)
        if self.baseline == "sloo_minus_one":
            return self.k * ((best_PGO - others_PGO) @ fewer_O)
        of_others_PG = others_PGO @ largest_weights(rewards_PG, n - 1, self.k)
        return self.k * (best_PGO @ fewer_O - n / (n - 1) * of_others_PG)


def largest_weights(like: Tensor, count: int, size: int) -> Tensor:
    """Return the probability of each of `count` values, in ascending order, to be the largest of `size` drawn ones."""
    return like.new_tensor([comb(below, size - 1) / comb(count, size) for below in range(count)])
