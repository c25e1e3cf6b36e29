"""Compares the trainer mode entrobench with `entrobench.Method` and with verl's own losses, on verl's own classes."""

# ruff: noqa: E402 - verl is imported after the check that it is installed

from __future__ import annotations

import copy
import json
import pickle
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from places import REPOSITORY
from ragged import Case, case
from torch import Tensor

import baselines
import entrobench
from benchmarks.patience import HANG
from harness.composition import Method
from harness.doors import verl_refusal

pytest.importorskip("transfer_queue", reason="needs the package verl; make test-verl runs it")
pytest.importorskip("hydra", reason="needs the package verl; make test-verl runs it")
verl = pytest.importorskip("verl.trainer.ppo.v1", reason="needs the package verl; make test-verl runs it")

import transfer_queue
from hydra import compose, initialize_config_module
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorStack
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.workers.utils.losses import ppo_loss

from entrobench import verl as door

BUDGET = 9
RUNNING = [name for name in baselines.METHODS if verl_refusal(Method.of(name, baselines.table())) is None]
SPECS = [*RUNNING, "grpo(kl_coef=0.3, normalise=constant)+clip_b+entropy_bonus", "dr_grpo+clip_b+sequence_mask"]
SETTINGS = (
    "trainer.v1.trainer_mode=entrobench",
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.rollout.n=8",
    f"data.max_response_length={BUDGET}",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
)


@pytest.fixture(scope="module")
def composed() -> Iterator[Callable[..., Any]]:
    with initialize_config_module("verl.trainer.config", version_base=None):
        yield lambda *overrides: compose("ppo_trainer", overrides=list(overrides))


@pytest.fixture
def settings(composed: Callable[..., Any]) -> Callable[..., Any]:
    """A function that composes the configuration of a spec."""
    whole = composed(*SETTINGS, "+entrobench.method=grpo")

    def of(spec: str) -> Any:
        config = copy.deepcopy(whole)
        config.entrobench.method = spec
        needs = Method.of(spec, baselines.table()).needs
        config.actor_rollout_ref.actor.use_kl_loss = "ref_logp" in needs
        config.algorithm.adv_estimator = "gae" if "values" in needs else "grpo"
        return config

    return of


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


class Workers:
    """Data-parallel ranks that score and update as verl's engines do, with the policies of a case."""

    def __init__(self, c: Case, queue: Queue, ranks: int, micro: int) -> None:
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
    ) -> None:
        size = len(c.groups[0])
        config.actor_rollout_ref.rollout.n = size
        responses = [rollout for group in c.groups for rollout in group]
        config.actor_rollout_ref.actor.ppo_mini_batch_size = (len(responses) + padding) // (updates * size)
        self.c, self.queue = c, Queue(monkeypatch)
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
        # The engine that samples is a little less sure of each token.
        of_tokens = {"ref_log_prob": c.old.ref_logp, "values": c.old.values, "rollout_log_probs": c.old.logp - 0.1}
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


