"""GGUF files of tiny models, written as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.convert_slow_tokenizer import bytes_to_unicode

END = "<|end|>"
TEMPLATE = (
    "{% for message in messages %}{{ '<|start|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>' }}{% endif %}"
)
TOKENS = [*bytes_to_unicode().values(), "th", "<|start|>", END]
NAMES = {  # of a file, by those of transformers
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(path: Path, model: PreTrainedModel, kind: str = "F32", **changed: Any) -> Path:
    """Write a model with the vocabulary TOKENS; `kind`: of its matrices; `changed`: settings by their keys."""
    import gguf
    from gguf import quants

    config = model.config
    architecture = config.model_type
    settings = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "rope.dimension_count": config.head_dim,
    }
    writer = gguf.GGUFWriter(path, changed.pop("architecture", architecture))
    for key, value in settings.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.rope.freq_base", config.rope_parameters["rope_theta"])
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", config.rms_norm_eps)
    for key, value in changed.items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(TOKENS) - 2) + [gguf.TokenType.CONTROL] * 2)
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(len(TOKENS) - 1)
    writer.add_string("tokenizer.chat_template", TEMPLATE)
    for name, tensor in model.named_parameters():  # a tied head once
        weight = tensor.detach()
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            weight = weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        kind_of = gguf.GGMLQuantizationType[kind if weight.ndim > 1 else "F32"]
        writer.add_tensor(file_name(name), quants.quantize(weight.numpy(), kind_of), raw_dtype=kind_of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def file_name(name: str) -> str:
    path, _, kind = name.rpartition(".")
    if path.startswith("model.layers."):
        _, _, layer, inner = path.split(".", 3)
        return f"blk.{layer}.{NAMES[inner]}.{kind}"
    return f"{NAMES[path]}.{kind}"


def of_vocabulary(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a tiny model with the vocabulary of the files."""
    return {**settings, "vocab_size": len(TOKENS), "eos_token_id": len(TOKENS) - 1, "bos_token_id": None}


def same_weights(one: PreTrainedModel, other: PreTrainedModel) -> bool:
    ours, theirs = dict(one.named_parameters()), dict(other.named_parameters())
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
