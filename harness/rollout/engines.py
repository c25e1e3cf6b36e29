"""The engines by name, apart from rollout/choice because the engines import that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.config import Hardware
from harness.rollout.protocol import Engine

if TYPE_CHECKING:
    from pathlib import Path

    import torch


def build_engine(name: str, folder: Path, eos: int, device: str, dtype: torch.dtype, hardware: Hardware) -> Engine:
    """Return a new engine for the model in a folder; it can sample after its first `load`."""
    if name == "embedded":
        from harness.rollout.embedded import EmbeddedEngine

        return EmbeddedEngine(eos, device, dtype)
    from harness.rollout.vllm import VllmEngine

    return VllmEngine(folder, eos, device, dtype, hardware.cache_gib, hardware.share)
