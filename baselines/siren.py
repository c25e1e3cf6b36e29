from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from baselines.archer import above_quantile
from harness.base.schema import number
from harness.methods.verbs import Control, View

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Siren(Control):
    """Keeps the entropy of the most uncertain positions of each response at its initial value.

        L = coefficient (H_top - anchor)^2 for a whole mini-batch, with any normalise

    For each response, take the mean of the present H over its positions strictly above the quantile of the response, or
    0 if it has no such position, as with a single token. H_top is the mean of these over responses. The anchor is H_top
    of the first rollout batch before its first update.

    Defaults: the released code. The objective of its script is `siren_release`.

    Differs: H is that of the full vocabulary; the authors' is that of the nucleus of mass 0.8 among the 10,000
    likeliest tokens. Their code squares the difference of each micro-batch; here it is the mini-batch on all ranks.

    Logs: `siren/entropy_top` is H_top of the rollout batch before the update, `state/siren/anchor` the anchor.
    """

    source = "arXiv:2509.25133"
    needs = frozenset({"entropy_grad"})

    coefficient: float = number(0.005, least=0)
    quantile: float = number(0.8, least=0, most=1)

    @cached_property
    def remembered(self) -> dict[str, float]:
        return {}

    def marks(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        assert old.entropy is not None
        present = self.top(old.entropy, batch)[1]
        return {"anchor": present.new_tensor(self.remembered["anchor"]) if self.remembered else present}

    def step_marks(self, view: View) -> Mapping[str, Tensor]:
        assert view.current.entropy is not None
        entropy_T = view.current.entropy.detach()
        part_T, top = self.top(entropy_T, view.batch)
        away = top - view.marks["anchor"]
        slope_T = 2 * self.coefficient * away * part_T
        value = self.coefficient * away**2 / view.batch.global_tokens()
        return {"slope": slope_T.to(entropy_T.dtype), "value": value}

    def term(self, view: View) -> Tensor:
        entropy_T = view.current.entropy
        assert entropy_T is not None
        loss_T = view.marks["value"] + view.marks["slope"] * (entropy_T - entropy_T.detach())
        return loss_T / view.term_scale_T  # the loss multiplies each term by it

    def top(self, entropy_T: Tensor, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Return each position's factor in H_top, and H_top."""
        above_T = above_quantile(entropy_T, self.quantile, batch).double()
        number_B = batch.per_sequence(above_T).clamp(min=1) * batch.global_responses()
        part_T = above_T / number_B[batch.sequence_T]
        return part_T, batch.global_sum(part_T * entropy_T)

    def metrics(self, view: View) -> Mapping[str, float]:
        assert view.old.entropy is not None
        return {"entropy_top": self.top(view.old.entropy, view.batch)[1].item()}

    def observe(self, metrics: Mapping[str, float]) -> None:
        self.remembered.setdefault("anchor", metrics["entropy_top"])
