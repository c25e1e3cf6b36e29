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
from harness.composition import STANDS_ON, Method, Table, components
from harness.method import Objective
from harness.study.computed import denominators, edges, gradient, memory, micro_batches, order, rewards, twice, weights
from harness.study.declared import by_response, needs, silence, token_weights
from harness.study.probe import outcome
from harness.study.subject import Failed, Finding, Subject, kind_of

LONGEST_SENTENCE = 300  # characters of a refusal


def composition(subject: Subject) -> str:
    """Joins the method with every other objective and control."""
    own = subject.make()
    alone = STANDS_ON in own.named and not any(
        part.partition("(")[0].strip() == STANDS_ON for part in subject.spec.split("+")
    )
    works = refused = 0
    for name, kind in components(subject.table).items():
        if name in own.named or (issubclass(kind, Objective) and not alone):
            continue
        spec = f"{subject.spec}+{name}"
        try:
            method = Method.of(spec, subject.table)
        except UserError as error:
            if len(str(error)) > LONGEST_SENTENCE or "\n" in str(error):
                raise Failed(f"{spec} is refused in more than a sentence of {LONGEST_SENTENCE} characters") from error
            refused += 1
            continue
        try:
            found = outcome(method, subject.probe(size=max(subject.size, method.min_group)), updates=2)
        except Exception as error:
            raise Failed(f"{spec}: {kind_of(error)}") from error
        if not (math.isfinite(found.loss) and torch.isfinite(found.gradient_TV).all()):
            raise Failed(f"{spec}: the loss or its gradient is not finite")
        works += 1
    return f"works with {works} others" + (f", is refused with {refused} in a sentence" if refused else "")


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
    "micro-batches": Check(
        micro_batches,
        "take no mean, maximum or count over the tokens of a view: what is of the batch belongs into marks (before the "
        "update) or step_marks (each mini-batch), and a part may have no tokens",
    ),
    "order": Check(
        order,
        "let no token depend on its place in the batch: break ties with batch.global_order, draw with batch.uniform_T",
    ),
    "rewards": Check(rewards, "set takes_rewards to whether `advantages` reads batch.rewards_B"),
    "twice": Check(
        twice, "draw with batch.uniform_T or uniform_B, change no tensor in place, and update a memory in observe alone"
    ),
    "edges": Check(edges, "clamp before exp, add a small number before dividing, raise min_group where one is too few"),
    "weights": Check(weights, "a weight says how much a token counts: 0 and more; a sign belongs into reshape"),
    "denominators": Check(
        denominators, "give kept tokens the weight 1; whoever wants the other denominator sets reference_denominator"
    ),
    "token weights": Check(token_weights, "set weighs_tokens = False in the objective"),
    "by response": Check(by_response, "set by_response = False, or give all tokens of a response one weight"),
    "silence": Check(silence, "set silent_without_signal = False"),
    "memory": Check(memory, "put all that observe changes into state, as numbers, and take it back in load_state"),
    "composition": Check(composition, "a verb must take any advantages; what cannot be joined is refused by UserError"),
}


def finding(name: str, advice: str, run: Callable[[], str | tuple[str, dict[str, float]]]) -> Finding:
    """Runs a check; whatever a method does in it, it is a finding."""
    try:
        seen = run()
    except Exception as error:
        return Finding(name, False, kind_of(error), advice)
    said, numbers = seen if isinstance(seen, tuple) else (seen, {})
    return Finding(name, True, said, numbers=numbers)


def alone(spec: str, table: Table) -> list[Finding]:
    """Runs all checks that need one process and no model."""
    subject = Subject(spec, table)
    return [finding(name, each.advice, partial(each.run, subject)) for name, each in CHECKS.items()]
