"""LoRA: adapters of the linear layers of a frozen model, which are trained instead of its weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from transformers import PreTrainedModel

from harness.base import seeds
from harness.base.shape import shape_of_config
from harness.config import Lora, check_adapters_fit
from harness.rollout.merged import ADAPTER, layers_with_adapters
from harness.tokens.head import wide


def add_adapters(model: PreTrainedModel, settings: Lora, seed: int, dtype: torch.dtype) -> None:
    """Freeze a model in the type of the computation, and add adapters in float32 to its linear layers.

    These then compute W x + alpha / rank * B A x. B starts at zero, so that the model stays the same until it is
    trained. A is drawn from the seed.
    """
    from peft import LoraConfig, inject_adapter_in_model  # of the extra `lora`; it takes seconds to import

    shape = shape_of_config(model.config.to_dict())
    # Again: a model of the Hub may have had no shape before it was here.
    check_adapters_fit(settings, model.config.model_type, shape)
    # `rank` and `alpha` are the only settings: a bias or dropout would make the engine's weights another policy.
    adapters = LoraConfig(r=settings.rank, lora_alpha=settings.alpha, target_modules=settings.targets)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seeds.derive("lora", seed))
        inject_adapter_in_model(adapters, model, ADAPTER)
    for weight in model.parameters():
        if not weight.requires_grad:
            weight.data = weight.data.to(dtype)
    # The layers add to the embedding's output, and keep its type: float32, as where weights are trained.
    model.get_input_embeddings().register_forward_hook(lambda module, inputs, output: wide(output))


@contextlib.contextmanager
def without_adapters(model: PreTrainedModel) -> Iterator[None]:
    """Let a model compute as before its training."""
    layers = layers_with_adapters(model).values()
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
