"""Checks of what a method computes: its gradients, their direction, and everything that must not change them."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from harness.conformance.probe import (
    CLOSE,
    ENTROPIES,
    Failed,
    Outcome,
    Probe,
    Split,
    Subject,
    compute_outcome,
    first_line_of,
    gradient_by,
    identical,
    loss_of,
    require_equal,
    require_finite,
    signal_on,
    singly,
    step_record,
    tensors_in,
    tied,
    unevenly,
    whole,
    with_step_marks,
)
from harness.methods.batch import TokenBatch, TokenStats
from harness.methods.composition import Method, Signal, overrides
from harness.methods.verbs import Component, View
from harness.tokens.metrics import of_updates


class DetachTape(TorchFunctionMode):
    """A recorder of the results of `detach`, or with a recording, a player of it in the same order."""

    def __init__(self, recording: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.recorded: list[Tensor] = []
        self.playback = None if recording is None else iter(recording)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.Tensor.detach:
            return func(*args, **(kwargs or {}))
        if self.playback is not None:
            return next(self.playback)
        self.recorded.append(func(*args))
        return self.recorded[-1]


def gradient(subject: Subject) -> str:
    """Compare autograd with differences of the loss along random directions, with detached values held fixed."""
    # Far from the old policy, where clips are active, and so near to it that all ratios are inside any clip.
    have_gradient = [slopes_agree(subject.make(), subject.probe(drift=drift)) for drift in (0.5, 2e-3)]
    if not any(have_gradient):
        raise Failed("no token has a gradient on an ordinary batch")
    return "is that of the loss, with what is detached held fixed"


# In float64 a step of 1e-7 keeps both errors of a central difference, of rounding and of curvature, far below 1e-5.
STEP, DIRECTIONS = 1e-7, 6


def slopes_agree(method: Method, probe: Probe) -> bool:
    """Refuse a gradient that is not that of the loss; return whether any token has a gradient."""
    batch, generator = probe.batch, torch.Generator().manual_seed(0)
    signal = signal_on(method, probe)
    logits_TV = probe.logits_TV.clone().requires_grad_()

    def loss_at(moved_TV: Tensor, tape: DetachTape) -> Tensor:
        with tape:
            return loss_of(method, probe, probe.during(method.needs, moved_TV, batch.index_T), signal, batch)

    recorder = DetachTape()
    loss = loss_at(logits_TV, recorder)
    gradient_TV = gradient_by(logits_TV, loss)
    require_finite("the gradient", gradient_TV)
    for _ in range(DIRECTIONS):
        along_TV = torch.randn(logits_TV.shape, generator=generator, dtype=torch.float64)
        ahead = loss_at(probe.logits_TV + STEP * along_TV, DetachTape(recorder.recorded)).item()
        behind = loss_at(probe.logits_TV - STEP * along_TV, DetachTape(recorder.recorded)).item()
        measured = (ahead - behind) / (2 * STEP)
        predicted = (gradient_TV * along_TV).sum().item()
        if abs(measured - predicted) > 1e-5 * (gradient_TV.norm() * along_TV.norm()).item() + 1e-7:
            raise Failed(f"the loss has a slope of {measured:.5g}, but its gradient predicts {predicted:.5g}")
    return bool(gradient_TV.any())


def micro_batches(subject: Subject) -> str:
    """Compare the loss, the gradient and the logged metrics of different splits into micro-batches."""
    for seed in range(2):
        probe = subject.probe(seed)
        expected = compute_outcome(subject.make(), probe, updates=2)
        in_parts = compute_outcome(subject.make(), probe, 2, unevenly)
        require_equal(expected, in_parts, None, "in other micro-batches")
        one_by_one = compute_outcome(subject.make(), probe, 2, singly)
        require_equal(expected, one_by_one, None, "with each response alone")
        metrics = update_metrics(subject.make(), probe, expected.signal)
        metrics_in_parts = update_metrics(subject.make(), probe, expected.signal, unevenly)
        for name, number in metrics.items():
            if not math.isclose(number, metrics_in_parts[name], rel_tol=CLOSE, abs_tol=1e-12):
                raise Failed(f"the metric {name} differs in other micro-batches")
    return "loss and gradient are the same in 1, 4 or 16 parts, one without tokens"


def order(subject: Subject) -> str:
    """Compare the outcomes of a batch in different orders, with ties, and behind longer prompts."""
    for seed in range(2):
        probe, shuffler = subject.probe(seed), random.Random(seed)
        expected = compute_outcome(subject.make(), probe)
        groups = shuffler.sample(range(8), 8)  # random_probe makes 8
        shuffled: list[int] = []
        in_blocks: list[int] = []
        for group in groups:
            first = group * subject.size
            shuffled += [first + place for place in shuffler.sample(range(subject.size), subject.size)]
            in_blocks += range(first, first + subject.size)
        require_equal_reordered(subject, probe, expected, shuffled, "in another order of groups and responses")
        # The earlier of two equal tokens in the order of a prompt's responses may come first. So only whole groups
        # move where there are ties.
        ties = tied(probe)
        expected_ties = compute_outcome(subject.make(), ties)
        require_equal_reordered(subject, ties, expected_ties, in_blocks, "in another order of groups, with ties")
        longer_sequences = [torch.cat([torch.full((5,), 2), tokens]) for tokens in probe.batch.sequences]
        longer = replace(probe.batch, sequences=longer_sequences, prompt_lengths_B=probe.batch.prompt_lengths_B + 5)
        after_longer = compute_outcome(subject.make(), replace(probe, batch=longer))
        require_equal(expected, after_longer, None, "behind longer prompts")
    return "of groups and responses changes nothing, also with ties, nor do prompts"


def require_equal_reordered(subject: Subject, probe: Probe, expected: Outcome, rows: list[int], where: str) -> None:
    """Refuse a different outcome on the same responses in the order of `rows`."""
    reordered = compute_outcome(subject.make(), probe.take(rows))
    require_equal(expected, reordered, probe.batch.take(rows).index_T, where)


def rewards(subject: Subject) -> str:
    """Shape rewards, as a control may, and compare whether the advantages follow with the declaration."""
    complete, probe = subject.make(), subject.probe()
    # The objective alone, since a control may replace the rewards.
    method = Method(complete.base, (complete.base, complete.objective), {})
    batch = probe.batch
    shaped = replace(batch, rewards_B=batch.rewards_B - 0.2 * batch.finished_B)
    old = probe.before(method.needs)
    advantages_T = method.signal(old, batch, [batch]).advantages_T
    shaped_advantages_T = method.signal(old, shaped, [shaped]).advantages_T
    ignores = method.objective.ignores_rewards
    if torch.equal(advantages_T, shaped_advantages_T) != ignores:
        follow = "follow" if ignores else "do not follow"
        raise Failed(f"ignores_rewards is {ignores}, and the advantages {follow} shaped rewards")
    return "only what is right counts" if ignores else "shaped ones reach the advantages"


AnyComponent = TypeVar("AnyComponent", bound=Component)
BEFORE_UPDATE = ("reward", "advantages", "returns", "reshape", "weights", "marks", "metrics")
EACH_STEP = ("step_marks", "surrogate", "clips", "gate", "term", "update_metrics")


def refusing_changes(component: AnyComponent) -> AnyComponent:
    """Return a component whose verbs may not change a tensor that they receive."""

    def guarded(verb: str) -> Callable[..., Any]:
        def call(self: Component, *arguments: Any) -> Any:
            tensors = received(arguments)
            copies = {name: x.detach().clone() for name, x in tensors.items()}
            result = getattr(type(component), verb)(self, *arguments)
            for name, x in tensors.items():
                if not torch.equal(x, copies[name]):
                    raise Failed(f"{name} of the verb {verb} was changed; a method must not change its inputs in place")
            return result

        return call

    verbs = [verb for verb in (*BEFORE_UPDATE, *EACH_STEP) if hasattr(component, verb)]
    own = {verb: guarded(verb) for verb in verbs if overrides(component, verb)}
    watched = copy.copy(component)
    object.__setattr__(watched, "__class__", type(type(component).__name__, (type(component),), own))
    return watched


def received(arguments: Iterable[Any], name: str = "an argument") -> dict[str, Tensor]:
    """Return the tensors among the arguments of a verb, and in its views, statistics, marks and batches, by name."""
    tensors = {}
    for number, x in enumerate(arguments):
        if isinstance(x, Tensor):
            tensors[f"{name} ({number})"] = x
        elif isinstance(x, Mapping):
            tensors |= received(x.values(), "a mark")
        elif isinstance(x, View | TokenStats | TokenBatch):
            tensors |= tensors_in(x)
            tensors |= received([value for value in vars(x).values() if isinstance(value, TokenStats | Mapping)])
    return tensors


def twice(subject: Subject) -> str:
    """Compute the same batch twice, with different global seeds, and see that no verb changes what it receives."""
    method, probe = subject.make(), subject.probe()
    watched = Method(
        method.name,
        (method.base, refusing_changes(method.objective)),
        {name: refusing_changes(control) for name, control in method.controls.items()},
    )
    state = copy.deepcopy(watched.state())
    own_metrics(watched, probe, compute_outcome(watched, probe))
    if watched.state() != state:
        raise Failed("the memory changed before the step was observed")
    outcomes = []
    for seed in range(2):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        outcomes.append(compute_outcome(method, probe, updates=2))
    if not identical(*outcomes):
        raise Failed("the same batch gives a different loss or gradient the second time")
    return "the same batch gives the same bits, and stays as it was"


def edges(subject: Subject) -> str:
    """Require finite numbers on the rare kinds of batches."""
    for name, method, probe in subject.moments():
        try:
            outcome = compute_outcome(method, probe)
            logged = own_metrics(method, probe, outcome)
        except Exception as error:
            raise Failed(f"{first_line_of(error)} where {name}") from error
        values = {
            "an advantage": outcome.signal.advantages_T,
            "a weight": outcome.signal.weights_T,
            "the loss": torch.tensor(outcome.loss, dtype=torch.float64),
            "the gradient": outcome.gradient_TV,
        }
        values |= {f"the metric {key}": torch.tensor(x, dtype=torch.float64) for key, x in logged.items()}
        for value_name, value in values.items():
            if not torch.isfinite(value).all():
                raise Failed(f"{value_name} is not finite where {name}")
    return f"finite in {len(subject.edges)} rare kinds of batches, in float64 and float32"


def own_metrics(method: Method, probe: Probe, outcome: Outcome) -> dict[str, float]:
    """Return the metrics of the method's own, and require that its clip masks are masks of the tokens.

    A batch without tokens has no metrics.
    """
    if not len(probe.batch.index_T):
        return {}
    logged = {**method.metrics(outcome.signal, probe.batch), **update_metrics(method, probe, outcome.signal)}
    fixed = with_step_marks(method, probe, outcome.signal, probe.batch)
    current = probe.during(method.needs, probe.logits_TV, probe.batch.index_T)
    for name, mask_T in method.touched(current, fixed, probe.batch).items():
        if mask_T.dtype != torch.bool or mask_T.shape != probe.batch.index_T.shape:
            raise Failed(f"{name} is not a boolean mask of the tokens")
    return logged


def update_metrics(method: Method, probe: Probe, signal: Signal, split: Split = whole) -> dict[str, float]:
    """Return the metrics that a method logs of an update that is computed in parts."""
    fixed = with_step_marks(method, probe, signal, probe.batch)
    columns = []
    for part in split(probe.batch):
        current = probe.during(method.needs, probe.logits_TV, part.index_T)
        columns.append(method.update_metrics(current, fixed.at(part.index_T), part))
    return of_updates(columns)


def factors(method: Method, probe: Probe) -> dict[str, Tensor]:
    """Return the product of weight and gate of each control, for every token."""
    batch = probe.batch
    signal = signal_on(method, probe)
    factor_by_control = dict(signal.weights_by)
    current = probe.during(method.needs, probe.logits_TV, batch.index_T)
    for name, control in method.controls.items():
        if overrides(control, "gate"):
            # A gate may be a single number.
            factor_T = torch.ones_like(signal.weights_T) * control.gate(method.view(name, current, signal, batch))
            factor_by_control[name] = factor_by_control.get(name, 1.0) * factor_T
    return factor_by_control


def weights(subject: Subject) -> str:
    """Require weights and gates that are finite and not negative, on the rare kinds of batches."""
    factors_seen = 0
    for name, method, probe in subject.moments():
        for control, factor_T in factors(method, probe).items():
            factors_seen += 1
            if not torch.isfinite(factor_T).all():
                raise Failed(f"{control} gives a weight that is not finite where {name}")
            if (factor_T < 0).any():
                raise Failed(f"{control} gives a weight below 0 where {name}")
    return "0 or more, and finite" if factors_seen else "there are none"


def denominators(subject: Subject) -> str:
    """Refuse a loss that is divided by the number of kept tokens."""
    dropped_tokens = 0
    for seed in range(3):
        method, probe = subject.make(), subject.probe(seed)
        signal = signal_on(method, probe)
        if not any(control.reference_denominator for control in method.controls.values()):
            ones_T = torch.ones_like(signal.weights_T)
            if not torch.equal(signal.scale_T, method.objective.scale(probe.batch, ones_T)):
                raise Failed("the scale of the loss depends on which tokens are dropped")
        for name, factor_T in factors(method, probe).items():
            dropped_T = factor_T == 0
            dropped_tokens += int(dropped_T.sum())
            some_dropped = dropped_T.any() and not dropped_T.all()
            if some_dropped and abs(factor_T.mean().item() - 1) < 1e-6:
                raise Failed(f"{name} drops tokens, and makes up for it in the weights of the others (their mean is 1)")
    return "count all tokens" + ("" if dropped_tokens else " (none was dropped)")


def memory(subject: Subject) -> str:
    """Compare, step by step, a method with a second one that was restored from its checkpoint."""
    first = subject.make()
    initial_state = json.dumps(first.state())
    for number, entropy in enumerate(ENTROPIES):
        first.observe(step_record(first, subject.step(number), entropy))
        state = first.state()
        second = subject.make()
        if json.dumps(second.state()) != initial_state:
            raise Failed("a new instance starts with what another one observed: the memory is shared")
        second.load_state(json.loads(json.dumps(state)))
        if second.state() != state:
            raise Failed("a loaded memory is not the one that was saved")
        # On batches that neither has observed: a forgotten memory of a batch's own numbers makes no difference on the
        # batch it comes from.
        for probe in (subject.step(number + 1), subject.step(number + 2)):
            if not identical(compute_outcome(first, probe), compute_outcome(second, probe)):
                raise Failed("after a checkpoint the method computes something else: state leaves something out")
            record = step_record(first, probe, 0.7 * entropy)
            first.observe(record)
            second.observe(record)
            if first.state() != second.state():
                raise Failed("after a checkpoint the memory develops differently: state leaves something out")
    kept = sorted(number for memory_of_control in first.state().values() for number in memory_of_control)
    return f"{', '.join(kept)}: the same after a checkpoint" if kept else "there is none"


# The direction of the gradient: its sign, its size at ratio 1, and none through a gate

NUDGE = 1e-6  # in log p: differences of float64 values then have some ten correct digits
AGREEING = 1e-5  # relative: above the error of the differences, far below any factor that a formula might have
MOVED = 0.5  # in logits: many ratios are beyond a clip, where a formula may take another branch
UNDETACH = "take the gate of detached values: view.current.logp.detach(), and the need entropy_now for the entropy"


@dataclass(frozen=True)
class Pull:
    """The surrogate's pull on log p of each token."""

    gradient_T: Tensor  # as autograd has it
    slope_T: Tensor  # of the surrogate's own value, by differences, with all that is detached recomputed
    advantages_T: Tensor  # times weights, gates and scale: the policy gradient

    @property
    def by_value(self) -> Tensor:
        """The tokens whose gradient is the slope of the surrogate's value."""
        return equal_except_rounding(self.gradient_T, self.slope_T)

    @property
    def against(self) -> Tensor:
        """The tokens that are pushed away from their advantage, without support by the surrogate's value."""
        return (self.gradient_T * self.advantages_T < 0) & ~self.by_value

    @property
    def unexplained(self) -> Tensor:
        """The tokens whose gradient is neither the policy gradient nor the slope of the surrogate's value."""
        return ~equal_except_rounding(self.gradient_T, self.advantages_T) & ~self.by_value


