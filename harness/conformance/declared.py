"""Checks of a method's declarations: the statistics it needs, and what its controls promise not to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from harness.base.errors import UserError
from harness.conformance.computed import factors, own_metrics
from harness.conformance.probe import (
    CLOSE,
    ENTROPIES,
    Failed,
    Probe,
    Subject,
    compute_outcome,
    gradient_by,
    near,
    require_equal,
    require_finite,
    signal_on,
    step_record,
    unevenly,
    with_step_marks,
)
from harness.methods.batch import ABSENT, DeclaredStats, TokenBatch, TokenStats
from harness.methods.composition import BEFORE, DURING, Method, Signal
from harness.methods.verbs import Component

MARKS = (
    "take no mean, maximum or count over the tokens of a view: what is of the batch belongs into marks (before the "
    "update) or step_marks (each mini-batch), and a part may have no tokens"
)


@dataclass(frozen=True)
class RecordingStats(DeclaredStats):
    """Statistics that record the needs which give the columns that are read."""

    needs_of: Mapping[str, tuple[str, ...]] = field(kw_only=True)  # by column
    used: set[str] = field(kw_only=True)

    def __getattribute__(self, name: str) -> Any:
        if name in BEFORE:
            own = super().__getattribute__  # not self.used, which would call this method again
            own("used").update(own("needs_of").get(name, ()))
        return super().__getattribute__(name)


class RecordingMethod(Method):
    """A method that records the needs whose statistics each of its components reads."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.used: dict[str, set[str]] = {name: set() for name in self.named}

    def recording(self, component: Component, stats: TokenStats, needs_of: Mapping[str, tuple[str, ...]]) -> TokenStats:
        name = next(name for name, candidate in self.named.items() if candidate is component)
        return RecordingStats(**vars(stats), needs_of=needs_of, used=self.used[name])

    def before(self, component: Component, old: TokenStats) -> TokenStats:
        return self.recording(component, super().before(component, old), BEFORE)

    def during(self, component: Component, current: TokenStats) -> TokenStats:
        return self.recording(component, super().during(component, current), DURING)


def needs(subject: Subject) -> str:
    """Refuse statistics that are used but not declared, or declared but not used."""
    method = RecordingMethod.of(subject.spec, subject.table)
    assert isinstance(method, RecordingMethod)
    learns = False
    for entropy in ENTROPIES:
        # A method may read a column without any right response alone, or only once its memory has changed.
        for probe in (subject.probe(), subject.edges["no response is right"]):
            method.observe(step_record(method, probe, entropy))  # raises where a column is not declared
            learns = learns or learns_from_entropy(method, probe)
    for name, component in method.named.items():
        if unused := sorted(method.needs_of(component) - method.used[name]):
            raise Failed(f"{name} declares the need {unused[0]!r} and reads nothing that it gives")
    if "entropy_grad" in method.needs and not learns:
        raise Failed("'entropy_grad' is declared, and no gradient goes through the present entropy")
    declared = ", ".join(sorted(method.needs)) or "none"
    return f"declared: {declared}; each is used, and nothing else is"


