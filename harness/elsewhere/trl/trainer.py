"""GRPOTrainer with any method of the registry in place of `loss_type`; users import it from entrobench.trl.

Sampling, rewards, optimizer, checkpoints and logs are TRL's. After each generation the statistics of the policy before
the update are gathered from all processes, and every process computes the method's signal on the whole rollout batch
(`entrobench.Method`). An optimizer step is a mini-batch of that signal, so its denominators count the tokens of all
micro-batches and processes, however they are split.

TRL's fused head calls the harness's streamed statistics instead of its own kernel, so that entropy and the sums over
squared probabilities cost no second copy of the logits.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

try:
    from trl import GRPOConfig, GRPOTrainer
    from trl.models.utils import disable_gradient_checkpointing
    from trl.trainer import utils as trl_utils
except ImportError as error:
    raise ImportError(f"EntrobenchTrainer needs trl ({error}); pip install -e '.[trl]'") from error
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from harness import ranks
from harness.base import seeds
from harness.base.errors import UserError
from harness.elsewhere import checkpoints
from harness.elsewhere.portable import PortableMethod, PortableSignal
from harness.methods.batch import TokenStats
from harness.methods.refusals import trl_refusal
from harness.tokens.head import Head
from harness.tokens.statistics import token_stats

TESTED = "1.16.0"  # of trl; the trainer overrides private methods, which another version may have changed

# The arguments of GRPOConfig that a method replaces, and the part of its spec to use instead.
REPLACED = {
    "loss_type": "the objective of that name, for example method='dr_grpo'",
    "epsilon": "the objective's clip_low and clip_high",
    "epsilon_high": "the objective's clip_high",
    "delta": "the objective's dual_clip",
    "beta": "the objective's kl_coef",
    "use_bias_correction_kl": "the objective's kl_estimator",
    "importance_sampling_level": "the objective gspo",
    "scale_rewards": "the objective grpo, dr_grpo or lite_ppo",
    "multi_objective_aggregation": "reward_weights, whose weighted sum is the reward",
    "top_entropy_quantile": "the control top_entropy",
    "entropy_coef": "the control entropy_bonus",
    "use_adaptive_entropy": "the control adaptive_entropy",
    "off_policy_mask_threshold": "the control sequence_mask",
    "sapo_temperature_pos": "the option tau_positive of sapo",
    "sapo_temperature_neg": "the option tau_negative of sapo",
    "vespo_k_pos": "the option k_positive of vespo",
    "vespo_lambda_pos": "the option lambda_positive of vespo",
    "vespo_k_neg": "the option k_negative of vespo",
    "vespo_lambda_neg": "the option lambda_negative of vespo",
}
# Among them are the entries of a micro-batch that its forward pass takes in addition to tokens and masks.
MODEL_INPUTS = inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters.keys()


@dataclasses.dataclass(frozen=True)
class Scored(TokenStats):
    """The statistics of a batch of responses, padded as in TRL."""

    aux_loss: Tensor | None = None  # of a mixture of experts


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatisticsHead:
    """A stand-in for the autograd function of TRL's fused head, with our statistics in its unused outputs."""

    entropy_grad: bool
    sum_p2: bool
    min_p: bool
    likeliest_entropy: bool

    def apply(
        self,
        hidden_TD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_T: Tensor,
        temperature: float,
        chunk: int,
        softcap: float | None,
        scale: float,
        outputs: Sequence[str],
    ) -> tuple[Tensor | None, ...]:
        """Return log p and entropy, and for TRL's outputs sum p^2, sum p^2 log p and a statistic of likely tokens."""
        if scale != 1:  # the logits before the soft cap are scaled by scaling hidden states and bias
            hidden_TD = hidden_TD * scale
            bias_V = None if bias_V is None else bias_V * scale
        if not len(hidden_TD):  # a micro-batch whose responses are all masked; its loss of 0 still has a graph
            nothing_T = hidden_TD.float().sum(-1)
            return nothing_T, nothing_T.detach(), nothing_T.detach(), nothing_T.detach(), nothing_T.detach()
        stats = token_stats(hidden_TD, Head(weight_VD, bias_V, softcap), targets_T, temperature, **vars(self))
        of_likely_T = stats.min_p_logp if self.min_p else stats.likeliest_entropy
        return stats.logp, stats.entropy, stats.sum_p2, stats.sum_p2_logp, of_likely_T