def equal_except_rounding(one_T: Tensor, other_T: Tensor) -> Tensor:
    largest = max(one_T.abs().max().item(), other_T.abs().max().item())
    return (one_T - other_T).abs() <= AGREEING * largest + 1e-12


def measure_pull(method: Method, probe: Probe) -> Pull:
    """Compute the gradient of the surrogate alone, and the slope of its value."""
    batch = probe.batch
    signal = signal_on(method, probe)
    scale_T = signal.scale_T.clone().requires_grad_()
    surrogate_only = replace(signal, scale_T=scale_T, term_scale_T=torch.zeros_like(scale_T))
    current = probe.during(method.needs, probe.logits_TV, batch.index_T)

    def loss_at(logp_T: Tensor) -> Tensor:
        return method.loss(replace(current, logp=logp_T), surrogate_only, batch)

    def values_at(logp_T: Tensor) -> Tensor:
        # The loss is minus the sum of scale times surrogate: its slope by the scale is minus each token's surrogate.
        (by_scale_T,) = torch.autograd.grad(loss_at(logp_T), scale_T)
        return batch.per_sequence(-by_scale_T * signal.scale_T)

    present_T = current.logp.detach()
    logp_T = present_T.clone().requires_grad_()
    gradient_T = gradient_by(logp_T, loss_at(logp_T))
    slope_T = torch.zeros_like(gradient_T)
    # One place of all responses at a time: a token may count in the surrogate of its whole response, and in no other.
    for place in range(int(batch.within_T.max()) + 1):
        here_T = batch.within_T == place
        ahead_B = values_at(present_T + NUDGE * here_T)
        behind_B = values_at(present_T - NUDGE * here_T)
        slope_B = (ahead_B - behind_B) / (2 * NUDGE)
        slope_T = slope_B[batch.sequence_T].where(here_T, slope_T)
    require_finite("the gradient by log p", gradient_T, slope_T)
    factor_T = math.prod(factors(method, probe).values(), start=torch.ones_like(signal.weights_T))
    policy_gradient_T = signal.advantages_T * factor_T * signal.scale_T
    return Pull(-gradient_T, slope_T, policy_gradient_T)


