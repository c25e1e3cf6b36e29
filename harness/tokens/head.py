"""The head of a language model, as the token statistics take it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

Columns = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]  # the first fields of TokenStats


@dataclass(frozen=True)
class Head:
    """What turns hidden states into logits: softcap * tanh((weight @ hidden + bias) / softcap), or without either."""

    weight_VD: Tensor
    bias_V: Tensor | None = None
    softcap: float | None = None
