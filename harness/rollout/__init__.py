"""Rollout engines: prompts in, sampled responses with their log-probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from harness.batch import Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Engine(Protocol):
    """Samples from softmax(logits / temperature) and nothing else: no top-p, no top-k, no penalties."""

    def load(self, model: PreTrainedModel) -> None:
        """Take over the present weights of `model`; the next `generate` samples from them."""
        ...

    def generate(
        self, prompts: Sequence[Sequence[int]], n: int, *, seeds: Sequence[int], temperature: float, max_new_tokens: int
    ) -> list[list[Rollout]]:
        """`n` responses to each prompt. What prompt i gets depends on the weights, the prompt and seeds[i] alone,
        never on its neighbours in the call, so any split over calls or ranks gives the same responses."""
        ...
