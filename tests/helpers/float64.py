"""Models that compute in float64, so that any difference larger than rounding is real."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm


def compute_in_float64(network: nn.Module) -> None:
    """Compute everything in float64; the norms of transformers would compute in float32."""

    def norm(module: Qwen2RMSNorm, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), module.weight, module.variance_epsilon)

    network.double()
    for module in network.modules():
        if isinstance(module, Qwen2RMSNorm):
            module.forward = norm.__get__(module)
