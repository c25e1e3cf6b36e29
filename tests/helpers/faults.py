"""Faulty weight updates that the proof must catch in every engine."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from transformers import PreTrainedModel

from harness.rollout.protocol import Engine


def update(model: PreTrainedModel, lr: float) -> PreTrainedModel:
    """Take one step of Adam, which moves every weight by the learning rate; return the model before it."""
    before = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    model(input_ids=torch.arange(40)[None], labels=torch.arange(40)[None]).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return before


# Each fault loads something into an engine that has the weights from before the update.

Fault = Callable[[Engine, PreTrainedModel, PreTrainedModel], None]


def load(engine: Engine, weights: Mapping[str, torch.Tensor], like: PreTrainedModel) -> None:
    model = copy.deepcopy(like)
    model.load_state_dict(weights)
    engine.load(model)


def skipped(engine: Engine, before: PreTrainedModel, now: PreTrainedModel) -> None:
    """Load nothing."""


def one_matrix(engine: Engine, before: PreTrainedModel, now: PreTrainedModel) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    load(engine, {**now.state_dict(), name: before.state_dict()[name]}, now)


def half_of_the_rows(engine: Engine, before: PreTrainedModel, now: PreTrainedModel) -> None:
    """Load as if one rank did not send its shard."""
    old, new = before.state_dict(), now.state_dict()
    name = "model.layers.0.self_attn.q_proj.weight"
    load(engine, {**new, name: torch.cat([new[name][:32], old[name][32:]])}, now)


def swapped_projections(engine: Engine, before: PreTrainedModel, now: PreTrainedModel) -> None:
    new, k, v = now.state_dict(), "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight"
    load(engine, {**new, k: new[v], v: new[k]}, now)


def stale_head(engine: Engine, before: PreTrainedModel, now: PreTrainedModel) -> None:
    """Keep the old head, for a model whose head is a separate parameter."""
    name = "lm_head.weight"
    load(engine, {**now.state_dict(), name: before.state_dict()[name]}, now)


PARTIAL = "the load was skipped or partial, or layers were loaded in the wrong order"
FAULTS: dict[Fault, str] = {  # each with the number of parameters that differ, and the cause that is named
    skipped: "the load was skipped",
    one_matrix: rf"1 of \d+ .*\(model.layers.1.mlp.up_proj.weight\).*{PARTIAL}",
    half_of_the_rows: rf"1 of \d+ .*\(model.layers.0.self_attn.q_proj.weight\).*{PARTIAL}",
    swapped_projections: rf"2 of \d+ .*k_proj.weight, model.layers.0.self_attn.v_proj.weight\).*{PARTIAL}",
}
STALE_HEAD = r"1 of \d+ .*\(lm_head.weight\).*a stale head"
