"""Holds the head of a language model, as the token statistics take it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

FAR = -1e4  # of log p, and of a logit below the largest one: from here on p is 0 in every type
Columns = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]  # the first fields of TokenStats


@dataclass(frozen=True)
class Head:
    """Turns hidden states into logits: softcap * tanh((weight @ hidden + bias) / softcap), or without either."""

    weight_VD: Tensor
    bias_V: Tensor | None = None
    softcap: float | None = None
