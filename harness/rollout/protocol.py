"""The interface of rollout engines: prompts in, sampled responses with their log-probabilities out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

    from harness.methods.batch import Rollout

OnGroup = Callable[[int, "list[Rollout]"], None]  # called with the number of a prompt and all its responses


def no_progress() -> None:
    """Ignore a sign of progress: the default for code that gives signs and may run without a heartbeat."""


class Sampling(Protocol):
    """A sampler from exactly softmax(logits / temperature): no top-p, no top-k, no penalties."""

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
        """Sample `n` responses to each prompt.

        The responses to prompt i depend only on the weights, the prompt and seeds[i], not on the other prompts of the
        call. So any split over calls or ranks gives the same responses.

        `on_group` is called once for each prompt, as soon as all its responses are complete. Others may still be
        sampled at that time.
        """
        ...


class Engine(Sampling, Protocol):
    """A sampler with the weights that were loaded last."""

    def load(self, model: PreTrainedModel) -> None:
        """Copy the current weights of `model`; the next `generate` samples from them."""
        ...

    def expected(self, module: nn.Module) -> Mapping[str, torch.Tensor]:
        """Return the weights of `module`, by name, as the engine has to hold them after `load`."""
        ...

    def weights(self, columns: Mapping[str, slice]) -> dict[str, torch.Tensor]:
        """Return some columns of each of these weights as the engine uses them now.

        Vectors are returned whole, and rows in the model's order.
        """
        ...

    def rest(self) -> None:
        """Release memory; nothing is sampled before the next `load`."""
        ...
