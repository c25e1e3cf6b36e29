from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.methods.verbs import Control, View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Tre(Control):
    """Adds the entropy among the two likeliest tokens to the objective.

        q   = p of the two likeliest tokens, normalized again
        L_t = coefficient (log V / log 2) sum q log q

    The gradient goes through q of the present policy; V is the size of the vocabulary.

    Defaults: the released scripts of TRE-K, whose objective is PPO.

    Differs: TRE-P, by a nucleus, is not offered, nor are more than two tokens.
    """

    source = "arXiv:2602.03635"
    needs = frozenset({"likeliest_entropy"})

    coefficient: float = number(0.001, least=0)

    def term(self, view: View) -> Tensor:
        assert view.current.likeliest_entropy is not None
        return -self.coefficient * view.current.likeliest_entropy