def direction(subject: Subject) -> str:
    """Compare the gradient with the advantages: in size where the policy has not moved, in sign where it has."""
    method = subject.make()
    exempt = [name for name, component in method.named.items() if not component.follows_advantage]
    for name in method.controls:
        if name not in exempt:
            refuse_slope_of_gate(method, name, subject.probe(drift=MOVED))
            refuse_reversal(method, name, subject.probe())
    refuse_repelling_critic(method, subject.probe())
    start = measure_pull(method, subject.probe(drift=0.0))
    moved = measure_pull(method, subject.probe(drift=MOVED))
    if exempt:
        return f"{', '.join(exempt)} declares a different one from that of the advantages: {described(start)}"
    for where, pull in (("at ratio 1", start), ("where the policy has moved", moved)):
        if pull.against.any():
            share = pull.against[pull.advantages_T != 0].double().mean().item()
            raise Failed(f"{where} the gradient goes against the advantage for {share:.1%} of the tokens that have one")
    if start.advantages_T.any() and (start.gradient_T * start.advantages_T).sum() <= 0:
        raise Failed("at ratio 1 a step along the gradient lowers the log p of advantageous tokens: its sign is wrong")
    if start.unexplained.any():
        raise Failed(
            f"at ratio 1 the gradient is neither that of advantage times log p nor that of the surrogate's value: "
            f"{described(start)}"
        )
    if equal_except_rounding(start.gradient_T, start.advantages_T).all():
        return "at ratio 1 that of advantage times log p"
    return f"at ratio 1 {described(start)}, which is the slope of its value"


