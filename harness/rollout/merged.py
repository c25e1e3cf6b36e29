"""The weights of a model by the names in its folder, with adapters (LoRA) merged into them or beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from harness import ranks

ADAPTER = "default"  # the name of the only adapter of each layer
# Of peft, which puts the former layer and its adapter into one module.
OF_LAYER, OF_ADAPTER = ".base_layer.", ".lora_"


class MergedWeights(Mapping[str, Tensor]):
    """The weights of a model; of several ranks, this rank's shards.

    A weight is merged with its adapter when it is read, in the type of the adapter. So no more than one is in memory
    twice. A tied weight is under each of its names.
    """

    def __init__(self, model: nn.Module) -> None:
        local = ranks.local_weights(model)
        names = [name for name, _ in model.named_parameters(remove_duplicate=False) if OF_ADAPTER not in name]
        self.unmerged = {name.replace(OF_LAYER, "."): local[name] for name in names}
        self.adapted = {f"{name}.weight": layer for name, layer in layers_with_adapters(model).items()}

    @torch.no_grad()
    def __getitem__(self, name: str) -> Tensor:
        weight, layer = self.unmerged[name], self.adapted.get(name)
        return weight if layer is None else weight + layer.get_delta_weight(ADAPTER)

    def __iter__(self) -> Iterator[str]:
        return iter(self.unmerged)

    def __len__(self) -> int:
        return len(self.unmerged)


def layers_with_adapters(model: nn.Module) -> dict[str, Any]:
    """Return the layers that have an adapter, by name."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "get_delta_weight")}


def factored_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a model, and the factors of its adapters beside them."""
    return {**MergedWeights(model).unmerged, **adapter_factors(model)}


@torch.no_grad()
def adapter_factors(model: nn.Module) -> dict[str, Tensor]:
    """Return A and alpha / rank * B of each layer with an adapter, by its name and `lora_A` or `lora_B`."""
    result = {}
    for name, layer in layers_with_adapters(model).items():
        result[f"{name}.lora_A"] = layer.lora_A[ADAPTER].weight.detach()
        result[f"{name}.lora_B"] = layer.lora_B[ADAPTER].weight * layer.scaling[ADAPTER]
    return result