def elsewhere(subject: Subject) -> str:
    """Compare the outcome with that of a batch from another trainer, which has lengths in place of tokens.

    It has the columns that the method declares to read, and of those no others.
    """
    for seed in range(2):
        method, probe = subject.make(), subject.probe(seed)
        # Every second response is taken for a copy of the one before it.
        batch = replace(probe.batch, copy_of_B=probe.batch.copy_of_B // 2)
        probe = replace(probe, batch=batch)
        without_tokens = TokenBatch.of_lengths(
            batch.lengths_B,
            batch.groups_B,
            batch.rewards_B,
            batch.right_B,
            batch.finished_B,
            batch.budget,
            base_right_B=batch.base_right_B if method.reads_base else None,
            answers_B=batch.answers_B if method.reads_answers else None,
            behaviour_logp_T=batch.behaviour_logp_T if method.reads_sampler else None,
            seed=batch.seed,
            progress=batch.progress,
        )
        there = replace(probe, batch=without_tokens)
        expected, actual = compute_outcome(method, probe), compute_outcome(subject.make(), there)
        require_equal(expected, actual, None, "in another trainer, which has no tokens and knows of no equal responses")
        here_metrics, there_metrics = own_metrics(method, probe, expected), own_metrics(subject.make(), there, actual)
        if here_metrics != there_metrics:
            raise Failed("a metric differs in another trainer, which has no tokens and knows of no equal responses")
    columns = {"reads_answers": "answers_B", "reads_base": "base_right_B", "reads_sampler": "behaviour_logp_T"}
    for name, column in columns.items():
        if getattr(method, name) and not reads(subject, column):
            raise Failed(f"{name} is declared, and no verb reads it")
    return "the same from lengths in place of tokens"


def reads(subject: Subject, column: str) -> bool:
    """Return whether a method fails without a column of the batch."""
    absent: dict[str, Any] = {column: ABSENT}
    probe = subject.probe()
    lacking = replace(probe, batch=replace(probe.batch, **absent))
    try:
        outcome = compute_outcome(subject.make(), lacking)
        own_metrics(subject.make(), lacking, outcome)
    except UserError:
        return True
    return False


def learns_from_entropy(method: Method, probe: Probe) -> bool:
    """Return whether the loss has a gradient by the present entropy."""
    if "entropy_grad" not in method.needs:
        return False
    fixed = signal_on(method, probe)
    current = probe.during(method.needs, probe.logits_TV, probe.batch.index_T)
    assert current.entropy is not None
    entropy_T = current.entropy.requires_grad_()  # in place: `current` has this tensor
    return bool(gradient_by(entropy_T, method.loss(current, fixed, probe.batch)).any())


def silence(subject: Subject) -> str:
    """Compare the gradient of a batch with that of its responses that have a signal, which the trainer computes."""
    method = subject.make()
    if not method.silent_without_signal:
        return "not declared, so that all responses are computed"
    probe = subject.probe()
    batch, index_T = probe.batch, probe.batch.index_T
    signal = signal_on(method, probe)
    odd_T = (batch.sequence_T % 2).double()  # every second response keeps its signal
    without = {
        "advantage": replace(signal, advantages_T=signal.advantages_T * odd_T),
        "weight": replace(signal, weights_T=signal.weights_T * odd_T),
    }
    for name, changed in without.items():
        gradient_TV = gradient_of(method, probe, changed, batch)
        require_finite("the gradient", gradient_TV)
        computed = method.contributing(batch, changed)
        computed_T = torch.zeros(len(index_T), dtype=torch.bool)
        computed_T[computed.index_T] = True
        in_parts = [gradient_of(method, probe, changed, part) for part in unevenly(batch)]
        if not near(torch.stack(in_parts).sum(0), gradient_TV):
            raise Failed("the gradient depends on the micro-batch, and so on which responses are left out", MARKS)
        if gradient_TV[~computed_T].any():
            raise Failed(f"a response whose tokens have no {name} has a gradient")
        if not near(gradient_of(method, probe, changed, computed), gradient_TV):
            raise Failed(f"leaving out responses without {name} changes the gradient of the others")
    return "responses without advantage or weight add nothing"


def gradient_of(method: Method, probe: Probe, signal: Signal, part: TokenBatch) -> Tensor:
    """Return the gradient of a part's loss by the logits of all tokens."""
    logits_TV = probe.logits_TV.clone().requires_grad_()
    current = probe.during(method.needs, logits_TV, part.index_T)
    return gradient_by(logits_TV, method.loss(current, signal.at(part.index_T), part))


def token_weights(subject: Subject) -> str:
    """Drop single tokens, and refuse a surrogate that still has a gradient by their logits."""
    complete = subject.make()
    if complete.objective.by_response:
        return "the objective takes whole responses, and refuses to weigh tokens"
    method, probe = Method(complete.base, (complete.base, complete.objective), {}), subject.probe()
    signal = method.signal(probe.before(method.needs), probe.batch, [probe.batch])
    kept_T = probe.batch.index_T % 3 != 0
    # Without terms, which a control adds for dropped tokens too.
    dropped = replace(signal, weights_T=signal.weights_T * kept_T, term_scale_T=0 * signal.term_scale_T)
    fixed = with_step_marks(method, probe, dropped, probe.batch)
    gradient_TV = gradient_of(method, probe, fixed, probe.batch)
    require_finite("the gradient", gradient_TV)
    if gradient_TV[~kept_T].abs().max() > CLOSE * gradient_TV.abs().max():
        raise Failed(f"a token that is dropped still has a gradient through the surrogate of {complete.base}")
    return "a token of weight 0 has no gradient through the surrogate"


def by_response(subject: Subject) -> str:
    """Compare the weights within each response, where a control declares that they are equal."""
    method = subject.make()
    declared = [name for name, control in method.controls.items() if control.by_response]
    if not declared:
        return "not declared, so that single tokens may be weighed"
    for edge, prepared, probe in subject.moments():
        for name, factor_T in factors(prepared, probe).items():
            first_T = factor_T[probe.batch.starts_B[probe.batch.sequence_T]]
            if name in declared and not torch.equal(factor_T, first_T):
                raise Failed(f"{name} weighs the tokens of a response differently where {edge}")
    return f"{', '.join(declared)}: one weight for all tokens of a response"
