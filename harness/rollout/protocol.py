"""The interface of an engine: prompts in, sampled responses with their log-probabilities out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from harness.batch import Rollout

OnGroup = Callable[[int, "list[Rollout]"], None]  # hears of the number of a prompt and of all responses to it


class Sampling(Protocol):
    """Samples from softmax(logits / temperature) and nothing else: no top-p, no top-k, no penalties."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        *,
        seeds: Sequence[int],
        temperature: float,
        max_new_tokens: int,
        on_group: OnGroup | None = None,
    ) -> list[list[Rollout]]:
        """Samples `n` responses to each prompt.

        What prompt i gets depends on the weights, the prompt and seeds[i] alone, never on its neighbours in the call,
        so any split over calls or ranks gives the same responses.

        `on_group` is called once for each prompt, as soon as all its responses have ended and while others may still be
        sampled.
        """
        ...


class Engine(Sampling, Protocol):
    """Samples from the weights that it was given last."""

    def load(self, model: PreTrainedModel) -> None:
        """Takes over the present weights of `model`; the next `generate` samples from them."""
        ...

    def weights(self, columns: Mapping[str, slice]) -> dict[str, torch.Tensor]:
        """Returns the given columns of each parameter, by its name in the model, as the engine computes with them now.

        A vector is returned whole, and rows stand in the model's order.
        """
        ...

    def rest(self) -> None:
        """Gives back the memory that can be given back: nothing will be sampled before the next `load`."""
        ...
