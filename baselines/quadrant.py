from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.base.errors import one_of
from harness.base.schema import choice
from harness.methods.verbs import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


QUADRANTS = ("positive_above", "positive_below", "negative_above", "negative_below")


@dataclass(frozen=True)
class Quadrant(Control):
    """Learns from the tokens of selected quadrants only, by the signs of A and of an entropy discriminator.

        positive, negative: the sign of A
        above, below:       the sign of S* - N (by=deviation) or of S* (by=s_star)

    A token where either is 0 is in no quadrant. positive_above and negative_below lower the entropy, the other two
    raise it. This is the paper's experiment on Theorem 3.2.

    Defaults: ours; `keep` has the two quadrants that raise the entropy.

    Differs: the paper trains on one quadrant at a time with `by=s_star`; `entrobench dynamics` does the same.
    """

    source = "arXiv:2602.03392"
    needs = frozenset({"sum_p2"})

    keep: list[str] = field(default_factory=lambda: ["positive_below", "negative_above"])
    by: str = choice("deviation", ("deviation", "s_star"))

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.keep:
            one_of("a name in keep", name, QUADRANTS)

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        signal_T = old.discriminator if self.by == "s_star" else old.discriminator - old.expected_discriminator
        kept_T = advantages_T.new_zeros(advantages_T.shape).bool()
        for name in self.keep:
            sign, side = name.split("_")
            of_sign_T = advantages_T > 0 if sign == "positive" else advantages_T < 0
            on_side_T = signal_T > 0 if side == "above" else signal_T < 0
            kept_T = kept_T | (of_sign_T & on_side_T)
        return kept_T
