"""The weights of a model from its folder: whole on one process, and of several each reads only the rows that it has."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.checkpoint.api import CheckpointException
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel

from harness.base import ranks
from harness.base.errors import UserError, short

# Of reading weights. Files of pickles are never read, since they may run code.
HOW: Mapping[str, Any] = {"attn_implementation": "sdpa", "use_safetensors": True}

MAPPINGS = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
NEWLINE = "\n"

warnings.filterwarnings("ignore", "torch.distributed is disabled")  # that DCP works on one process is no surprise


def load_model(folder: Path | str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Returns the whole language model."""
    return checked(opened(AutoModelForCausalLM, folder, dtype=dtype, **HOW), folder)


def opened(kind: Any, folder: Path | str, **given: Any) -> Any:
    """Returns what a class of transformers makes of a model's folder, without running any code that lies there."""
    try:
        return kind.from_pretrained(folder, trust_remote_code=False, **given)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # the parsers of JSON, tokenizers and weights share no base class
        if "trust_remote_code" in str(error):
            raise UserError(
                f"model {short(str(folder))} asks for code of its own (auto_map in its config.json), which is never "
                "run; use a model of a type that transformers knows"
            ) from error
        reason = culprit(Path(folder), kind) or f"{type(error).__name__}: {str(error).strip().partition(NEWLINE)[0]}"
        raise UserError(f"model {short(str(folder))} cannot be read: {reason}") from error


def culprit(folder: Path, kind: Any) -> str | None:
    """Return the file of a model's folder that is at fault, and its fault; None where no file is known to be."""
    for file in sorted(folder.glob("*.json")):
        try:
            content = json.loads(file.read_bytes())
        except ValueError as error:
            return f"{file.name} is no JSON ({error})"
        # The list of tokens that a vocabulary adds may be a list; all else holds names.
        if not isinstance(content, dict) and file.name in MAPPINGS:
            return f"{file.name} holds {type(content).__name__} where a mapping of keys belongs"
    if kind is AutoTokenizer:
        return fault_of_tokenizer(folder / "tokenizer.json")
    return None if kind is AutoConfig else fault_of_weights(folder)


def fault_of_tokenizer(file: Path) -> str | None:
    """Return the fault that the library of tokenizers finds in its file."""
    if not file.is_file():
        return None
    try:
        Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises Exception itself
        return f"{file.name}: {error}"
    return None


def fault_of_weights(folder: Path) -> str | None:
    """Return the first file of weights that cannot be read, or has a tensor of another shape than config.json says."""
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception:  # config.json is at fault, whose error the caller has
        return None
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt") as weights:
                stored_shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            return f"{file.name}: {error}"
        for name, shape in stored_shapes.items():
            if name in shapes and shapes[name] != shape:
                return f"{file.name} has {name} of shape {shape}, and by config.json it is {shapes[name]}"
    return None


def checked(model: PreTrainedModel, folder: Path | str) -> PreTrainedModel:
    if not isinstance(model.get_output_embeddings(), nn.Linear):
        raise UserError(f"model {folder} has no linear head, which the token statistics need")
    return model


def outline(folder: Path, kind: Any) -> PreTrainedModel:
    """Returns a model in float32, as an AutoModel class has it. On several ranks it has no memory before `settle`.

    Where the folder does not hold the weights by their names it is whole there as well.
    """
    if ranks.several():
        config = opened(AutoConfig, folder)
        with torch.device("meta"):
            model = kind.from_config(config, dtype=torch.float32, attn_implementation="sdpa", trust_remote_code=False)
        if stored(model, folder).keys() == dict(model.named_parameters()).keys():
            if model.can_generate() and (folder / "generation_config.json").is_file():
                model.generation_config = GenerationConfig.from_pretrained(folder)
            return model
        if ranks.number() == 0:
            print(
                f"each of {ranks.count()} ranks reads all of {folder}: its safetensors files lack weights", flush=True
            )
    return opened(kind, folder, dtype=torch.float32, **HOW)


def stored(model: PreTrainedModel, folder: Path) -> dict[str, str]:
    """Returns the names in the folder's files by those in the model; a body may be stored with a head, or without."""
    keys: set[str] = set()
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt") as opened:
                keys.update(opened.keys())
        except (OSError, SafetensorError) as error:
            raise UserError(f"model {short(str(folder))} cannot be read: {file.name}: {error}") from error
    prefix = f"{model.base_model_prefix}."
    found = {}
    for name, _ in model.named_parameters():  # a tied head once
        for key in (name, f"{prefix}{name}", name.removeprefix(prefix)):
            if key in keys:
                found[name] = key
                break
    return found


@torch.no_grad()
def settle(network: nn.Module, model: PreTrainedModel, folder: Path, device: str) -> None:
    """Gives memory to an outlined model that is sharded by now, and to the rest of its network, which starts at zero;
    then reads this rank's shards."""
    network.to_empty(device=device)
    model.tie_weights()
    for parameter in network.parameters():
        parameter.zero_()
    for module in model.modules():
        if module._buffers:
            model._init_weights(module)  # what is in no file, such as the frequencies of a rotary embedding
    weights = dict(model.named_parameters())
    fill({key: weights[name] for name, key in stored(model, folder).items()}, folder)


def fill(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Reads tensors by name from the safetensors files of a folder, of shards only the rows that are here."""
    try:
        dcp.load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    except CheckpointException as error:  # not an Exception, and its text is a traceback
        cause, _ = next(iter(error.failures.values()))
        reason = fault_of_weights(folder) or f"{type(cause).__name__}: {cause}"
        raise UserError(f"the tensors in {short(str(folder))} cannot be read: {reason}") from cause
