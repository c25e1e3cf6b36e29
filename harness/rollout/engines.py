"""The engines by name, apart from rollout/choice because the engines import that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from harness.config import Hardware, Lora
from harness.rollout.protocol import Engine, no_progress

if TYPE_CHECKING:
    from pathlib import Path

    import torch


def build_engine(
    name: str,
    folder: Path,
    ends: Sequence[int],
    device: str,
    dtype: torch.dtype,
    hardware: Hardware,
    on_progress: Callable[[], None] = no_progress,
    lora: Lora | None = None,
) -> Engine:
    """Return the engine of this name for the model in a folder; it samples after its first `load`.

    `ends`: the tokens that end a response; `on_progress` is called at each sign of progress while it samples; `lora`:
    the adapters of the models that it is to load.
    """
    if name == "embedded":
        from harness.rollout.embedded import EmbeddedEngine

        return EmbeddedEngine(ends, device, dtype, hardware.cache_gib, on_progress)
    from harness.rollout.vllm import VllmEngine

    return VllmEngine(folder, ends, device, dtype, hardware.cache_gib, hardware.share, on_progress, lora)
