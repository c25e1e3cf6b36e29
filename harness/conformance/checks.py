"""Conformance checks: a method keeps the contract of harness/methods/verbs.py.

Every check runs the method on random batches over a small vocabulary (probe.py), as the trainer would, and compares
results that must be equal. No check knows a formula: a test against the paper's formula is a separate one
(tests/baselines/).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from harness.base.errors import UserError
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
from harness.conformance.declared import MARKS, by_response, elsewhere, needs, silence, token_weights
from harness.conformance.direction import direction
from harness.conformance.probe import compute_outcome
from harness.conformance.subject import FINITE, Failed, Finding, Subject, finding_of, first_line_of
from harness.methods.composition import DEFAULT_OBJECTIVE, Method, Table, method_classes
from harness.methods.verbs import Objective

LONGEST_SENTENCE = 300  # characters of a refusal


def composition(subject: Subject) -> str:
    """Join the method with every other objective and control that is sound alone."""
    method = subject.make()
    parts = [part.partition("(")[0].strip() for part in subject.spec.split("+")]
    # A control alone runs on the default objective, which another objective may replace.
    replaceable = DEFAULT_OBJECTIVE in method.named and DEFAULT_OBJECTIVE not in parts
    works = refused = 0
    unsound = []
    for name, kind in method_classes(subject.table).items():
        if name in method.named or (issubclass(kind, Objective) and not replaceable):
            continue
        spec = f"{subject.spec}+{name}"
        try:
            accepted = works_on_probe(subject, spec)
        except Exception as error:
            if not sound(subject, name):  # the finding concerns the other method
                unsound.append(name)
                continue
            raise Failed(f"{spec}: {first_line_of(error)}") from error
        if accepted:
            works += 1
        else:
            refused += 1
    summary = f"works with {works} others"
    if refused:
        summary += f", is refused with {refused} in a sentence"
    if unsound:
        summary += f", was not joined with {', '.join(unsound)}, which fail alone"
    return summary


def works_on_probe(subject: Subject, spec: str) -> bool:
    """Return whether a composition is accepted, and require a finite loss and gradient of it."""
    try:
        method = Method.of(spec, subject.table)
    except UserError as error:
        if len(str(error)) > LONGEST_SENTENCE or "\n" in str(error):
            raise Failed(f"it is refused in more than a sentence of {LONGEST_SENTENCE} characters") from error
        return False
    outcome = compute_outcome(method, subject.probe(size=max(subject.size, method.min_group)), updates=2)
    if not (math.isfinite(outcome.loss) and torch.isfinite(outcome.gradient_TV).all()):
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
    """A check: a function that returns a summary or raises Failed, and advice on how to fix a failure."""

    run: Callable[[Subject], str]
    advice: str


CHECKS = {
    "needs": Check(needs, "declare in `needs` what the verbs read, and nothing else (entropy_now: without gradient)"),
    "elsewhere": Check(
        elsewhere,
        "declare reads_answers or reads_sampler if a verb reads the batch's answers_B or behaviour_logp_T, and only "
        "then; read no sequences, prompt_lengths_B or copy_of_B",
    ),
    "gradient": Check(
        gradient,
        "leave out float(), item() and data, by which the present policy reaches the loss unseen by autograd; use "
        "detach() for values without gradient",
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
    "weights": Check(weights, "a weight is the share by which a token counts, 0 or more; change signs in reshape"),
    "denominators": Check(
        denominators, "give kept tokens the weight 1, or set reference_denominator for the other denominator"
    ),
    "token weights": Check(token_weights, "set by_response = True in the objective"),
    "by response": Check(by_response, "set by_response = False, or give all tokens of a response one weight"),
    "silence": Check(silence, "set silent_without_signal = False"),
    "memory": Check(memory, "keep everything that observe changes in `remembered`, as numbers"),
    "composition": Check(composition, "a verb must accept any advantages; raise UserError to refuse a composition"),
}


def run_checks(spec: str, table: Table) -> list[Finding]:
    """Run all checks that need one process and no model."""
    subject = Subject(spec, table)
    return [finding_of(name, check.advice, partial(check.run, subject)) for name, check in CHECKS.items()]
