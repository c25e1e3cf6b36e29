"""Rollout batches of random policies in verl's own classes: a queue, data-parallel ranks, and a trainer around them.

Import it after `pytest.importorskip("verl")`: it needs verl.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transfer_queue
from ragged import Case
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorStack
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils

import entrobench
from entrobench import verl as door

BUDGET = 9
SETTINGS = (
    "trainer.v1.trainer_mode=entrobench",
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.rollout.n=8",
    f"data.max_response_length={BUDGET}",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
)


class Queue:
    """A TransferQueue in one process: fields of responses by key, which arrive in the order of the keys asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fields: dict[str, dict[str, Any]] = {}
        self.tags: dict[str, dict[str, Any]] = {}
        monkeypatch.setattr(transfer_queue, "kv_batch_get", self.get)
        monkeypatch.setattr(transfer_queue, "kv_batch_put", self.put)

    def put(self, keys: Sequence[str], partition_id: str, fields: Any = None, tags: Any = None) -> KVBatchMeta:
        for name, column in ({} if fields is None else fields).items():
            values = column.unbind() if isinstance(column, Tensor) else column.tolist()
            for key, value in zip(keys, values, strict=True):
                self.fields.setdefault(key, {})[name] = value
        for key, tag in zip(keys, tags or [], strict=bool(tags)):
            self.tags[key] = tag
        names = list(self.fields[keys[0]])
        return KVBatchMeta(list(keys), [self.tags[key] for key in keys], partition_id, names)

    def get(self, keys: Sequence[str], partition_id: str, select_fields: Any = None) -> TensorDict:
        columns: dict[str, Any] = {}
        for name in select_fields or self.fields[keys[0]]:
            values = [self.fields[key][name] for key in keys if name in self.fields[key]]
            if not values:
                continue
            if not isinstance(values[0], Tensor):
                columns[name] = NonTensorStack(*values)
            elif values[0].ndim:
                columns[name] = torch.nested.as_nested_tensor(values, layout=torch.jagged)
            else:
                columns[name] = torch.stack(values)
        return TensorDict(columns, batch_size=len(keys))


class RayQueue:
    """A TransferQueue in actors of Ray, as a run of verl has."""

    def put(self, keys: Sequence[str], partition_id: str, fields: Any = None, tags: Any = None) -> KVBatchMeta:
        return transfer_queue.kv_batch_put(list(keys), partition_id, fields, tags)

    def get(self, keys: Sequence[str], partition_id: str, select_fields: Any = None) -> TensorDict:
        return transfer_queue.kv_batch_get(list(keys), partition_id, select_fields)