@pytest.mark.processes
def test_the_entry_point_registers_the_trainer_in_a_fresh_process() -> None:
    code = (
        "from verl.trainer.ppo.v1 import get_trainer_cls\n"
        "trainer = get_trainer_cls('entrobench')\n"
        "print(trainer.__module__, trainer.__name__)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, check=True)
    assert result.stdout.split() == ["entrobench.verl", "EntrobenchVerlTrainer"]


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("spec", SPECS)
def test_the_gradient_is_that_of_the_method(
    spec: str, updates: int, settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    c = case(4, groups=4, size=8, longest=BUDGET)
    run = Run(c, settings(spec), monkeypatch, updates=updates, ranks=2)
    given = run.step()
    expected = direct(c, spec, run.order, door.rows_of_updates(32, 32 // updates, 2))
    assert len(given) == len(expected) == updates
    for of_run, of_method in zip(given, expected, strict=True):
        close(of_run, of_method)
    assert any(gradient.abs().max() > 1e-6 for gradient in given)


@pytest.mark.parametrize("spec", SPECS)
def test_rows_that_fill_a_batch_up_change_nothing(
    spec: str, settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    c = case(4, groups=4, size=8, longest=BUDGET)
    run = Run(c, settings(spec), monkeypatch, ranks=2, padding=8)
    (given,) = run.step()
    (expected,) = direct(c, spec, [row for row in run.order if row >= 0], [list(range(32))])
    close(given, expected)


@pytest.mark.parametrize(
    ("spec", "mode"), [("grpo", "token-mean"), ("grpo(normalise=sequence)", "seq-mean-token-mean")]
)
def test_grpo_is_the_vanilla_loss_of_verl(
    spec: str, mode: str, settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without deviations: verl clamps log-ratios at 20, which this case does not reach."""
    c = case(4, groups=4, size=8, longest=BUDGET)
    given = Run(c, settings(spec), monkeypatch, updates=2, ranks=2).step()

    run = Run(c, settings(spec), monkeypatch, updates=2, ranks=2)
    actor = copy.deepcopy(run.trainer.config.actor_rollout_ref.actor)
    actor.loss_agg_mode = mode
    run.workers.loss_fn = partial(ppo_loss, config=omega_conf_to_dataclass(actor))
    for name in ("_compute_advantage", "_update_actor"):
        theirs = partial(getattr(door.PPOTrainerSync, name), run.trainer)
        monkeypatch.setattr(run.trainer, name, theirs)
    expected = run.step()
    assert len(given) == len(expected) == 2
    for ours, verls in zip(given, expected, strict=True):
        close(ours, verls)


def test_verls_correction_for_the_engine_multiplies_the_weights(
    settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    c = case(4, groups=4, size=8, longest=BUDGET)
    plain, corrected = settings("clip_b"), settings("clip_b")
    corrected.algorithm.rollout_correction.rollout_is = "token"
    weights = []
    for config in (plain, corrected):
        run = Run(c, config, monkeypatch)
        run.step()
        weights.append(run.queue.get(run.batch.keys, "train")["entrobench/weights"].values())
    factor = torch.tensor(0.1, dtype=torch.float64).exp()  # of the engine's probabilities
    torch.testing.assert_close(weights[1], weights[0] * factor, rtol=1e-6, atol=0)


def test_the_memory_of_a_control_reaches_workers_logs_and_checkpoints(
    settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    c = case(4, groups=4, size=8, longest=BUDGET)
    config = settings("grpo+adaptive_entropy(target=5)")
    config.trainer.default_local_dir = str(tmp_path)
    run = Run(c, config, monkeypatch)
    before = run.trainer.method.state()
    run.step()
    after = run.trainer.method.state()
    assert run.workers.loss_fn.method.state() == before != after
    assert run.metrics["entrobench/entropy/mean"] == pytest.approx(c.old.entropy.mean().item())  # type: ignore[union-attr]
    assert {"actor/pg_loss", "actor/entrobench/clipped_high"} <= run.workers.metrics[0].keys()

    monkeypatch.setattr(door.PPOTrainerSync, "_save_checkpoint", lambda trainer: None)
    monkeypatch.setattr(door.PPOTrainerSync, "_load_checkpoint", lambda trainer: None)
    run.trainer._save_checkpoint()
    kept = tmp_path / "global_step_1" / "entrobench.json"
    assert json.loads(kept.read_text())["state"] == after
    run.trainer.method.load_state(before)
    run.trainer._load_checkpoint()
    assert run.trainer.method.state() == after

    kept.write_text(json.dumps({"method": "dapo", "state": {}}))
    with pytest.raises(entrobench.UserError, match=r"is of method dapo, not of grpo\+adaptive_entropy"):
        run.trainer._load_checkpoint()
    kept.unlink()
    with pytest.raises(entrobench.UserError, match=r"has no entrobench\.json"):
        run.trainer._load_checkpoint()


@pytest.mark.parametrize(
    ("spec", "key", "value", "message"),
    [
        ("clip_v", None, None, "needs the sums over squared probabilities, which verl does not compute"),
        ("bapo", None, None, "looks at each whole mini-batch before its update"),
        ("grpo", "algorithm.rollout_correction.bypass_mode", True, "bypass_mode is True.*entropy before the update"),
        ("grpo", "actor_rollout_ref.rollout.n", 1, "rollout.n is 1; method grpo learns from groups of 2 and more"),
        ("grpo", "actor_rollout_ref.actor.shuffle", True, "shuffle is True.*set it to False"),
        ("grpo", "actor_rollout_ref.actor.clip_ratio_high", 0.28, "leave it at 0.2 and use the objective's clip_high"),
        ("grpo", "actor_rollout_ref.actor.use_kl_loss", True, "use_kl_loss is True.*set it to False"),
        ("grpo", "algorithm.adv_estimator", "gae", "has not a critic: set algorithm.adv_estimator=grpo"),
        ("ppo", "algorithm.adv_estimator", "grpo", "needs a critic: set algorithm.adv_estimator=gae"),
        ("grpo(kl_coef=0.1)", "actor_rollout_ref.actor.use_kl_loss", False, "use_kl_loss is False.*set it to True"),
        ("grpo", "entrobench.method", None, "no method is given"),
        ("no_such_method", "actor_rollout_ref.rollout.n", 8, "no_such_method"),
    ],
)
def test_settings_that_contradict_a_method_are_refused(
    spec: str, key: str | None, value: Any, message: str, settings: Callable[..., Any]
) -> None:
    config = settings("grpo" if spec == "no_such_method" else spec)
    config.entrobench.method = spec
    if key is not None:
        door.OmegaConf.update(config, key, value)
    with pytest.raises(entrobench.UserError, match=message):
        door.EntrobenchVerlTrainer(config)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("uid", "the rollout batch has no uid"),
        ("entropy", "the rollout batch has no entropy"),
        ("rm_scores", "the reward of response .* is nan; allowed: finite numbers"),
        ("keys", "is one of several outputs of an agent loop"),
    ],
)
def test_batches_that_do_not_fit_are_refused(
    field: str, message: str, settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(case(4, groups=4, size=8, longest=BUDGET), settings("grpo"), monkeypatch)
    batch = run.trainer._compute_old_log_prob(run.batch, {})
    for fields in run.queue.fields.values():
        if field == "rm_scores":
            fields[field] = fields[field] * float("nan")
        else:
            fields.pop(field, None)
    if field == "keys":
        batch.keys[3] = "u0_1_1"
    with pytest.raises(entrobench.UserError, match=message):
        run.trainer._compute_advantage(batch, {})


def test_another_version_of_verl_gives_a_warning_that_names_both() -> None:
    with pytest.warns(UserWarning, match=r"verl 0\.10\.0 is installed.* tested with verl 0\.9\.1"):
        door.warn_of_verl("0.10.0")


def test_the_example_is_a_configuration_of_verl(composed: Callable[..., Any]) -> None:
    text = (REPOSITORY / "examples" / "verl_clip_b.sh").read_text()
    command = text[text.index("python ") :].replace("\\\n", " ").replace('"$@"', "")
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "verl.trainer.main_ppo"]
    config = composed(*words[3:])
    validate_config(config, use_reference_policy=False, use_critic=False)
    method = door.method_loss(config).method
    door.check_settings(config, method)
    assert method.spec == "clip_b(share=0.02)"
    assert config.trainer.v1.trainer_mode == "entrobench"
