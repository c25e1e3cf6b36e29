"""Checks that the gradient follows the advantages: its sign, its size at ratio 1, and none through a gate."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.conformance.computed import factors
from harness.conformance.probe import Probe, signal_on
from harness.conformance.subject import Failed, Subject, require_finite
from harness.methods.composition import Method, Signal, overrides

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
    (gradient_T,) = torch.autograd.grad(loss_at(logp_T), logp_T, allow_unused=True, materialize_grads=True)
    slope_T = torch.zeros_like(gradient_T)
    # One place of all responses at a time: a token may count in the surrogate of its whole response, and in no other.
    for place in range(int(batch.within_T.max()) + 1):
        here_T = batch.within_T == place
        ahead_B = values_at(present_T + NUDGE * here_T)
        behind_B = values_at(present_T - NUDGE * here_T)
        slope_B = (ahead_B - behind_B) / (2 * NUDGE)
        slope_T = slope_B[batch.sequence_T].where(here_T, slope_T)
    require_finite("the gradient by log p", gradient_T, slope_T)
    policy_gradient_T = signal.advantages_T * factor_of(method, probe, signal) * signal.scale_T
    return Pull(-gradient_T, slope_T, policy_gradient_T)


def factor_of(method: Method, probe: Probe, signal: Signal) -> Tensor:
    """Return the product of all weights and gates."""
    factor_T = torch.ones_like(signal.weights_T)
    for control_T in factors(method, probe).values():
        factor_T = factor_T * control_T
    return factor_T


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
    leaves = {}
    for column, x_T in current.columns.items():
        if column in ("logp", "entropy"):
            leaves[column] = x_T.detach().requires_grad_()
    gate_T = control.gate(method.view(name, replace(current, **leaves), signal, probe.batch))
    if not isinstance(gate_T, Tensor) or not gate_T.requires_grad:
        return
    slopes = torch.autograd.grad(gate_T.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
    for column, slope_T in zip(leaves, slopes, strict=True):
        if slope_T.any():
            present = "entropy" if column == "entropy" else "log p"
            raise Failed(f"a gradient goes through the gate of {name}, by the present {present}", UNDETACH)
