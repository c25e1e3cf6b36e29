"""Any method of the registry in verl: verl's synchronous PPO trainer with the method's advantages, weights and loss.

    python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.v1.trainer_mode=entrobench \\
        "+entrobench.method='clip_b(share=0.02)'" ...

verl imports this module in every process (entry-point group `verl.plugins`), which registers the trainer. Sampling,
rewards, scoring, optimizer and checkpoints are verl's. The driver computes the signal (`entrobench.Method`) on the
whole rollout batch, from verl's log-probabilities and entropies of the policy before the update. The signal travels
with the responses through verl's TransferQueue, and the workers compute the method's loss of each micro-batch.

A policy loss in verl's registry receives neither the entropy nor the columns of a method, so the trainer replaces the
workers' whole loss (`set_loss_fn`). Nothing in verl is patched.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

try:
    import transfer_queue
    from tensordict import TensorDict
    from verl.trainer.ppo.utils import need_critic
    from verl.trainer.ppo.v1.trainer_base import register_trainer
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
    from verl.utils import tensordict_utils
    from verl.utils.metric import AggregationType, Metric
    from verl.workers.utils.padding import no_padding_2_padding, response_to_nested
except ImportError as error:
    raise ImportError(f"entrobench.verl needs verl with its TransferQueue ({error})") from error

from harness.base import seeds
from harness.base.errors import UserError
from harness.elsewhere import checkpoints
from harness.elsewhere.portable import PortableMethod, PortableSignal
from harness.methods.refusals import verl_refusal

TESTED = "0.9.1"  # of verl; the trainer overrides private methods, which another version may have changed
PREFIX = "entrobench/"  # of the columns of a signal in the TransferQueue
SHARED = "entrobench_shared"  # the entry of a batch with the values that all responses share
OPTIONS = ("method", "plugins")  # below `entrobench` in the configuration

# The settings of verl that a method replaces: their defaults, and the part of a spec to use instead.
REPLACED: dict[str, tuple[Any, str]] = {
    "algorithm.use_kl_in_reward": (False, "the objective's kl_coef"),
    "algorithm.norm_adv_by_std_in_grpo": (True, "the objective grpo, dr_grpo or lite_ppo"),
    "algorithm.gamma": (1.0, "the objective ppo's gamma"),
    "algorithm.lam": (1.0, "the objective ppo's lam"),
    "actor_rollout_ref.actor.policy_loss.loss_mode": ("vanilla", "the objective of that name"),
    "actor_rollout_ref.actor.policy_loss.clip_cov_ratio": (2e-4, "the control clip_cov's fraction"),
    "actor_rollout_ref.actor.policy_loss.clip_cov_lb": (1.0, "the control clip_cov's lowest"),
    "actor_rollout_ref.actor.policy_loss.clip_cov_ub": (5.0, "the control clip_cov's highest"),
    "actor_rollout_ref.actor.policy_loss.kl_cov_ratio": (2e-4, "the control kl_cov's fraction"),
    "actor_rollout_ref.actor.policy_loss.ppo_kl_coef": (0.1, "the control kl_cov's coefficient"),
    "actor_rollout_ref.actor.loss_agg_mode": ("token-mean", "the objective's normalise"),
    "actor_rollout_ref.actor.loss_scale_factor": (None, "the objective's normalise"),
    "actor_rollout_ref.actor.clip_ratio": (0.2, "the objective's clip_low and clip_high"),
    "actor_rollout_ref.actor.clip_ratio_low": (0.2, "the objective's clip_low"),
    "actor_rollout_ref.actor.clip_ratio_high": (0.2, "the objective's clip_high"),
    "actor_rollout_ref.actor.clip_ratio_c": (3.0, "the objective's dual_clip"),
    "actor_rollout_ref.actor.tau_pos": (1.0, "the objective sapo's tau_positive"),
    "actor_rollout_ref.actor.tau_neg": (1.05, "the objective sapo's tau_negative"),
    "actor_rollout_ref.actor.entropy_coeff": (0, "the control entropy_bonus"),
    "actor_rollout_ref.actor.kl_loss_coef": (0.001, "the objective's kl_coef"),
    "actor_rollout_ref.actor.kl_loss_type": ("low_var_kl", "the objective's kl_estimator"),
}


@dataclass(frozen=True)
class MethodLoss:
    """A worker's part of the method's loss of a mini-batch, from columns that the driver has written."""

    spec: str
    plugins: tuple[str, ...] = ()

    @cached_property
    def method(self) -> PortableMethod:
        return PortableMethod(self.spec, self.plugins)

    def __call__(
        self, model_output: Mapping[str, Any], data: TensorDict, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the loss of a micro-batch and its metrics, with the arguments of verl's `ppo_loss`."""
        logp = no_padding_2_padding(model_output["log_probs"], data)
        entropy = model_output.get("entropy")
        if entropy is not None:
            entropy = no_padding_2_padding(entropy, data)
        shared = tensordict_utils.get_non_tensor_data(data, SHARED, None)
        names = [name for name in data.keys() if name.startswith(PREFIX)]  # noqa: SIM118 - a TensorDict iterates rows
        arrived = data.select("response_mask", *names).to_padded_tensor()
        columns = {name.removeprefix(PREFIX): arrived[name] for name in names}
        columns |= {name: x.to(logp.device) for name, x in shared["of_batch"].items()}
        # The driver updates the coefficient of a control that follows the entropy.
        self.method.load_state(shared["state"])
        is_real = arrived["response_mask"] != 0
        mask = is_real.clone()
        # A padding row has no tokens. It gets one, whose scale in the loss is 0, since methods that look at whole
        # responses do not accept empty ones.
        mask[:, 0] |= ~mask.any(1)
        signal = self.method.of_columns(columns, mask=mask)

        # Gradients are averaged over data-parallel ranks, whose losses are parts of one sum.
        ranks = data["dp_size"]
        loss = self.method.loss(signal, logp, entropy=entropy) * ranks
        metrics = {"actor/pg_loss": Metric(AggregationType.SUM, loss.detach())}
        touched = self.method.touched(signal, logp.detach(), entropy=None if entropy is None else entropy.detach())
        for name, touched_T in touched.items():
            share = (touched_T & is_real[mask]).sum() * ranks / data["batch_num_tokens"]
            metrics[f"actor/{PREFIX}{name}"] = Metric(AggregationType.SUM, share)
        return loss, metrics


