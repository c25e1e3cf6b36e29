"""The embedded engine: batched decoding in this process with the weights of a Llama-shaped model and a KV cache.

Each prompt runs through the model once, and so does everything that samples of a prompt have in common: samples with
the same tokens so far are one state, a row of the batch and of the cache, which is copied where they part. A policy of
low entropy has few states. Prompts are padded on the right, so that under causal attention no real token sees padding.
All responses start at the same slot of the cache, and the padding before it is masked. Samples that have ended leave
their states, and states without samples leave the batch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from harness import ranks
from harness.base.errors import UserError, at_least, one_of
from harness.base.shape import ARCHITECTURES
from harness.methods.batch import Rollout
from harness.methods.distinct import shared_beginning
from harness.rollout.choice import EMBEDDED_SEQUENCES
from harness.rollout.merged import MergedWeights
from harness.rollout.protocol import OnGroup, no_progress
from harness.tokens.head import wide_product

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STATIC_ROPE = ("default", "linear", "llama3", "yarn")  # their frequencies do not depend on the length
ROTATED = re.compile(r"\.[qk]_(proj|norm)\.")  # weights whose outputs get the rotary embedding
HEADS = ("lm_head.weight", "model.embed_tokens.weight")  # which may be tied
BLOCK = 16  # slots; attention over fewer is slower on a CPU, and CUDA kernels need masks aligned to it

# From a layer's number and its queries, keys and values, each [N, heads, head_dim], to outputs [N, heads * head_dim].
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
Linear = tuple[Tensor, Tensor | None]  # weight and bias


@dataclass(frozen=True)
class Layer:
    """The weights of a layer, joined where one product can replace several."""

    attention_norm: Tensor
    qkv: Linear
    qk_norm: Tensor | None  # one row per head
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


def uniforms(seed: int, n: int, length: int) -> Tensor:
    """Draw one number for each sample and position; on the CPU, so that all devices draw the same numbers."""
    return torch.rand(n, length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def sample_tokens(logits_SV: Tensor, temperature: float, state_B: Tensor, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
    """Draw tokens from softmax(logits / temperature) of each sample's state; return them with log-probabilities.

    The token is the first whose cumulative probability exceeds u * total. There is one because u < 1, and its
    probability is not 0 because the sum increases there. At temperature 0 the most likely token has log-probability 0.
    """
    if temperature == 0:
        tokens_B = logits_SV.argmax(-1)[state_B]
        return tokens_B, torch.zeros_like(tokens_B, dtype=torch.float32)
    logp_SV = torch.log_softmax(logits_SV / temperature, dim=-1)
    cumulative_BV = logp_SV.double().exp_().cumsum(-1)[state_B]
    thresholds_B1 = uniforms_B[:, None] * cumulative_BV[:, -1:]
    # NaN logits lead past the end. The token is then wrong, but its log-probability is NaN, which generate() reports.
    tokens_B1 = torch.searchsorted(cumulative_BV, thresholds_B1, right=True).clamp_(max=logits_SV.shape[1] - 1)
    tokens_B = tokens_B1.squeeze(1)
    return tokens_B, logp_SV[state_B, tokens_B]


def pairs_together(rows: Tensor, head_dim: int) -> Tensor:
    """Interleave the two halves of each head: rotary embedding is then one complex multiplication."""
    return rows.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).reshape(rows.shape)


def halves_together(rows: Tensor, head_dim: int) -> Tensor:
    """Undo pairs_together."""
    return rows.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).reshape(rows.shape)


def rotate(x_NHD: Tensor, rotation_N: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x_NHD.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotation_N[:, None]).flatten(-2).to(x_NHD.dtype)


def attend_one(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Return the attention of one new token of each sequence over the cache.

    q is [B, kv heads, queries a kv head, head_dim]; k and v are [B, kv heads, L, head_dim].
    """
    if q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    # On a CPU the fused kernel takes twice as long as these products for a single query.
    scores = (q @ k.transpose(-1, -2)).mul_(q.shape[-1] ** -0.5).add_(bias)
    return scores.softmax(-1) @ v