class Workers:
    """Data-parallel ranks that score and update as verl's engines do, with the policies of a case."""

    def __init__(self, c: Case, queue: Queue | RayQueue, ranks: int, micro: int) -> None:
        self.c, self.queue, self.ranks, self.micro = c, queue, ranks, micro
        self._dispatch_info = {"actor": list(range(ranks))}
        self.loss_fn: Any = None
        self.losses: list[Tensor] = []  # of each optimizer step
        self.metrics: list[dict[str, Any]] = []  # of each micro-batch

    def set_loss_fn(self, loss: Any) -> None:
        self.loss_fn = pickle.loads(pickle.dumps(loss))  # as Ray sends it

    def sequences(self, x_T: Tensor | None, rows: Sequence[int]) -> Tensor:
        """The tokens' values as the model's output of whole sequences: each is one place before its token."""
        assert x_T is not None
        starts = self.c.batch.lengths_B.cumsum(0) - self.c.batch.lengths_B
        output = []
        for row in rows:
            prompt = 2 if row < 0 else len(self.responses[row].prompt)
            length = 1 if row < 0 else int(self.c.batch.lengths_B[row])
            values = x_T.new_zeros(1) if row < 0 else x_T[int(starts[row]) : int(starts[row]) + length]
            output.append(torch.cat([x_T.new_zeros(prompt - 1), values, x_T.new_zeros(1)]))
        return torch.nested.as_nested_tensor(output, layout=torch.jagged)

    @property
    def responses(self) -> list[Any]:
        return [rollout for group in self.c.groups for rollout in group]

    def rows(self, data: Any) -> list[int]:
        return data["row"].tolist()

    def compute_log_prob(self, batch: KVBatchMeta) -> KVBatchMeta:
        data = self.queue.get(batch.keys, "train", ["row"])
        of_old = {"log_probs": self.c.old.logp, "entropy": self.c.old.entropy}
        output = {name: self.sequences(x_T, self.rows(data)) for name, x_T in of_old.items()}
        self.queue.put(batch.keys, "train", TensorDict(output, batch_size=len(batch)))
        return batch

    def update_actor(self, batch: KVBatchMeta) -> TensorDict:
        whole = self.queue.get(batch.keys, "train")
        extra = dict(batch.extra_info)
        per_rank = extra.pop("mini_batch_size") // self.ranks
        seed, epochs, loader = extra.pop("seed"), extra.pop("epochs"), extra.pop("dataloader_kwargs")
        for name, value in extra.items():
            tensordict_utils.assign_non_tensor_data(whole, name, value)
        now = self.c.current()
        updates: list[list[Any]] = []
        for rank, part in enumerate(tensordict_utils.chunk_tensordict(whole, self.ranks)):
            loaded = tensordict_utils.make_iterator(part, per_rank, epochs, seed + rank, loader)
            for step, minibatch in enumerate(loaded):
                if step == len(updates):
                    updates.append([])
                updates[step].append(minibatch)
        for update in updates:
            tokens = sum(int(minibatch["response_mask"].values().sum()) for minibatch in update)
            losses = []
            for minibatch in update:
                tensordict_utils.assign_non_tensor(minibatch, batch_num_tokens=tokens, dp_size=self.ranks)
                for data in tensordict_utils.chunk_tensordict(minibatch, per_rank // self.micro):
                    output = {"log_probs": self.sequences(now.logp, self.rows(data))}
                    if extra["calculate_entropy"]:
                        output["entropy"] = self.sequences(now.entropy, self.rows(data))
                    loss, metrics = self.loss_fn(model_output=output, data=data, dp_group=None)
                    losses.append(loss)
                    self.metrics.append(metrics)
            self.losses.append(torch.stack(losses).sum() / self.ranks)  # gradients are averaged over ranks
        values = {"metrics": {"loss": [0.0], "mfu": [0.0]}}
        return tensordict_utils.get_tensordict({}, values)


class Run:
    """A trainer after its workers have started, with the rollout batch of a case in its queue."""

    def __init__(
        self,
        c: Case,
        config: Any,
        monkeypatch: pytest.MonkeyPatch,
        *,
        updates: int = 1,
        ranks: int = 1,
        padding: int = 0,
        micro: int = 4,
        budget: int = BUDGET,
        queue: RayQueue | None = None,
    ) -> None:
        size = len(c.groups[0])
        config.data.max_response_length = budget
        config.actor_rollout_ref.rollout.n = size
        responses = [rollout for group in c.groups for rollout in group]
        config.actor_rollout_ref.actor.ppo_mini_batch_size = (len(responses) + padding) // (updates * size)
        self.c = c
        self.queue: Any = Queue(monkeypatch) if queue is None else queue
        monkeypatch.setattr(door.PPOTrainerSync, "_setup", lambda trainer: None)
        self.trainer = door.EntrobenchVerlTrainer(config)
        self.trainer.global_steps, self.trainer.total_training_steps = 1, 10
        self.workers = Workers(c, self.queue, ranks, micro)
        self.trainer.actor_rollout_wg = self.workers
        self.trainer._setup()
        # In an order that has the groups apart, as verl's balancing leaves it.
        self.order = torch.randperm(len(responses), generator=torch.Generator().manual_seed(3)).tolist()
        self.order[1:1] = [-1] * padding
        keys, tags, uids = [], [], []
        columns: dict[str, list[Tensor]] = {name: [] for name in ("prompts", "responses", "response_mask", "rm_scores")}
        for place, row in enumerate(self.order):
            group = -1 if row < 0 else row // size
            keys.append(f"u{group}_{place}_0")
            uids.append(f"u{group}")
            tags.append({"is_padding": True} if row < 0 else {})
            prompt = [0, 0] if row < 0 else responses[row].prompt
            response = [0] if row < 0 else responses[row].response
            scores = torch.zeros(len(response), dtype=torch.float64)
            scores[-1] = 0 if row < 0 else c.batch.rewards_B[row]
            columns["prompts"].append(torch.tensor(prompt))
            columns["responses"].append(torch.tensor(response))
            columns["response_mask"].append(torch.full((len(response),), int(row >= 0)))
            columns["rm_scores"].append(scores)
        fields: dict[str, Any] = {}
        for name, values in columns.items():
            fields[name] = torch.nested.as_nested_tensor(values, layout=torch.jagged)
        fields |= {"uid": NonTensorStack(*uids), "row": torch.tensor(self.order)}
        starts = c.batch.lengths_B.cumsum(0) - c.batch.lengths_B
        of_tokens = {"ref_log_prob": c.old.ref_logp, "values": c.old.values}
        of_tokens["rollout_log_probs"] = c.batch.behaviour_logp_T.double()
        for name, x_T in of_tokens.items():
            assert x_T is not None
            of_rows = []
            for row in self.order:
                first, length = (0, 1) if row < 0 else (int(starts[row]), int(c.batch.lengths_B[row]))
                of_rows.append(x_T[first : first + length])
            fields[name] = torch.nested.as_nested_tensor(of_rows, layout=torch.jagged)
        self.batch = self.queue.put(keys, "train", TensorDict(fields, batch_size=len(keys)), tags)
        self.metrics: dict[str, Any] = {}

    def step(self) -> list[Tensor]:
        """Score, fix the signal and update; return the gradient of each update."""
        batch = self.trainer._compute_old_log_prob(self.batch, self.metrics)
        batch = self.trainer._compute_advantage(batch, self.metrics)
        self.batch = self.trainer._update_actor(batch, self.metrics)
        return [torch.autograd.grad(loss, self.c.logits_TV, retain_graph=True)[0] for loss in self.workers.losses]


def padded(x_T: Tensor, c: Case) -> Tensor:
    mask_BT = mask_of(c)
    return x_T.new_zeros(mask_BT.shape).masked_scatter(mask_BT, x_T)


def mask_of(c: Case) -> Tensor:
    return torch.arange(int(c.batch.lengths_B.max())) < c.batch.lengths_B[:, None]


def direct(c: Case, spec: str, order: Sequence[int], updates: Sequence[Sequence[int]]) -> list[Tensor]:
    """The gradient of each update by `entrobench.Method`, on the rows of a case in some order."""
    method = entrobench.Method(spec)
    mask = mask_of(c)[order]
    columns: dict[str, Any] = {"entropy": c.old.entropy, "ref_logp": c.old.ref_logp, "values": c.old.values}
    columns["behaviour_logp"] = c.batch.behaviour_logp_T.double()
    given: dict[str, Any] = {name: padded(x_T, c)[order] for name, x_T in columns.items()}
    signal = method.signal(
        padded(c.old.logp, c)[order],
        c.batch.rewards_B[order],
        [row // len(c.groups[0]) for row in order],
        mask=mask,
        budget=BUDGET,
        minibatches=updates,
        seed=door.seeds.derive("method", 42, 0),
        **given,
    )
    gradients = []
    for rows in updates:
        now = c.current()
        assert now.entropy is not None
        given = {"mask": mask[rows], "entropy": padded(now.entropy, c)[order][rows]}
        loss = method.loss(signal, padded(now.logp, c)[order][rows], rows, **given)
        gradients.append(torch.autograd.grad(loss, c.logits_TV)[0])
    return gradients


def close(given: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(given, expected, rtol=1e-9, atol=1e-9)