@register_trainer("entrobench")
class EntrobenchVerlTrainer(PPOTrainerSync):
    """verl's synchronous PPO trainer whose advantages and policy loss are those of a method of the registry."""

    def __init__(self, config: Any) -> None:
        warn_of_verl(version("verl"))
        self.loss = method_loss(config)
        self.method = self.loss.method
        check_settings(config, self.method)
        if {"entropy_now", "entropy_grad"} & self.method.composed.needs:
            config.actor_rollout_ref.actor.calculate_entropy = True
        # The base class decides by this name how to sample. Changed in place, since other parts of verl hold the same
        # configuration.
        config.trainer.v1.trainer_mode = "sync"
        self._observed: dict[str, float] = {}  # the metrics of the current rollout batch
        self._of_batch: dict[str, Tensor] = {}  # the values of its signal that all responses share
        super().__init__(config)

    def _setup(self) -> None:
        super()._setup()
        self.actor_rollout_wg.set_loss_fn(self.loss)

    # Once per rollout batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Write the method's signal on a rollout batch next to its responses."""
        check_responses(batch.keys)
        fields = ["uid", "rm_scores", "old_log_probs", "entropy", "ref_log_prob", "values", "rollout_log_probs"]
        before = fetched(batch, fields)
        for name in ("uid", "old_log_probs", "entropy"):
            if name not in before.keys():  # noqa: SIM118 - a TensorDict iterates rows
                raise UserError(
                    f"the rollout batch has no {name}; method {self.method.spec} needs it for each response"
                )
        # verl's correction for the engine that sampled; the advantages that it computes are overwritten.
        batch = super()._compute_advantage(batch, metrics)
        after = fetched(batch, ["response_mask", "rollout_is_weights"])
        mask_nested = after["response_mask"]
        signal, rows = self._signal(before, mask_nested, batch.tags)
        self._observed = self.method.metrics(signal)
        metrics.update({f"{PREFIX}{name}": value for name, value in self._observed.items()})

        columns = signal.columns()
        if "rollout_is_weights" in after.keys():  # noqa: SIM118 - a TensorDict iterates rows
            # After the method, since the correction must affect the gradient, but not the method's statistics.
            correction = after["rollout_is_weights"].to_padded_tensor(0)[rows]
            columns["weights"] = columns["weights"] * correction.to(columns["weights"])
        written = {f"{PREFIX}{name}": x for name, x in columns.items() if x.ndim}
        written["advantages"] = signal.advantages
        written["returns"] = signal.advantages if signal.returns is None else signal.returns
        self._of_batch = {name: x for name, x in columns.items() if not x.ndim}
        output = {}
        for name, x in written.items():
            whole = x.new_zeros(len(batch), *x.shape[1:])  # 0 for padding rows
            whole[rows] = x
            output[name] = response_to_nested(whole, mask_nested) if x.ndim == 2 else whole
        return transfer_queue.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(output, batch_size=len(batch))
        )

    def _signal(
        self, data: TensorDict, mask_nested: Any, tags: Sequence[Mapping[str, Any]]
    ) -> tuple[PortableSignal, Tensor]:
        """Return the signal of a rollout batch, and the rows that it covers: all except verl's padding."""
        is_padding = [bool(tag.get("is_padding", False)) for tag in tags]
        rows = torch.tensor([row for row, fills_up in enumerate(is_padding) if not fills_up])
        named = {"entropy": "entropy", "ref_logp": "ref_log_prob", "values": "values"}
        if self.method.composed.reads_sampler:
            named["behaviour_logp"] = "rollout_log_probs"
        given = {}
        for name, field in named.items():
            if field in data.keys():  # noqa: SIM118 - a TensorDict iterates rows
                given[name] = data[field].to_padded_tensor(0)[rows]
        budget = self.config.data.max_response_length
        uids = list(data["uid"])
        done = self.global_steps - 1
        signal = self.method.signal(
            data["old_log_probs"].to_padded_tensor(0)[rows],
            data["rm_scores"].to_padded_tensor(0)[rows].sum(1),
            [uids[row] for row in rows.tolist()],
            mask=mask_nested.to_padded_tensor(0)[rows],
            finished=mask_nested.offsets().diff()[rows] < budget,
            budget=budget,
            minibatches=self._minibatches(is_padding),
            seed=seeds.derive("method", self.config.actor_rollout_ref.actor.data_loader_seed, done),
            progress=min(done / self.total_training_steps, 1.0),
            **given,
        )
        return signal, rows

    def _minibatches(self, is_padding: Sequence[bool]) -> list[list[int]] | None:
        """Return the rows of each optimizer step, numbered without padding."""
        if self.config.trainer.critic_warmup > self.global_steps:
            return None  # no update of the policy follows, and the batch may not divide into mini-batches
        number_of_row: dict[int, int] = {}
        for row, fills_up in enumerate(is_padding):
            if not fills_up:
                number_of_row[row] = len(number_of_row)
        per_update = self.config.actor_rollout_ref.actor.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n
        ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1
        minibatches = []
        for rows in rows_of_updates(len(is_padding), per_update, ranks):
            numbers = [number_of_row[row] for row in rows if row in number_of_row]
            if numbers:
                minibatches.append(numbers)
        return minibatches

    # Updates and checkpoints

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch.extra_info[SHARED] = {"state": self.method.state(), "of_batch": self._of_batch}
        batch = super()._update_actor(batch, metrics)
        self.method.observe(self._observed)
        return batch

    def _save_checkpoint(self) -> None:
        # First, since the base class ends with the file that makes the checkpoint the latest one.
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        folder.mkdir(parents=True, exist_ok=True)
        checkpoints.write_memory(folder, self.method.spec, self.method.state())
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if not self.global_steps:
            return  # from scratch
        settings = self.config.trainer
        folder = Path(settings.default_local_dir) / f"global_step_{self.global_steps}"
        if settings.resume_mode == "resume_path":
            folder = Path(settings.resume_from_path)
        self.method.load_state(checkpoints.read_memory(folder, self.method.spec))