def refuse_reversal(method: Method, name: str, probe: Probe) -> None:
    """Refuse a control that turns rewards or advantages around, taken over the whole batch."""
    control, old, batch = method.controls[name], method.before(method.controls[name], probe.old), probe.batch
    if not control.ignores_rewards:
        rewards_B = control.reward(batch.rewards_B, old, batch)
        centered_B = batch.rewards_B - batch.rewards_B.mean()
        if (centered_B * (rewards_B - rewards_B.mean())).sum() < 0:
            raise Failed(f"{name} gives right responses lower rewards than wrong ones", "look for a sign in reward")
    advantages_T = method.objective.advantages(method.before(method.objective, probe.old), batch)
    if (advantages_T * control.reshape(advantages_T, old, batch)).sum() < 0:
        raise Failed(f"{name} turns the advantages around", "look for a sign in reshape")


def refuse_repelling_critic(method: Method, probe: Probe) -> None:
    """Refuse a loss of the critic that does not draw each value toward its own target."""
    if "values" not in method.needs:
        return
    returns_T = signal_on(method, probe).returns_T
    assert returns_T is not None
    values_T = (probe.values_T + 0.01 * probe.logits_TV[:, 0].sin()).requires_grad_()
    loss_T = method.objective.value_loss(values_T, probe.values_T, returns_T)
    (slope_T,) = torch.autograd.grad(loss_T.sum(), values_T, retain_graph=True)
    (slope_of_one_T,) = torch.autograd.grad(loss_T[0], values_T)
    advice = "give a loss for each token, which falls as its value comes nearer to its return"
    if (slope_T * (values_T - returns_T) < 0).any() or not slope_T.any():
        raise Failed("the critic's loss draws values away from their returns, or nowhere", advice)
    if slope_of_one_T[1:].any():
        raise Failed("the critic's loss of one token depends on the values of others", advice)


