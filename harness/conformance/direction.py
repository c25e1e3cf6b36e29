"""Checks that a gradient goes where the advantages point: its sign, its size at ratio 1, and nothing through a gate."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.composition import Method, Signal, overrides
from harness.conformance.computed import factors
from harness.conformance.probe import Probe, stepped
from harness.conformance.subject import Failed, Subject, require_finite

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
    def own(self) -> Tensor:
        """The tokens whose gradient is the slope of the surrogate's value."""
        return alike(self.gradient_T, self.slope_T)

    @property
    def against(self) -> Tensor:
        """The tokens that are pushed away from their advantage, without support by the surrogate's value."""
        return (self.gradient_T * self.advantages_T < 0) & ~self.own

    @property
    def other(self) -> Tensor:
        """The tokens whose gradient is neither the policy gradient nor the slope of the surrogate's value."""
        return ~alike(self.gradient_T, self.advantages_T) & ~self.own


def alike(one_T: Tensor, other_T: Tensor) -> Tensor:
    largest = max(one_T.abs().max().item(), other_T.abs().max().item())
    return (one_T - other_T).abs() <= AGREEING * largest + 1e-12


def pull(method: Method, given: Probe) -> Pull:
    """Compute the gradient of the surrogate alone, and the slope of its value."""
    batch = given.batch
    signal = stepped(method, given, method.signal(given.before(method.needs), batch, [batch]), batch)
    scale_T = signal.scale_T.clone().requires_grad_()
    alone = replace(signal, scale_T=scale_T, term_scale_T=torch.zeros_like(scale_T))
    now = given.during(method.needs, given.logits_TV, batch.index_T)

    def loss_at(logp_T: Tensor) -> Tensor:
        return method.loss(replace(now, logp=logp_T), alone, batch)

    def values_at(logp_T: Tensor) -> Tensor:
        # The loss is minus the sum of scale times surrogate: its slope by the scale is minus each token's surrogate.
        (by_scale_T,) = torch.autograd.grad(loss_at(logp_T), scale_T)
        return batch.per_sequence(-by_scale_T * signal.scale_T)

    logp_T = now.logp.detach().requires_grad_()
    (gradient_T,) = torch.autograd.grad(loss_at(logp_T), logp_T, allow_unused=True, materialize_grads=True)
    slope_T = torch.zeros_like(gradient_T)
    # One place of all responses at a time: a token may count in the surrogate of its whole response, and in no other.
    for place in range(int(batch.within_T.max()) + 1):
        here_T = batch.within_T == place
        ahead_B, behind_B = (values_at(now.logp.detach() + sign * NUDGE * here_T) for sign in (1, -1))
        slope_B = (ahead_B - behind_B) / (2 * NUDGE)
        slope_T = slope_B[batch.sequence_T].where(here_T, slope_T)
    require_finite("the gradient by log p", gradient_T, slope_T)
    return Pull(-gradient_T, slope_T, signal.advantages_T * factor_of(method, given, signal) * signal.scale_T)


def factor_of(method: Method, given: Probe, signal: Signal) -> Tensor:
    """Return the product of all weights and gates."""
    factor_T = torch.ones_like(signal.weights_T)
    for control_T in factors(method, given).values():
        factor_T = factor_T * control_T
    return factor_T


def direction(subject: Subject) -> str:
    """Compare the gradient with the advantages: in size where the policy has not moved, in sign where it has."""
    method = subject.make()
    exempt = [name for name, component in method.named.items() if not component.follows_advantage]
    for name in method.controls:
        if name not in exempt:
            refuse_slope_of_gate(method, name, subject.probe(drift=MOVED))
    start, later = (pull(method, subject.probe(drift=drift)) for drift in (0.0, MOVED))
    if exempt:
        return f"{', '.join(exempt)} declares another one than that of the advantages: {described(start)}"
    for where, pulls in (("at ratio 1", start), ("where the policy has moved", later)):
        if pulls.against.any():
            share = pulls.against[pulls.advantages_T != 0].double().mean().item()
            raise Failed(f"{where} the gradient goes against the advantage for {share:.1%} of the tokens that have one")
    if start.advantages_T.any() and (start.gradient_T * start.advantages_T).sum() <= 0:
        raise Failed("at ratio 1 a step along the gradient lowers the log p of advantageous tokens: its sign is wrong")
    if start.other.any():
        raise Failed(
            f"at ratio 1 the gradient is neither that of advantage times log p nor that of the surrogate's value: "
            f"{described(start)}"
        )
    if alike(start.gradient_T, start.advantages_T).all():
        return "at ratio 1 that of advantage times log p"
    return f"at ratio 1 {described(start)}, which is the slope of its value"


def described(pulls: Pull) -> str:
    """Return the range of the gradient in multiples of the policy gradient."""
    some_T = pulls.advantages_T != 0
    if not some_T.any():
        return "no token has an advantage"
    multiples_T = pulls.gradient_T[some_T] / pulls.advantages_T[some_T]
    least, most = multiples_T.min().item(), multiples_T.max().item()
    ends = list(dict.fromkeys(f"{end:.3g}" for end in (least, most)))
    return f"{' to '.join(ends)} times advantage, weight and gate"


def refuse_slope_of_gate(method: Method, name: str, given: Probe) -> None:
    """Refuse a gate that has a gradient of its own."""
    control = method.controls[name]
    if not overrides(control, "gate"):
        return
    batch = given.batch
    signal = stepped(method, given, method.signal(given.before(method.needs), batch, [batch]), batch)
    now = given.during(method.needs, given.logits_TV, batch.index_T)
    leaves = {
        column: x_T.detach().requires_grad_() for column, x_T in now.columns.items() if column in ("logp", "entropy")
    }
    gate_T = control.gate(method.view(name, replace(now, **leaves), signal, batch))
    if not isinstance(gate_T, Tensor) or not gate_T.requires_grad:
        return
    slopes = torch.autograd.grad(gate_T.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
    for column, slope_T in zip(leaves, slopes, strict=True):
        if slope_T.any():
            present = "entropy" if column == "entropy" else "log p"
            raise Failed(f"a gradient goes through the gate of {name}, by the present {present}", UNDETACH)
