"""Checks that a method keeps the contract of harness/method.py: for methods what a conformance test is for a protocol.

Every check runs the method on random batches over a small vocabulary (probe.py), as the trainer would, and compares
what must be equal. None of them knows a formula: whether a method computes what its paper says is for another test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from harness.base.errors import UserError
from harness.composition import STANDS_ON, Method, Table, method_classes
from harness.conformance.computed import (
    denominators,
    edges,
    gradient,
    memory,
    micro_batches,
    order,
    rewards,
    twice,
    weights,
)
from harness.conformance.declared import MARKS, by_response, needs, silence, token_weights
from harness.conformance.direction import direction
from harness.conformance.probe import outcome
from harness.conformance.subject import FINITE, Failed, Finding, Subject, finding, kind_of
from harness.method import Objective

LONGEST_SENTENCE = 300  # characters of a refusal


def composition(subject: Subject) -> str:
    """Join the method with every other objective and control that is sound alone."""
    own = subject.make()
    alone = STANDS_ON in own.named and not any(
        part.partition("(")[0].strip() == STANDS_ON for part in subject.spec.split("+")
    )
    works = refused = 0
    unsound = []
    for name, kind in method_classes(subject.table).items():
        if name in own.named or (issubclass(kind, Objective) and not alone):
            continue
        spec = f"{subject.spec}+{name}"
        try:
            tried = works_on_probe(subject, spec)
        except Exception as error:
            if not sound(subject, name):  # which is a finding about that method alone
                unsound.append(name)
                continue
            raise Failed(f"{spec}: {kind_of(error)}") from error
        works, refused = works + tried, refused + (not tried)
    seen = f"works with {works} others"
    if refused:
        seen += f", is refused with {refused} in a sentence"
    if unsound:
        seen += f", was not joined with {', '.join(unsound)}, which fail alone"
    return seen


def works_on_probe(subject: Subject, spec: str) -> bool:
    """Return whether a composition is taken, and require a finite loss and gradient of it."""
    try:
        method = Method.of(spec, subject.table)
    except UserError as error:
        if len(str(error)) > LONGEST_SENTENCE or "\n" in str(error):
            raise Failed(f"it is refused in more than a sentence of {LONGEST_SENTENCE} characters") from error
        return False
    found = outcome(method, subject.probe(size=max(subject.size, method.min_group)), updates=2)
    if not (math.isfinite(found.loss) and torch.isfinite(found.gradient_TV).all()):
        raise Failed("the loss or its gradient is not finite")
    return True


def sound(subject: Subject, name: str) -> bool:
    """Return whether a method alone works on the probe, or is refused there in a sentence."""
    try:
        works_on_probe(subject, name)
    except Exception:
        return False
    return True


@dataclass(frozen=True)
class Check:
    """A check by its function, which returns what it saw or raises Failed, and what to do where it fails."""

    run: Callable[[Subject], str]
    advice: str


CHECKS = {
    "needs": Check(needs, "declare in `needs` what the verbs read, and nothing else (entropy_now: without gradient)"),
    "gradient": Check(
        gradient,
        "leave out float(), item() and data, by which the present policy reaches the loss unseen by autograd; what "
        "shall have no gradient goes through detach()",
    ),
    "direction": Check(
        direction,
        "look for a sign or a factor that detach() hides, as in 2 * j.detach() - j; an estimator that is meant so "
        "declares follows_advantage = False",
    ),
    "micro-batches": Check(micro_batches, MARKS),
    "order": Check(
        order,
        "let no token depend on its place in the batch: break ties with batch.global_order, draw with batch.uniform_T",
    ),
    "rewards": Check(
        rewards, "declare ignores_rewards = True if `advantages` does not read batch.rewards_B, and only then"
    ),
    "twice": Check(
        twice, "draw with batch.uniform_T or uniform_B, change no tensor in place, and update a memory in observe alone"
    ),
    "edges": Check(edges, FINITE),
    "weights": Check(weights, "a weight says how much a token counts: 0 and more; a sign belongs into reshape"),
    "denominators": Check(
        denominators, "give kept tokens the weight 1; whoever wants the other denominator sets reference_denominator"
    ),
    "token weights": Check(token_weights, "set by_response = True in the objective"),
    "by response": Check(by_response, "set by_response = False, or give all tokens of a response one weight"),
    "silence": Check(silence, "set silent_without_signal = False"),
    "memory": Check(memory, "keep all that observe changes in `remembered`, as numbers"),
    "composition": Check(composition, "a verb must take any advantages; what cannot be joined is refused by UserError"),
}


def alone(spec: str, table: Table) -> list[Finding]:
    """Runs all checks that need one process and no model."""
    subject = Subject(spec, table)
    return [finding(name, each.advice, partial(each.run, subject)) for name, each in CHECKS.items()]
