from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf
from typing import TYPE_CHECKING

from harness.base.errors import UserError
from harness.base.schema import choice, number
from harness.methods.shares import share_of
from harness.methods.verbs import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Stare(Control):
    """Weighs surprising tokens up if right and down if wrong, while the entropy is too low.

        L+ = the ceil(share n) of the n tokens with A > 0 that have the largest -log p; L- likewise for A < 0
        w  = positive on L+ where mean H < target
             negative on L- where mean H < target, with variant=c2 only
             1 otherwise

    The mean covers the rollout batch before the update, and ties go to the earlier token. If `step` is above 0, both
    weights move in each step, before they are used: positive += step sign(target - H), within 1 to most, and negative
    -= step sign(target - H), within least to 1.

    Defaults: the release for 7 B (1.05 and 0.95 for 14 B and 32 B). Its script leaves `step` at 0, and has 0.01 for
    runs with the adaptation. The objective of the script is `stare_release`.

    Differs: the authors' code selects in each micro-batch, by the present log p; here the selection covers the rollout
    batch before the update. Neither weight crosses 1.

    Logs: `state/stare/positive` and `state/stare/negative` are the weights after the step.
    """

    source = "arXiv:2606.19236"

    variant: str = choice("o1", ("o1", "c2"))
    share: float = number(0.1, least=0, most=1)
    positive: float = number(1.1, least=1)
    negative: float = number(0.9, least=0, most=1)
    target: float = number(0.3, least=0)
    step: float = number(0.0, least=0)
    most: float = number(1.5, least=1)
    least: float = number(0.5, least=0, most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant == "o1" and self.negative != type(self).negative:
            raise UserError(f"negative is {self.negative}; allowed: only with variant=c2")
        if self.positive > self.most:
            raise UserError(f"positive is {self.positive}; allowed: 1 to most ({self.most})")
        if self.negative < self.least:
            raise UserError(f"negative is {self.negative}; allowed: least ({self.least}) to 1")

    @cached_property
    def remembered(self) -> dict[str, float]:
        return {"positive": self.positive, "negative": self.negative}

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor | float:
        assert old.entropy is not None
        entropy = batch.global_mean(old.entropy).item()
        if entropy >= self.target:
            return 1.0
        factors = self.moved(entropy)
        weights_T = old.logp.new_ones(old.logp.shape)
        for side_T, name in ((advantages_T > 0, "positive"), (advantages_T < 0, "negative")):
            if name == "positive" or self.variant == "c2":
                number_chosen = ceil(share_of(self.share, batch.global_count(side_T)))
                surprise_T = (-old.logp).masked_fill(~side_T, -inf)
                chosen_T = batch.global_order(surprise_T) < number_chosen
                weights_T = weights_T.masked_fill(chosen_T, factors[name])
        return weights_T

    def moved(self, entropy: float) -> dict[str, float]:
        """Return both weights for a rollout batch of this mean entropy."""
        move = self.step * ((entropy < self.target) - (entropy > self.target))
        positive = min(max(self.remembered["positive"] + move, 1.0), self.most)
        negative = min(max(self.remembered["negative"] - move, self.least), 1.0)
        return {"positive": positive, "negative": negative}

    def observe(self, metrics: Mapping[str, float]) -> None:
        self.remembered.update(self.moved(metrics["entropy/mean"]))
