"""The optimizers that `train.optimizer` names: AdamW by torch, or by torchao with moments of 8 bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from harness.config import ADAMW8BIT, Train


def build_optimizer(weights: Iterable[Tensor], train: Train, lr: float) -> Optimizer:
    betas = (train.betas[0], train.betas[1])
    if train.optimizer == ADAMW8BIT:
        from torchao.optim import AdamW8bit  # of the extra `adamw8bit`

        eight_bit: Optimizer = AdamW8bit(weights, lr=lr, betas=betas, weight_decay=train.weight_decay)
        return eight_bit
    return AdamW(weights, lr=lr, betas=betas, weight_decay=train.weight_decay, fused=True)


def take_step(optimizer: Optimizer, lr: float, device: str) -> None:
    """Update the weights at a learning rate."""
    for group in optimizer.param_groups:
        # torchao compiles its step, in which a number would be a constant, so it has the rate in a tensor.
        group["lr"] = torch.tensor(lr) if isinstance(group["lr"], Tensor) else lr
    # A GPU needs the compiled step, without copies of whole weights. On a CPU it would take minutes to compile.
    with torch.compiler.set_stance("default" if device == "cuda" else "force_eager"):
        optimizer.step()


def fresh_state(optimizer: Optimizer, weight: Tensor) -> dict[str, Tensor]:
    """Return the state of a weight as an optimizer makes it in its first step, to be filled with another one's."""
    if isinstance(optimizer, AdamW):
        step = torch.empty((), device=weight.device)
        return {"step": step, "exp_avg": torch.empty_like(weight), "exp_avg_sq": torch.empty_like(weight)}
    new_moment = optimizer._new_buffer  # type: ignore[attr-defined]  # which says what has 8 bits
    return {"step": torch.empty(()), "exp_avg": new_moment(weight, True), "exp_avg_sq": new_moment(weight, False)}


def plain_tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a weight's state by name; a moment of 8 bits has two, codes and the scales of blocks."""
    tensors: dict[str, Tensor] = {}
    for kind, x in state.items():
        if hasattr(x, "codes"):
            tensors |= {f"{kind}.codes": x.codes, f"{kind}.scale": x.scale}
        else:
            tensors[kind] = x
    return tensors
