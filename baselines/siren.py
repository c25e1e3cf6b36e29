from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.method import Control, View

if TYPE_CHECKING:
    from torch import Tensor

    from harness.batch import TokenBatch


@dataclass(frozen=True)
class Siren(Control):
    """Holds the entropy of the most uncertain positions of each response at what it was in the beginning.

    L = coefficient (H_top - anchor)^2, H_top the mean of the present H over the positions of a mini-batch whose H is
    not below the quantile of their response, and anchor the same of the first rollout batch before its update. There
    is no term during the first step, whose end sets the anchor.

    H is that of the full vocabulary, and not that of the nucleus of the 0.8 likeliest as in the authors' code. The loss
    is one number for a mini-batch (with normalise=token it is divided as in the equation). Costs a forward pass of each
    mini-batch.
    """

    source = "arXiv:2509.25133"
    needs = frozenset({"entropy_grad"})

    coefficient: float = number(0.005, least=0)
    quantile: float = number(0.8, least=0, most=1)

    @cached_property
    def memory(self) -> dict[str, float]:
        return {}

    def step_marks(self, view: View) -> Mapping[str, Tensor]:
        assert view.current.entropy is not None
        entropy_T = view.current.entropy.detach()
        top_T, mean = self.top(entropy_T, view.batch)
        away = mean - self.memory.get("anchor", mean)
        weight = 2 * self.coefficient * away * view.batch.global_tokens() / view.batch.global_count(top_T)
        return {"slope": weight * top_T.to(entropy_T.dtype), "value": self.coefficient * away**2}

    def term(self, view: View) -> Tensor:
        entropy_T = view.current.entropy
        assert entropy_T is not None
        return view.marks["value"] + view.marks["slope"] * (entropy_T - entropy_T.detach())

    def top(self, entropy_T: Tensor, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Returns the chosen positions, and the mean entropy over them."""
        sequence_T = batch.sequence_T
        falling = entropy_T.argsort(descending=True, stable=True)
        order = falling[sequence_T[falling].argsort(stable=True)]
        place_T = order.new_empty(order.shape).index_copy(0, order, batch.within_T)
        kept_B = batch.lengths_B - ((batch.lengths_B - 1).double() * self.quantile).ceil().long()
        top_T = place_T < kept_B[sequence_T]
        return top_T, batch.global_sum(entropy_T * top_T) / batch.global_count(top_T)

    def metrics(self, view: View) -> Mapping[str, float]:
        assert view.old.entropy is not None
        return {"entropy_top": self.top(view.old.entropy, view.batch)[1].item()}

    def observe(self, metrics: Mapping[str, float]) -> None:
        self.memory.setdefault("anchor", metrics["entropy_top"])

    def state(self) -> dict[str, float]:
        return dict(self.memory)

    def load_state(self, state: Mapping[str, float]) -> None:
        self.memory.update(state)
