from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.methods.verbs import Control, View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class EntropyBonus(Control):
    """Adds the entropy of the policy to the objective, with a fixed coefficient.

        L_t = -coefficient H_t

    The gradient goes through the full-vocabulary H of the present policy.

    Defaults: the paper's coefficient; 0.001 to 0.01 is usual for language models.
    """

    source = "arXiv:1707.06347"
    needs = frozenset({"entropy_grad"})

    coefficient: float = number(0.01, least=0)

    def term(self, view: View) -> Tensor:
        assert view.current.entropy is not None
        return -self.coefficient * view.current.entropy
