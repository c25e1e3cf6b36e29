"""The weights of a model from its folder: whole on one process; on several ranks each reads only its own rows."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.checkpoint.api import CheckpointException
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, PreTrainedModel

from harness import ranks
from harness.base.errors import UserError, short
from harness.base.terminal import without_bars, without_message

# Arguments for reading weights. Pickled files are never read, since they may run code.
HOW: Mapping[str, Any] = {"attn_implementation": "sdpa", "use_safetensors": True}

NEWLINE = "\n"

warnings.filterwarnings("ignore", "torch.distributed is disabled")  # DCP warns whenever it runs on one process


def load_model(folder: Path | str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Return the whole language model; refuse one with NaN or infinity among its weights."""
    model = with_linear_head(read_whole(AutoModelForCausalLM, folder, dtype), folder)
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise UserError(f"model {short(str(folder))} has NaN or infinite weights ({name}): its training diverged")
    return model


def read_whole(kind: Any, folder: Path | str, dtype: torch.dtype) -> PreTrainedModel:
    """Return a model; refuse a folder that lacks weights, which would be random, or has some that would not be read.

    A body leaves the weights of the head unread.
    """
    # Without transformers' bars, and its table of missing and unread weights, which are refused or expected.
    with without_bars(), without_message(logging.getLogger("transformers.modeling_utils"), "LOAD REPORT"):
        # Other shapes are ignored here, since the report names them, and transformers' own error does not.
        model, report = opened(kind, folder, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **HOW)
    where = f"model {short(str(folder))}"
    if other_shapes := sorted(report["mismatched_keys"]):
        name, stored_shape, shape = other_shapes[0]
        raise UserError(f"{where} has {name} of shape {list(stored_shape)}, and by config.json it is {list(shape)}")
    if missing := sorted(report["missing_keys"]):
        tied = "; if its head is the embedding, set tie_word_embeddings to true in its config.json"
        reason = tied if missing == ["lm_head.weight"] else ""
        raise UserError(f"{where} lacks {listed(missing)}, without which it would be random{reason}")
    unread = sorted(report["unexpected_keys"])
    if kind is AutoModelForCausalLM and unread:
        raise UserError(
            f"{where} has {listed(unread)}, which {type(model).__name__} does not read; it would be another"
        )
    return model


def listed(names: Sequence[str]) -> str:
    """Return the first of several names of weights, and their number."""
    return f"the weights {short(names[0])}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def opened(kind: Any, folder: Path | str, **settings: Any) -> Any:
    """Return an object of a transformers class from a model's folder, without running code from that folder."""
    try:
        return kind.from_pretrained(folder, trust_remote_code=False, **settings)
    except torch.OutOfMemoryError:  # no fault of the model: reported with advice on memory
        raise
    except Exception as error:  # the parsers of JSON, tokenizers and weights share no base class
        if "trust_remote_code" in str(error):
            raise UserError(
                f"model {short(str(folder))} asks for code of its own (auto_map in its config.json), which is never "
                "run; use a model of a type that transformers knows"
            ) from error
        reason = f"{type(error).__name__}: {str(error).strip().partition(NEWLINE)[0]}"
        raise UserError(f"model {short(str(folder))} cannot be read by {kind.__name__}: {reason}") from error


def with_linear_head(model: PreTrainedModel, folder: Path | str) -> PreTrainedModel:
    if not isinstance(model.get_output_embeddings(), nn.Linear):
        raise UserError(f"model {folder} has no linear head, which the token statistics need")
    return model


def without_dropout(model: PreTrainedModel) -> dict[str, float]:
    """Set every kind of dropout to 0, and return the former values by name.

    With dropout each pass is of another policy, and the ratio of the first update would not be 1.
    """
    of_configs: dict[str, float] = {}
    of_modules: dict[str, float] = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.Dropout) and module.p:
            of_modules[path] = module.p
            module.p = 0.0
        # Functions get it from an attribute of the module or of its configuration.
        of_modules |= cleared(module)
        config = getattr(module, "config", None)
        if isinstance(config, PreTrainedConfig):
            of_configs |= cleared(config)
    return of_configs or of_modules  # nearly all modules have it from the configuration


def cleared(owner: nn.Module | PreTrainedConfig) -> dict[str, float]:
    """Set the attributes that are rates of dropout to 0, and return the former values by name."""
    former = {name: rate for name, rate in vars(owner).items() if "drop" in name and isinstance(rate, float) and rate}
    for name in former:
        setattr(owner, name, 0.0)
    return former


def outline(folder: Path, kind: Any) -> PreTrainedModel:
    """Return a model in float32. On several ranks it is on the meta device, without memory, until `settle`.

    There too it is whole if the folder does not hold the weights under their names.
    """
    if ranks.several():
        config = opened(AutoConfig, folder)
        with torch.device("meta"):
            model = kind.from_config(config, dtype=torch.float32, attn_implementation="sdpa", trust_remote_code=False)
        if stored(model, folder).keys() == dict(model.named_parameters()).keys():
            # `from_config` does not read these settings, which a trained model is saved with.
            if model.can_generate() and (folder / "generation_config.json").is_file():
                model.generation_config = GenerationConfig.from_pretrained(folder)
            return model
        if ranks.own_rank() == 0:
            print(
                f"each of {ranks.count()} ranks reads all of {folder}: its safetensors files lack weights", flush=True
            )
    return read_whole(kind, folder, torch.float32)


def shapes_in(folder: Path) -> dict[str, list[int]]:
    """Return the shapes of the tensors in a folder's files by name, of which only the headers are read."""
    shapes: dict[str, list[int]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt") as tensors:
                shapes |= {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise UserError(f"model {short(str(folder))} cannot be read: {file.name}: {error}") from error
    return shapes


def stored(model: PreTrainedModel, folder: Path) -> dict[str, str]:
    """Return the names in the folder's files by the names in the model; a body may be stored with or without a head."""
    keys, prefix = shapes_in(folder), f"{model.base_model_prefix}."
    stored_names = {}
    for name, _ in model.named_parameters():  # a tied head once
        for key in (name, f"{prefix}{name}", name.removeprefix(prefix)):
            if key in keys:
                stored_names[name] = key
                break
    return stored_names


@torch.no_grad()
def settle(network: nn.Module, model: PreTrainedModel, folder: Path, device: str) -> None:
    """Give memory to a sharded outline and its network, and read this rank's shards.

    Weights of the network that are not the model's, such as the critic's head, start at zero.
    """
    network.to_empty(device=device)
    model.tie_weights()  # again, since `to_empty` gave each of two tied weights memory of its own
    for parameter in network.parameters():
        parameter.zero_()
    # Before the weights are read, since `_init_weights` may also fill weights of these modules.
    for module in model.modules():
        if module._buffers:
            model._init_weights(module)  # buffers that are in no file, such as the frequencies of rotary embeddings
    weights = dict(model.named_parameters())
    destinations = {key: weights[name] for name, key in stored(model, folder).items()}
    fill(destinations, folder)


def fill(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Read tensors by name from the safetensors files of a folder; of shards only this rank's rows."""
    try:
        dcp.load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    except CheckpointException as error:  # not an Exception, and its text is a traceback
        cause, _ = next(iter(error.failures.values()))
        raise UserError(
            f"the tensors in {short(str(folder))} cannot be read: {type(cause).__name__}: {cause}"
        ) from cause
