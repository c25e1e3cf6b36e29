"""Checks of what a method says of itself: what it needs, and what its controls do not do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from harness.batch import DeclaredStats, TokenBatch, TokenStats
from harness.composition import BEFORE, DURING, Method, Signal
from harness.conformance.computed import factors
from harness.conformance.probe import Probe, stepped
from harness.conformance.subject import CLOSE, ENTROPIES, Failed, Subject, near, record, require_finite, unevenly
from harness.method import Component

MARKS = (
    "take no mean, maximum or count over the tokens of a view: what is of the batch belongs into marks (before the "
    "update) or step_marks (each mini-batch), and a part may have no tokens"
)


@dataclass(frozen=True)
class Recorded(DeclaredStats):
    """Notes which columns are read."""

    reads: set[str] = field(kw_only=True)

    def __getattribute__(self, name: str) -> Any:
        if name in BEFORE:
            super().__getattribute__("reads").add(name)
        return super().__getattribute__(name)


class Watched(Method):
    """A method of whose components is known which statistics they read."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.reads: dict[str, dict[str, set[str]]] = {name: {"before": set(), "during": set()} for name in self.named}

    def noted(self, component: Component, stats: TokenStats, when: str) -> TokenStats:
        name = next(name for name, each in self.named.items() if each is component)
        return Recorded(**vars(stats), reads=self.reads[name][when])

    def before(self, component: Component, old: TokenStats) -> TokenStats:
        return self.noted(component, super().before(component, old), "before")

    def during(self, component: Component, current: TokenStats) -> TokenStats:
        return self.noted(component, super().during(component, current), "during")


def needs(subject: Subject) -> str:
    """Finds statistics that are used and not declared, and those that are declared and not used."""
    watched = Watched.of(subject.spec, subject.table)
    assert isinstance(watched, Watched)
    slopes = False
    for entropy in ENTROPIES:
        for given in (subject.probe(), subject.edges["no response is right"]):
            watched.observe(record(watched, given, entropy))
            slopes = slopes or learns_from_entropy(watched, given)
    for name, component in watched.named.items():
        for need in sorted(watched.needs_of(component)):
            reads = watched.reads[name]
            if not any(
                column in reads[when]
                for when, columns in (("before", BEFORE), ("during", DURING))
                for column, gives in columns.items()
                if need in gives
            ):
                raise Failed(f"{name} declares the need {need!r} and reads nothing that it gives")
    if "entropy_grad" in watched.needs and not slopes:
        raise Failed("'entropy_grad' is declared, and no gradient goes through the present entropy")
    declared = ", ".join(sorted(watched.needs)) or "none"
    return f"declared: {declared}; each is used, and nothing else is"


def learns_from_entropy(method: Method, given: Probe) -> bool:
    if "entropy_grad" not in method.needs:
        return False
    signal = method.signal(given.before(method.needs), given.batch, [given.batch])
    fixed = stepped(method, given, signal, given.batch)
    current = given.during(method.needs, given.logits_TV, given.batch.index_T)
    assert current.entropy is not None
    entropy_T = current.entropy.requires_grad_()
    loss = method.loss(current, fixed, given.batch)
    if not loss.requires_grad:
        return False
    (found,) = torch.autograd.grad(loss, entropy_T, allow_unused=True, materialize_grads=True)
    return bool(found.any())


def silence(subject: Subject) -> str:
    """Compares the gradient with that of the responses which the trainer computes where the others have no signal."""
    method = subject.make()
    if method.objective.kl_coef or not all(each.silent_without_signal for each in method.components):
        return "not declared, so that all responses are computed"
    given = subject.probe()
    batch, index_T = given.batch, given.batch.index_T
    signal = stepped(method, given, method.signal(given.before(method.needs), batch, [batch]), batch)
    half_T = (batch.sequence_T % 2).double()
    for without, changed in (
        ("advantage", replace(signal, advantages_T=signal.advantages_T * half_T)),
        ("weight", replace(signal, weights_T=signal.weights_T * half_T)),
    ):
        gradient_TV = gradient_of(method, given, changed, batch)
        require_finite("the gradient", gradient_TV)
        kept_T = torch.zeros(len(index_T), dtype=torch.bool)
        part = method.contributing(batch, changed)
        kept_T[part.index_T] = True
        if not near(gradient_in_parts(method, given, changed, batch), gradient_TV):
            raise Failed("the gradient depends on the micro-batch, and so on which responses are left out", MARKS)
        if gradient_TV[~kept_T].any():
            raise Failed(f"a response whose tokens have no {without} has a gradient")
        if not near(gradient_of(method, given, changed, part), gradient_TV):
            raise Failed(f"others learn something else where responses without {without} are left out")
    return "responses without advantage or weight add nothing"


def gradient_in_parts(method: Method, given: Probe, signal: Signal, batch: TokenBatch) -> Tensor:
    """Return the gradient of a batch that is computed in several micro-batches."""
    return torch.stack([gradient_of(method, given, signal, part) for part in unevenly(batch)]).sum(0)


def gradient_of(method: Method, given: Probe, signal: Signal, part: TokenBatch) -> Tensor:
    """Returns the gradient of a part's loss by the logits of all tokens."""
    logits_TV = given.logits_TV.clone().requires_grad_()
    loss = method.loss(given.during(method.needs, logits_TV, part.index_T), signal.at(part.index_T), part)
    if not loss.requires_grad:
        return torch.zeros_like(logits_TV)
    return torch.autograd.grad(loss, logits_TV, allow_unused=True, materialize_grads=True)[0]


def token_weights(subject: Subject) -> str:
    """Drops single tokens: the objective's loss must then have no gradient by their logits."""
    whole = subject.make()
    if whole.objective.by_response:
        return "the objective takes whole responses, and refuses to weigh tokens"
    method, given = Method(whole.base, (whole.base, whole.objective), {}), subject.probe()
    signal = method.signal(given.before(method.needs), given.batch, [given.batch])
    kept_T = given.batch.index_T % 3 != 0
    dropped = replace(signal, weights_T=signal.weights_T * kept_T, term_scale_T=0 * signal.term_scale_T)
    gradient_TV = gradient_of(method, given, stepped(method, given, dropped, given.batch), given.batch)
    require_finite("the gradient", gradient_TV)
    if gradient_TV[~kept_T].abs().max() > CLOSE * gradient_TV.abs().max():
        raise Failed(f"a token that is dropped still has a gradient through the surrogate of {whole.base}")
    return "a token of weight 0 has no gradient through the surrogate"


def by_response(subject: Subject) -> str:
    """Compares the weights within each response, where a control says that they are the same."""
    method = subject.make()
    declared = [name for name, control in method.controls.items() if control.by_response]
    if not declared:
        return "not declared, so that single tokens may be weighed"
    for edge, now, given in subject.moments():
        for name, factor_T in factors(now, given).items():
            first_T = factor_T[given.batch.starts_B][given.batch.sequence_T]
            if name in declared and not torch.equal(factor_T, first_T):
                raise Failed(f"{name} weighs the tokens of a response differently where {edge}")
    return f"{', '.join(declared)}: one weight for all tokens of a response"