def grown(state_B: Tensor, tokens_B: Tensor, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the states after one more token: the parent and the last token of each, and the new state of each sample.

    Samples that were in one state and drew the same token are in one state again. The first state that grows out of a
    parent takes its place, as far as there are places, so that the cache is copied only where samples part.
    """
    # One key for each pair of a parent and a token.
    keys, number_B = (state_B * vocabulary + tokens_B).unique(return_inverse=True)
    parents, tokens, count = keys // vocabulary, keys % vocabulary, len(keys)
    first = parents.diff(prepend=parents.new_tensor([-1])) > 0  # keys are sorted, so equal parents are neighbors
    stays = first & (parents < count)
    free = torch.ones_like(stays)
    free[parents[stays]] = False
    # Each state that stays fills one place, so as many places are free as states need one.
    places = parents.masked_scatter(~stays, free.nonzero())
    order = places.argsort()
    return parents[order], tokens[order], places[number_B]


def slots_needed(longest: int, budget: int) -> int:
    """Return the slots of the cache for prompts of at most this length, and responses."""
    # The last token is sampled but never read, so it needs no slot.
    return math.ceil((longest + budget - 1) / BLOCK) * BLOCK


def refuse_unsupported(model: PreTrainedModel) -> None:
    """Raise UserError for a model that this engine would not decode correctly."""
    config = model.config
    one_of("the model's architecture (model_type)", config.model_type, ARCHITECTURES)
    one_of("the model's hidden_act", config.hidden_act, ("silu",))
    rope = config.rope_parameters
    one_of("the model's rope_type", rope["rope_type"], STATIC_ROPE)
    if getattr(config, "sliding_window", None) is not None:
        raise UserError(f"the model's sliding_window is {config.sliding_window}; the embedded engine needs null")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        share = rope["partial_rotary_factor"]
        raise UserError(f"the model's partial_rotary_factor is {share}; the embedded engine needs 1.0")


class EmbeddedEngine:
    """An engine (harness.rollout.protocol) whose cache is of at most `cache_gib`, but for a single response."""

    def __init__(
        self,
        ends: Sequence[int],
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        cache_gib: float | None = None,
        on_progress: Callable[[], None] = no_progress,
    ) -> None:
        self.on_progress = on_progress
        self.ends, self.device, self.dtype, self.cache_gib = tuple(ends), device, dtype, cache_gib
        self.buffers: dict[str, Tensor] = {}
        self.held: dict[str, Tensor] = {}  # the view of each parameter in a buffer

    @torch.no_grad()  # inference_mode does not work with DTensors
    def load(self, model: PreTrainedModel) -> None:
        refuse_unsupported(model)
        config, rotary = model.config, model.model.rotary_emb
        self.eps = config.rms_norm_eps
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = model.model.layers[0].self_attn.head_dim
        self.inv_freq = rotary.inv_freq.to(self.device, torch.float32)
        self.rotary_scale = torch.tensor(rotary.attention_scaling, device=self.device)
        weights = MergedWeights(model)
        tied = model.lm_head.weight is model.model.embed_tokens.weight
        self.embedding = self._fused(weights, "model.embed_tokens.weight")
        self.head = self.embedding if tied else self._fused(weights, "lm_head.weight")
        self.norm = self._fused(weights, "model.norm.weight")
        self.layers = [self._layer(weights, f"model.layers.{i}.") for i in range(config.num_hidden_layers)]

    def _layer(self, weights: Mapping[str, Tensor], at: str) -> Layer:
        def linear(*names: str) -> Linear:
            weight = self._fused(weights, *[f"{at}{name}.weight" for name in names])
            biases = [f"{at}{name}.bias" for name in names]
            bias = self._fused(weights, *biases) if biases[0] in weights else None
            return weight, bias

        qk_norm = None
        if f"{at}self_attn.q_norm.weight" in weights:
            both = self._fused(weights, f"{at}self_attn.q_norm.weight", f"{at}self_attn.k_norm.weight")
            counts = torch.tensor([self.heads, self.kv_heads], device=self.device)
            qk_norm = both.view(2, -1).repeat_interleave(counts, 0)
        return Layer(
            attention_norm=self._fused(weights, f"{at}input_layernorm.weight"),
            qkv=linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            qk_norm=qk_norm,
            out=linear("self_attn.o_proj"),
            mlp_norm=self._fused(weights, f"{at}post_attention_layernorm.weight"),
            gate_up=linear("mlp.gate_proj", "mlp.up_proj"),
            down=linear("mlp.down_proj"),
        )

    def _fused(self, weights: Mapping[str, Tensor], *names: str) -> Tensor:
        """Copy the named weights, one below the other, into a buffer that later loads fill again.

        Sharded weights are gathered for one call at a time, which bounds the memory. They are cast before they are
        gathered, which saves traffic.
        """
        # A CPU multiplies with the head in float32: a shorter one would be widened again for each token.
        widens = names[0] in HEADS and self.device == "cpu"
        dtype = torch.promote_types(self.dtype, torch.float32) if widens else self.dtype
        parts = []
        for name in names:
            part = ranks.whole_weight(weights[name].to(dtype))
            parts.append(pairs_together(part, self.head_dim) if ROTATED.search(name) else part)
        rows = [len(part) for part in parts]
        shape = (sum(rows), *parts[0].shape[1:])
        if names[0] not in self.buffers or self.buffers[names[0]].shape != shape:
            self.buffers[names[0]] = torch.empty(shape, dtype=dtype, device=self.device)
        buffer = self.buffers[names[0]]
        for name, target, part in zip(names, buffer.split(rows), parts, strict=True):
            target.copy_(part)
            self.held[name] = target
        return buffer

    def expected(self, module: nn.Module) -> MergedWeights:
        return MergedWeights(module)

    def weights(self, columns: Mapping[str, slice]) -> dict[str, Tensor]:
        # The proof asks for a tied head under its own name, too.
        held = {**self.held, "lm_head.weight": self.head}
        parts = {}
        for name, wanted in columns.items():
            part = held[name][..., wanted]
            parts[name] = halves_together(part, self.head_dim) if ROTATED.search(name) else part
        return parts

    def rest(self) -> None:
        """Do nothing: the weights are small, and the cache is freed when `generate` returns."""

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        *,
        seeds: Sequence[int],
        temperature: float,
        max_new_tokens: int,
        on_group: OnGroup | None = None,
    ) -> list[list[Rollout]]:
        at_least(0, temperature=temperature)
        assert len(prompts) == len(seeds)
        assert all(prompts)
        assert n > 0
        assert max_new_tokens > 0
        groups: list[list[Rollout]] = [[] for _ in prompts]
        at_once = self._sequences_at_once(max(map(len, prompts), default=0), max_new_tokens)
        width = min(n, at_once)
        together = at_once // width
        # Prompts of similar length are decoded together, which saves padding.
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        for first in range(0, n, width):
            for start in range(0, len(order), together):
                part = order[start : start + together]
                # All n rows are drawn and then cut, so that sample j of a prompt is the same in any division of n.
                draws = [uniforms(seeds[i], n, max_new_tokens)[first : first + width] for i in part]
                decoded = self._decode([prompts[i] for i in part], draws, temperature)
                for i, group in zip(part, decoded, strict=True):
                    self.on_progress()
                    groups[i].extend(group)
                    if on_group is not None and len(groups[i]) == n:
                        on_group(i, groups[i])
        return groups

    def _sequences_at_once(self, longest: int, budget: int) -> int:
        """Return how many sequences with prompts of at most this length are decoded at once."""
        if self.cache_gib is None:
            return EMBEDDED_SEQUENCES
        of_token = 2 * len(self.layers) * self.kv_heads * self.head_dim * self.dtype.itemsize  # a key and a value
        fit = int(self.cache_gib * 2**30) // (slots_needed(longest, budget) * of_token)
        return min(max(fit, 1), EMBEDDED_SEQUENCES)

    def _decode(self, prompts: list[Sequence[int]], draws: list[Tensor], temperature: float) -> list[list[Rollout]]:
        n, budget = draws[0].shape
        batch, longest = len(prompts) * n, max(len(prompt) for prompt in prompts)
        capacity = slots_needed(longest, budget)
        lengths_P = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        slots = torch.arange(capacity, device=self.device)
        rotations = torch.polar(self.rotary_scale, slots[:, None] * self.inv_freq)
        # A token may read its prompt and the slots that are filled, but not the padding after the prompt.
        bias_SL = torch.zeros(len(prompts), capacity, dtype=self.dtype, device=self.device)
        bias_SL = bias_SL.masked_fill_(slots >= lengths_P[:, None], -torch.inf)
        shape = (len(self.layers), 2, batch, self.kv_heads, capacity, self.head_dim)  # 2: keys and values
        cache = torch.empty(shape, dtype=self.dtype, device=self.device)
        # The first BLOCK slots are always read, empty ones with weight 0; uninitialized memory could hold NaN. Rows of
        # later states are copies of these.
        cache[:, :, : len(prompts), :, longest:BLOCK] = 0

        uniforms_TB = torch.cat(draws).to(self.device).T.contiguous()
        tokens_TB = torch.full((budget, batch), self.ends[0], device=self.device)
        logp_TB = torch.zeros(budget, batch, device=self.device)
        ends_E = torch.tensor(self.ends, device=self.device)
        rows = torch.arange(batch, device=self.device)  # of the samples that have not ended
        state_B = rows // n  # at first all samples of a prompt are in one state
        lengths_S = lengths_P
        logits = self._prefill(cache, prompts, lengths_P, rotations)
        for t in range(budget):
            tokens, logp = sample_tokens(logits, temperature, state_B, uniforms_TB[t, rows])
            tokens_TB[t, rows], logp_TB[t, rows] = tokens, logp
            alive = (tokens[:, None] != ends_E).all(1)
            rows = rows[alive]
            if t + 1 == budget or not len(rows):
                break
            parents, last, state_B = grown(state_B[alive], tokens[alive], logits.shape[1])
            copied = (parents != torch.arange(len(parents), device=self.device)).nonzero().squeeze(1)
            filled = max(longest + t, BLOCK)
            for layer in cache:  # one at a time, since the copies are in memory twice
                layer[:, copied, :, :filled] = layer[:, parents[copied], :, :filled]
            lengths_S, bias_SL = lengths_S[parents], bias_SL[parents]
            bias_SL[:, longest + t] = 0
            # All states write into one slot, but a token's rotation is that of its place without padding.
            logits = self._step(cache, last, longest + t, rotations[lengths_S + t], bias_SL)
        if not logp_TB.isfinite().all():
            raise FloatingPointError("the model's logits are not finite")
        return self._rollouts(prompts, n, tokens_TB, logp_TB)

    def _rollouts(
        self, prompts: list[Sequence[int]], n: int, tokens_TB: Tensor, logp_TB: Tensor
    ) -> list[list[Rollout]]:
        """Return the responses, each cut after its first end token."""
        rollouts: list[Rollout] = []
        for tokens, logp in zip(tokens_TB.T.tolist(), logp_TB.T.tolist(), strict=True):
            ends = [tokens.index(end) + 1 for end in self.ends if end in tokens]
            length = min(ends, default=len(tokens))
            rollouts.append(Rollout(list(prompts[len(rollouts) // n]), tokens[:length], logp[:length], bool(ends)))
        return [rollouts[start : start + n] for start in range(0, len(rollouts), n)]

    def _prefill(self, cache: Tensor, prompts: list[Sequence[int]], lengths_P: Tensor, rotations: Tensor) -> Tensor:
        """Fill the first rows of the cache with the prompts; return the logits after each one.

        A beginning that all prompts share is read once.
        """
        count = len(prompts)
        shared = shared_beginning(prompts)
        if shared:
            self._read(cache, torch.tensor([prompts[0][:shared]]), 0, rotations)
            cache[:, :, 1:count, :, :shared] = cache[:, :, :1, :, :shared]
        ends_PL = pad_sequence([torch.tensor(prompt[shared:]) for prompt in prompts], batch_first=True)
        hidden = self._read(cache, ends_PL, shared, rotations)
        last = torch.arange(count, device=self.device) * ends_PL.shape[1] + lengths_P - shared - 1
        return wide_product(hidden[last], self.head.T)

    def _read(self, cache: Tensor, tokens_PL: Tensor, start: int, rotations: Tensor) -> Tensor:
        """Read tokens of each row into the slots from `start` on; return their hidden states."""
        count, length = tokens_PL.shape
        end = start + length
        # A token sees the slots before `start`, and the earlier ones of its own row.
        mask = torch.ones(length, end, dtype=torch.bool, device=self.device).tril(start) if start else None

        def attend(layer: int, *qkv: Tensor) -> Tensor:
            q, k, v = (x.unflatten(0, (count, length)).transpose(1, 2) for x in qkv)
            for ours, theirs in zip(cache[layer], (k, v), strict=True):
                ours[:count, :, start:end] = theirs
            if start:
                k, v = cache[layer, :, :count, :, :end]
            grouped = self.heads != self.kv_heads
            read = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)
            return read.transpose(1, 2).reshape(count * length, -1)

        return self._hidden(tokens_PL.flatten().to(self.device), rotations[start:end].repeat(count, 1), attend)

    def _step(self, cache: Tensor, tokens_S: Tensor, slot: int, rotation_S: Tensor, bias_SL: Tensor) -> Tensor:
        """Read one token of each state into a slot of the cache; return the logits of the next token."""
        states, seen = len(tokens_S), max(slot + 1, BLOCK)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = cache[layer, :, :states, :, :seen]
            keys[:, :, slot], values[:, :, slot] = k, v
            grouped = q.unflatten(1, (self.kv_heads, -1))
            return attend_one(grouped, keys, values, bias_SL[:, None, None, :seen]).reshape(states, -1)

        return wide_product(self._hidden(tokens_S, rotation_S, attend), self.head.T)

    def _hidden(self, tokens_N: Tensor, rotation_N: Tensor, attend: Attend) -> Tensor:
        x = F.embedding(tokens_N, self.embedding).to(self.dtype)
        width, head_dim, turned = x.shape[-1:], self.head_dim, self.heads + self.kv_heads
        for i, layer in enumerate(self.layers):
            normed = F.rms_norm(x, width, layer.attention_norm, self.eps)
            qkv = F.linear(normed, *layer.qkv).unflatten(1, (-1, head_dim))
            qk, v = qkv.split((turned, self.kv_heads), 1)
            if layer.qk_norm is not None:
                qk = F.rms_norm(qk, (head_dim,), eps=self.eps) * layer.qk_norm
            q, k = rotate(qk, rotation_N).split((self.heads, self.kv_heads), 1)
            x += F.linear(attend(i, q, k, v), *layer.out)
            normed = F.rms_norm(x, width, layer.mlp_norm, self.eps)
            gate, up = F.linear(normed, *layer.gate_up).chunk(2, -1)
            x += F.linear(F.silu(gate).mul_(up), *layer.down)
        return F.rms_norm(x, width, self.norm, self.eps)