@contextmanager
def trl_head_replaced(head: StatisticsHead) -> Iterator[None]:
    """Replace the function of TRL's fused head, and apply it to response tokens only.

    TRL selects response tokens only where it runs Triton. On a CPU it would also compute the logits of prompts and
    padding, and drop them.
    """
    function, selects = trl_utils._ChunkedLogProbFunction, trl_utils._use_triton

    def selects_on_cpu_too(device: torch.device) -> bool:
        return device.type == "cpu" or selects(device)

    trl_utils._ChunkedLogProbFunction = head
    trl_utils._use_triton = selects_on_cpu_too
    try:
        yield
    finally:
        trl_utils._ChunkedLogProbFunction, trl_utils._use_triton = function, selects


class EntrobenchTrainer(GRPOTrainer):
    """GRPOTrainer with the advantages and the loss of a method of the registry.

    `method` is a spec such as `clip_b(share=0.02)` or `gspo+entropy_bonus`, or a method that was built before, and
    `plugins` are modules with methods of your own. All other arguments are GRPOTrainer's. Arguments of GRPOConfig that
    the method replaces must be left at their defaults.
    """

    _tag_names = ("trl", "grpo", "entrobench")

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: Any = None,
        *more: Any,
        method: str | PortableMethod,
        plugins: Iterable[str] = (),
        **named: Any,
    ) -> None:
        if (installed := version("trl")) != TESTED:
            note = f"trl {installed} is installed; EntrobenchTrainer was tested with trl {TESTED}"
            warnings.warn(note, UserWarning, stacklevel=2)
        self.method = method if isinstance(method, PortableMethod) else PortableMethod(method, plugins)
        args = GRPOConfig(output_dir="EntrobenchTrainer") if args is None else args
        args = settled_arguments(args, self.method)
        self._signals: dict[str, PortableSignal] = {}  # of the current rollout batches, in training and evaluation
        self._observed: dict[str, float] = {}  # the metrics of the current training batch
        self._right: Sequence[bool] | None = None  # of the rollout batch, as sampled; None: a reward above 0
        self._update_sums: Tensor | None = None  # of the parts of the current update, for the log
        self._fixed_inputs: Any = None  # the micro-batches that the training signal covers
        self._before: Scored | None = None
        self._keeps_next = False  # whether the next scores are of the policy before the update
        super().__init__(model, reward_funcs, args, *more, **named)
        sizes = [("num_generations", self.num_generations)]
        if self.eval_dataset is not None:
            sizes.append(("num_generations_eval", self.num_generations_eval))
        for name, size in sizes:
            if size < self.method.min_group:
                raise UserError(
                    f"GRPOConfig.{name} is {size}; method {self.method.spec} learns from groups of "
                    f"{self.method.min_group} and more"
                )

    # Scores

    def _get_per_token_logps_and_entropies(self, model: Any, *inputs: Any, **named: Any) -> Any:
        """Score responses with streamed statistics; GRPOTrainer calls this also for the policy before the update."""
        keeps, self._keeps_next = self._keeps_next, False
        scored = self._score(model, *inputs, before=keeps, **named)
        if keeps:
            self._before = scored
        entropy = scored.entropy if named.get("compute_entropy") else None
        return scored.logp, entropy, scored.aux_loss

    def _score(
        self, model: Any, *inputs: Any, before: bool = False, with_gradient: bool = False, **named: Any
    ) -> Scored:
        needs = self.method.composed.needs
        head = StatisticsHead(
            entropy_grad=with_gradient and "entropy_grad" in needs,
            sum_p2=before and "sum_p2" in needs,
            min_p=before and "min_p" in needs,
            likeliest_entropy="likeliest_entropy" in needs,
        )
        # GRPOTrainer's method returns only log p and entropy of the tokens. The other statistics are in the model's
        # outputs, one for each part of the batch, under the names of the outputs that they replace.
        outputs: list[Any] = []
        hook = model.register_forward_hook(lambda module, arguments, output: outputs.append(output))
        named["compute_entropy"] = True
        try:
            with trl_head_replaced(head):
                logp, entropy, aux_loss = super()._get_per_token_logps_and_entropies(model, *inputs, **named)
        finally:
            hook.remove()
        names: dict[str, str] = {}
        if head.sum_p2:
            names |= {"sum_p2": "log_sum_sq_probs", "sum_p2_logp": "mean_logits"}
        if head.min_p or head.likeliest_entropy:
            names["min_p_logp" if head.min_p else "likeliest_entropy"] = "is_top1"
        width = logp.shape[1]  # of the responses; the outputs begin with the prompts
        columns = {}
        for name, key in names.items():
            columns[name] = torch.cat([output[key][:, -width:] for output in outputs])
        return Scored(logp, entropy, **columns, aux_loss=aux_loss)

    def _score_inputs(self, model: Any, inputs: Mapping[str, Any], **named: Any) -> Scored:
        """Score the responses of a micro-batch."""
        completions = inputs["completion_ids"]
        tokens = torch.cat([inputs["prompt_ids"], completions], dim=1)
        attended = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        named |= {name: inputs[name] for name in MODEL_INPUTS & inputs.keys()}
        return self._score(model, tokens, attended, completions.shape[1], **named)

    # Once per rollout batch

    def _calculate_rewards(self, *inputs: Any) -> Tensor:
        """Keep the rewards of all processes' responses: the weighted sums of the reward functions."""
        by_function: Tensor = super()._calculate_rewards(*inputs)
        unscored = by_function.isnan().all(dim=1).nonzero().flatten().tolist()
        if unscored:
            raise UserError(
                f"the reward of response {unscored[0]} of the rollout batch is NaN: no reward function gave a number; "
                "return a number for each response"
            )
        self._rewards = (by_function * self.reward_weights.to(by_function.device)).nansum(dim=1)
        return by_function

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """Sample and judge responses, and score them with all statistics that the method needs."""
        generate_every = self.args.steps_per_generation * self.num_iterations
        corrects = self.use_vllm and self.vllm_importance_sampling_correction
        # GRPOTrainer scores the old policy itself where a later update or the correction for vLLM needs it.
        self._keeps_next = self.args.gradient_accumulation_steps % generate_every != 0 or corrects
        self._before = None
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self._before is None and not (self.model.training and self._scores_once):
            mode = "train" if self.model.training else "eval"
            size = vars(self.args)[f"per_device_{mode}_batch_size"]
            checkpointing = disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs)
            with torch.no_grad(), checkpointing:
                self._before = self._score_inputs(self.model, output, before=True, batch_size=size)
        if self._before is not None:
            output |= before_columns(self._before)
        self._before = None
        first = self.accelerator.process_index * len(output["prompt_ids"])
        rows = torch.arange(first, first + len(output["prompt_ids"]), device=output["prompt_ids"].device)
        output["rollout_rows"] = rows  # among the responses of all processes; shuffled with the rest
        output["rollout_rewards"] = self._rewards[rows]
        return output

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """Return the next micro-batch; if it begins a rollout batch, fix the method's signal first."""
        inputs: dict[str, Any] = super()._prepare_inputs(generation_batch)
        if not self.model.training:
            self._signals["eval"] = self._signal_of([[inputs]], "eval")
            self._mark_step([inputs], "eval")
            return inputs
        accumulated = self.args.gradient_accumulation_steps
        parts = self._buffered_inputs
        # GRPOTrainer makes a new list for each rollout batch, also for the first one after a checkpoint.
        if parts is not self._fixed_inputs:
            self._fixed_inputs = parts
            if not self._scores_once:
                updates = [parts[start : start + accumulated] for start in range(0, len(parts), accumulated)]
                self._signals["train"] = self._signal_of(updates, "train")
        if self._step % accumulated == 0:
            place = self._step % self.args.steps_per_generation
            self._mark_step(parts[place : place + accumulated], "train")
        return inputs

    @property
    def _scores_once(self) -> bool:
        """True if a rollout batch is a single micro-batch, so that the pass of its update also scores the old policy.

        With several micro-batches the statistics of all of them must be known before the loss of the first.
        """
        passes = (self.args.steps_per_generation, self.args.gradient_accumulation_steps, self.num_iterations)
        corrects = self.use_vllm and self.vllm_importance_sampling_correction
        return passes == (1, 1, 1) and not corrects and not self.method.marks_steps

    def _signal_of(self, updates: Sequence[Sequence[Mapping[str, Any]]], mode: str) -> PortableSignal:
        """Return the signal of a rollout batch, from this process's micro-batches of each optimizer step."""
        parts = [part for update in updates for part in update]
        columns = {key.removeprefix("before_"): key for key in parts[0] if key.startswith("before_")}
        columns["ref_logp"] = "ref_per_token_logps"
        present = {name: key for name, key in columns.items() if key in parts[0]}
        whole, mask, order = gathered(parts, present)
        rewards = ranks.gather(torch.cat([part["rollout_rewards"] for part in parts]))[order]
        minibatches = []
        for update in updates:
            minibatches.append(ranks.gather(torch.cat([part["rollout_rows"] for part in update])))
        size = self.num_generations if mode == "train" else self.num_generations_eval
        done = self.state.global_step
        signal = self.method.signal(
            whole.pop("logp"),
            rewards,
            torch.arange(len(order)) // size,  # in the order of sampling, the responses to a prompt are neighbors
            mask=mask,
            right=self._right,
            budget=max(self.max_completion_length or 0, mask.shape[1]),  # a rollout function may go beyond it
            minibatches=minibatches,
            # From the number of finished updates, so that a resumed run draws the same numbers.
            seed=seeds.derive("method", self.args.seed, done // (len(updates) * self.num_iterations) + 1),
            progress=min(done / self.state.max_steps, 1.0) if self.state.max_steps else 0.0,
            **whole,
        )
        if "importance_sampling_ratio" in parts[0]:
            signal = self._corrected(signal, parts)
        self._log_signal(signal, mode)
        return signal

    def _corrected(self, signal: PortableSignal, parts: Sequence[Mapping[str, Any]]) -> PortableSignal:
        """Return the signal with its weights multiplied by TRL's correction for the engine that sampled.

        This comes after the method, since the correction must affect the gradient, but not the method's statistics.
        """
        of_tokens = [
            {**part, "ratio": part["importance_sampling_ratio"].expand_as(part["completion_mask"])} for part in parts
        ]
        columns, _, _ = gathered(of_tokens, {"ratio": "ratio"})
        ratio_T = signal.layout.flat("importance_sampling_ratio", columns["ratio"])[signal.token_T.argsort()]
        weights_T = signal.fixed.weights_T * ratio_T.to(signal.fixed.weights_T)
        return dataclasses.replace(signal, fixed=dataclasses.replace(signal.fixed, weights_T=weights_T))

    def _mark_step(self, parts: Sequence[Mapping[str, Any]], mode: str) -> None:
        """Show a whole mini-batch to a method that looks at it before its update."""
        if not self.method.marks_steps:
            return
        checkpointing = disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs)
        scored = []
        with torch.no_grad(), checkpointing:
            for part in parts:
                scored.append({**part, **self._score_inputs(self.model, part).columns})
        present: dict[str, str] = {name: name for name in ("logp", "entropy", "likeliest_entropy") if name in scored[0]}
        columns, mask, order = gathered(scored, present)
        rows = ranks.gather(torch.cat([part["rollout_rows"] for part in parts]))[order]
        self._signals[mode] = self.method.for_step(self._signals[mode], columns.pop("logp"), rows, mask=mask, **columns)

    # Each micro-batch

    def _compute_loss(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        """Return this micro-batch's part of the loss of an optimizer step's mini-batch."""
        mode = "train" if self.model.training else "eval"
        # Then the policy before the update is the present one, and the signal follows from the same pass.
        fixes = mode == "train" and self._scores_once
        now = self._score_inputs(
            model, inputs, with_gradient=True, before=fixes, compute_aux_loss=self.aux_loss_enabled
        )
        if fixes:
            self._signals[mode] = self._signal_of([[{**inputs, **before_columns(now)}]], mode)
        signal, rows, mask = self._signals[mode], inputs["rollout_rows"], response_mask(inputs)
        part = {"rows": rows, "mask": mask, "entropy": now.entropy, "likeliest_entropy": now.likeliest_entropy}
        loss = self.method.loss(signal, now.logp, **part)
        # Gradients and logged losses are averaged over processes, whose losses are parts of one sum.
        loss = loss * self.accelerator.num_processes
        if self.aux_loss_enabled:
            accumulated = self.current_gradient_accumulation_steps if mode == "train" else 1
            loss = loss + self.router_aux_loss_coef * now.aux_loss / accumulated
            self._metrics[mode]["aux_loss"].append(self.accelerator.gather_for_metrics(now.aux_loss).mean().item())
        self._log_part(mode, signal, now, part)
        return loss

    def training_step(self, *inputs: Any, **named: Any) -> Any:
        output = super().training_step(*inputs, **named)
        generate_every = self.args.steps_per_generation * self.num_iterations
        if self._step % generate_every == 0:  # the last update on a rollout batch is done
            self.method.observe(self._observed)
        return output

    # Logs

    def _log_signal(self, signal: PortableSignal, mode: str) -> None:
        record = self.method.metrics(signal)
        if mode == "train":
            self._observed = record
        logged = dict(record)
        if record:  # the rollout batch has a token
            logged["s_star/mean"] = signal.fixed.old.discriminator.double().mean().item()
        logged |= self.method.composed.logged_state()
        for key, value in logged.items():
            self._metrics[mode][f"entrobench/{key}"].append(value)
        # The table of completions shows one advantage for each response: the mean over its tokens. It replaces the one
        # that GRPOTrainer has just added, as far as the table, which has a bounded length, still holds it.
        lengths_B = signal.layout.lengths_B.clamp(min=1)
        advantages = (signal.advantages.sum(1) / lengths_B).tolist()
        shown = self._logs["advantages"]
        for _ in range(min(len(advantages), len(shown))):
            shown.pop()
        shown.extend(advantages)

    def _log_part(self, mode: str, signal: PortableSignal, now: Scored, part: Mapping[str, Any]) -> None:
        """Log the present entropy and the shares of touched tokens, over all processes and parts of an update.

        Metrics that TRL logs, too, keep their names. TRL gives micro-batches equal weight; these are means over tokens.
        """
        mask, entropy = part["mask"], now.entropy
        assert entropy is not None
        touched = self.method.touched(signal, now.logp.detach(), **part)
        low_T, high_T = touched.pop("clipped_low"), touched.pop("clipped_high")
        sums = {
            "tokens": mask.sum(),
            "entropy": entropy.detach()[mask].sum(),
            "clip_ratio/low_mean": low_T.sum(),
            "clip_ratio/high_mean": high_T.sum(),
            "clip_ratio/region_mean": (low_T | high_T).sum(),
        }
        sums |= {f"entrobench/gates/{name}": closed_T.sum() for name, closed_T in touched.items()}
        objective = self.method.composed.objective
        if objective.kl_coef:
            fixed, _, _ = signal.part(part["rows"])
            current = dataclasses.replace(fixed.old, logp=now.logp.detach()[mask])
            sums["kl"] = objective.divergence(current).sum()
        of_part = torch.stack([x.double() for x in sums.values()])
        self._update_sums = of_part if self._update_sums is None else self._update_sums + of_part
        if mode == "train" and not self.accelerator.sync_gradients:
            return  # more parts of this update follow
        tokens, *totals = ranks.sum_over_ranks(self._update_sums).tolist()
        self._update_sums = None
        for name, total in zip(list(sums)[1:], totals, strict=True):
            self._metrics[mode][name].append(total / tokens if tokens else math.nan)

    # Checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            checkpoints.write_memory(folder, self.method.spec, self.method.state())

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.method.load_state(checkpoints.read_memory(Path(checkpoint), self.method.spec))


def before_columns(scored: Scored) -> dict[str, Tensor]:
    """Return the statistics of the policy before the update, as the columns of a batch of responses."""
    return {f"before_{name}": x.detach() for name, x in scored.columns.items() if name != "aux_loss"}


def response_mask(inputs: Mapping[str, Any]) -> Tensor:
    """Return the mask of the tokens that the policy sampled, without the output of tools."""
    mask = inputs["completion_mask"]
    if inputs.get("tool_mask") is not None:
        mask = mask * inputs["tool_mask"]
    return mask.bool()


def gathered(
    parts: Sequence[Mapping[str, Any]], columns: Mapping[str, str]
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return columns of all processes' micro-batches, padded, in the order in which responses were sampled.

    Also return the mask of response tokens and the order of the gathered rows. Processes may have paddings of
    different widths.
    """
    masks = [response_mask(part) for part in parts]
    lengths_B = ranks.gather(torch.cat([mask.sum(1) for mask in masks]))
    order_B = ranks.gather(torch.cat([part["rollout_rows"] for part in parts])).argsort()
    width = max(int(lengths_B.max()), 1)
    mask_BT = torch.arange(width, device=lengths_B.device) < lengths_B[:, None]
    whole = {}
    for name, key in columns.items():
        tokens = [part[key][mask] for part, mask in zip(parts, masks, strict=True)]
        x_T = ranks.gather(torch.cat(tokens).detach())
        whole[name] = x_T.new_zeros(mask_BT.shape).masked_scatter(mask_BT, x_T)[order_B]
    return whole, mask_BT[order_B], order_B


def settled_arguments(args: Any, method: PortableMethod) -> Any:
    """Return a copy of a GRPOConfig for a method; refuse arguments that contradict it."""
    refusal = trl_refusal(method.composed)
    if refusal is not None:
        raise UserError(f"method {method.spec} {refusal}; allowed: `entrobench list methods --for trl`")
    defaults = {declared.name: declared.default for declared in dataclasses.fields(GRPOConfig)}
    settled = copy.copy(args)
    needs_reference = "ref_logp" in method.composed.needs
    kl_coef = method.composed.objective.kl_coef
    for name, instead in REPLACED.items():
        value = getattr(args, name)
        # A beta that repeats the objective's kl_coef, as cell.py sets it.
        agrees = name == "beta" and needs_reference and value == kl_coef
        if value != defaults[name] and not agrees:
            raise UserError(
                f"GRPOConfig.{name} is {value!r}, but method {method.spec} decides that; leave it at "
                f"{defaults[name]!r} and use {instead}"
            )
    if needs_reference:
        # With any beta except 0, GRPOTrainer loads the reference model and scores the responses with it.
        settled.beta = kl_coef or 1.0
        if args.beta != settled.beta:
            note = (
                f"GRPOConfig.beta is set to {settled.beta:g} for method {method.spec}, which reads the reference model"
            )
            warnings.warn(note, stacklevel=4)
    if args.steps_per_generation % args.gradient_accumulation_steps:
        raise UserError(
            f"GRPOConfig.steps_per_generation is {args.steps_per_generation}; it must be a multiple of "
            f"gradient_accumulation_steps, {args.gradient_accumulation_steps}, so that each update uses responses of "
            "one rollout batch"
        )
    plugin = getattr(args, "deepspeed_plugin", None)
    if plugin is not None and plugin.zero_stage == 3:
        raise UserError(
            "DeepSpeed ZeRO-3 releases the weights of the head before the backward pass, which reads them here; "
            "allowed: ZeRO-1, ZeRO-2, FSDP, DDP"
        )
    return settled