def fetched(batch: Any, fields: list[str]) -> TensorDict:
    """Return the fields that a batch has, out of a list."""
    return transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)


def rows_of_updates(responses: int, per_update: int, ranks: int) -> list[list[int]]:
    """Return the rows of each optimizer step: a slice of each data-parallel rank's contiguous part of the batch."""
    of_rank, step = responses // ranks, per_update // ranks
    updates = []
    for start in range(0, of_rank, step):
        firsts = [rank * of_rank + start for rank in range(ranks)]
        updates.append([row for first in firsts for row in range(first, first + step)])
    return updates


def method_loss(config: Any) -> MethodLoss:
    """Return the loss of the method that a configuration names."""
    options = config.get("entrobench") or {}
    if not options.get("method"):
        raise UserError(
            "trainer.v1.trainer_mode is entrobench, but no method is given; add "
            "\"+entrobench.method='clip_b(share=0.02)'\""
        )
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise UserError(f"entrobench.{unknown[0]} is not an option; allowed: {', '.join(OPTIONS)}")
    plugins = options.get("plugins") or ()
    return MethodLoss(options["method"], (plugins,) if isinstance(plugins, str) else tuple(plugins))


def check_settings(config: Any, method: PortableMethod) -> None:
    """Refuse a method that verl cannot run, and settings that contradict the method."""
    spec, needs = method.spec, method.composed.needs
    refusal = verl_refusal(method.composed)
    if refusal is not None:
        raise UserError(f"method {spec} {refusal}; allowed: `entrobench list methods --for verl`")
    actor = "actor_rollout_ref.actor"
    wanted: dict[str, tuple[Any, str]] = {
        "algorithm.rollout_correction.bypass_mode": (
            False,
            "reads the entropy before the update, which this mode does not compute",
        ),
        f"{actor}.shuffle": (False, "fixes the mini-batches before the first update"),
        f"{actor}.use_kl_loss": ("ref_logp" in needs, "decides whether the reference model is loaded"),
        "algorithm.use_pf_ppo": (False, "learns from each response once"),
        "distillation.enabled": (False, "replaces the loss of a teacher, too"),
    }
    if method.composed.reads_sampler:
        wanted["actor_rollout_ref.rollout.calculate_log_probs"] = (True, "reads the policy that sampled")
    for key, (value, reason) in wanted.items():
        given = bool(OmegaConf.select(config, key))
        if given != value:
            raise UserError(f"{key} is {given}, but method {spec} {reason}; set it to {value}")
    estimator = "gae" if "values" in needs else "grpo"
    if config.algorithm.adv_estimator != estimator or need_critic(config) != (estimator == "gae"):
        critic = "needs" if "values" in needs else "does not use"
        raise UserError(
            f"algorithm.adv_estimator is {config.algorithm.adv_estimator} and critic.enable "
            f"{config.critic.enable}; method {spec} computes the advantages and {critic} a critic: set "
            f"algorithm.adv_estimator={estimator} and leave critic.enable at null"
        )
    for key, (default, instead) in REPLACED.items():
        given = OmegaConf.select(config, key)
        if given != default:
            raise UserError(
                f"{key} is {given!r}, but method {spec} decides that; leave it at {default!r} and use {instead}"
            )
    size = config.actor_rollout_ref.rollout.n
    if size < method.min_group:
        raise UserError(
            f"actor_rollout_ref.rollout.n is {size}; method {spec} learns from groups of {method.min_group} and more"
        )


def check_responses(keys: Sequence[str]) -> None:
    """Refuse agent loops that give several outputs for one response, by verl's keys `{uid}_{session}_{output}`."""
    for key in keys:
        if key.rsplit("_", 1)[-1] != "0":
            raise UserError(
                f"response {key} is one of several outputs of an agent loop; allowed: one for each response"
            )


def warn_of_verl(installed: str) -> None:
    if installed != TESTED:
        warnings.warn(
            f"verl {installed} is installed; the trainer mode entrobench was tested with verl {TESTED}",
            UserWarning,
            stacklevel=3,
        )
