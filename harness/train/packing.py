"""Packed forward passes: sequences in one row without padding, and each prompt once for its group in the row.

Only attention has to know where sequences begin and end. It assembles each one, prompt and response, computes them
apart from each other, and returns a result for each place of the row. So attention costs as much as for single
sequences, and everything else is computed once for each token of the row.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from harness.methods.batch import TokenBatch

# Model types whose attention is causal, perhaps within a window that it passes on, and uses the given positions.
ARCHITECTURES = ("gemma3_text", "granite", "llama", "mistral", "phi3", "qwen2", "qwen3")

ATTENTION = "sdpa_or_packed"  # the name under which it is registered with transformers

# Whether torch's kernel takes fewer heads of keys and values than of queries; before torch 2.12 it does not.
TAKES_GROUPED_HEADS = "enable_gqa" in inspect.signature(varlen_attn).parameters


@dataclass(frozen=True)
class PackedRow:
    """The places of sequences in a row (_R), and in attention's input (_A), where each sequence has its prompt."""

    tokens_R: Tensor
    places_R: Tensor  # of the tokens in their sequences, 0 ...
    whole_A: Tensor  # the sequences of attention's input, as places of the row
    back_R: Tensor  # the place in attention's input of each place of the row
    predicting_T: Tensor  # the places of the row from which the response tokens are predicted
    ends: Tensor  # 0, and the end of each sequence in attention's input
    lengths: list[int]  # of the sequences there, without the last token, from which nothing is predicted

    @classmethod
    def of(cls, batch: TokenBatch, device: str) -> PackedRow:
        """Return the row of a batch; a prompt is in it once for all neighboring responses of its group."""
        prompts, groups = batch.prompt_lengths_B.tolist(), batch.groups_B.tolist()
        lengths = [len(sequence) - 1 for sequence in batch.sequences]
        tokens, places, whole, back, predicting = [], [], [], [], []
        row_end = attention_end = 0  # of the sequences so far: in the row, and in attention's input
        prompt_start = 0  # of the present group's prompt, in the row
        for number, (sequence, prompt, length) in enumerate(zip(batch.sequences, prompts, lengths, strict=True)):
            new_group = number == 0 or groups[number] != groups[number - 1]
            first = 0 if new_group else prompt  # the first token that the row does not have yet
            own_places = torch.arange(row_end, row_end + length - first)
            if new_group:
                prompt_start = row_end
                sequence_places = own_places
            else:
                sequence_places = torch.cat([torch.arange(prompt_start, prompt_start + prompt), own_places])
            tokens.append(sequence[first:length])
            places.append(torch.arange(first, length))
            back.append(torch.arange(attention_end + first, attention_end + length))
            whole.append(sequence_places)
            predicting.append(sequence_places[prompt - 1 :])  # a token is predicted from the one before it
            row_end += length - first
            attention_end += length

        def flat(parts: list[Tensor]) -> Tensor:
            return torch.cat(parts).to(device, non_blocking=True)

        ends = torch.tensor([0, *lengths], device=device).cumsum(0, dtype=torch.int32)
        return cls(flat(tokens), flat(places), flat(whole), flat(back), flat(predicting), ends, lengths)


def packed_hidden_states(backbone: PreTrainedModel, batch: TokenBatch, device: str) -> Tensor:
    """Return the hidden state from which each response token is predicted, flat; for a prepared model."""
    row = PackedRow.of(batch, device)
    hidden_1RD = backbone(
        input_ids=row.tokens_R[None],
        position_ids=row.places_R[None],
        # A mask of four dimensions is passed on as it is: without one transformers would build one over the whole row.
        attention_mask=torch.empty(1, 1, 0, 0, device=device),
        use_cache=False,
        row=row,  # an argument that transformers does not know, which it passes on to `attention`
    ).last_hidden_state
    return hidden_1RD[0].index_select(0, row.predicting_T)


def prepare_for_packing(model: PreTrainedModel) -> bool:
    """Give the model an attention that can take a row apart, if its type allows that; return whether it does."""
    possible = model.config.model_type in ARCHITECTURES
    if possible:
        model.set_attn_implementation(ATTENTION)
    return possible


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    row: PackedRow | None = None,
    sliding_window: int | None = None,
    scaling: float | None = None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Return torch's own attention; of a packed row, that of each of its sequences apart."""
    if row is None:  # the mask has the window already
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **settings)
    q = query.index_select(2, row.whole_A)
    k = key.index_select(2, row.whole_A)
    v = value.index_select(2, row.whole_A)
    if fused(v):
        # Under autocast, rotary embeddings leave queries and keys in float32, and the kernel takes one type.
        q_AHD = q[0].transpose(0, 1).to(v.dtype)
        k_AHD = k[0].transpose(0, 1).to(v.dtype)
        v_AHD = v[0].transpose(0, 1)
        settings_of_heads: dict[str, Any] = {}
        if TAKES_GROUPED_HEADS:
            settings_of_heads["enable_gqa"] = True
        else:
            queries_a_head = q_AHD.shape[1] // k_AHD.shape[1]
            k_AHD, v_AHD = (x.repeat_interleave(queries_a_head, dim=1) for x in (k_AHD, v_AHD))
        longest = max(row.lengths)
        # Tokens back, and forward: -1 means unlimited, and a window of n tokens holds the token itself.
        window = (-1 if sliding_window is None else sliding_window - 1, 0)
        ends = (row.ends, row.ends, longest, longest)  # of queries and keys
        result_AHD = varlen_attn(q_AHD, k_AHD, v_AHD, *ends, scale=scaling, window_size=window, **settings_of_heads)
        assert isinstance(result_AHD, Tensor)
        result_1AHD = result_AHD[None]
    else:
        apart = zip(q.split(row.lengths, 2), k.split(row.lengths, 2), v.split(row.lengths, 2), strict=True)
        parts = []
        for (q_part, k_part, v_part), length in zip(apart, row.lengths, strict=True):
            mask = band(length, sliding_window, query.device)
            parts.append(sdpa_attention_forward(module, q_part, k_part, v_part, mask, scaling=scaling, **settings)[0])
        result_1AHD = torch.cat(parts, dim=1)
    return result_1AHD.index_select(1, row.back_R), None


def fused(value: Tensor) -> bool:
    """Return whether torch has one kernel for sequences of many lengths here."""
    return value.is_cuda and value.dtype == torch.bfloat16 and torch.cuda.get_device_capability() >= (8, 0)


def band(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """Return the mask of a sequence that is longer than the window; None means all earlier tokens."""
    if window is None or length <= window:
        return None
    place = torch.arange(length, device=device)
    back = place[:, None] - place
    return (back >= 0) & (back < window)


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