def described(pull: Pull) -> str:
    """Return the range of the gradient in multiples of the policy gradient."""
    has_advantage_T = pull.advantages_T != 0
    if not has_advantage_T.any():
        return "no token has an advantage"
    multiples_T = pull.gradient_T[has_advantage_T] / pull.advantages_T[has_advantage_T]
    least, most = f"{multiples_T.min().item():.3g}", f"{multiples_T.max().item():.3g}"
    span = least if least == most else f"{least} to {most}"
    return f"{span} times advantage, weight and gate"


def refuse_slope_of_gate(method: Method, name: str, probe: Probe) -> None:
    """Refuse a gate that has a gradient of its own."""
    control = method.controls[name]
    if not overrides(control, "gate"):
        return
    signal = signal_on(method, probe)
    current = probe.during(method.needs, probe.logits_TV, probe.batch.index_T)
    present = {column: x_T for column, x_T in current.columns.items() if column in ("logp", "entropy")}
    leaves = {column: x_T.detach().requires_grad_() for column, x_T in present.items()}
    gate_T = control.gate(method.view(name, replace(current, **leaves), signal, probe.batch))
    if not isinstance(gate_T, Tensor) or not gate_T.requires_grad:
        return
    slopes = torch.autograd.grad(gate_T.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
    for column, slope_T in zip(leaves, slopes, strict=True):
        if slope_T.any():
            statistic = "entropy" if column == "entropy" else "log p"
            raise Failed(f"a gradient goes through the gate of {name}, by the present {statistic}", UNDETACH)
