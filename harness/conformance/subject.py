"""The method that is checked, the batches that it is given, and how what comes of them is compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from harness.base.errors import UserError
from harness.base.task import Answer, Judged, Verdict
from harness.batch import TokenBatch
from harness.composition import Method, Table, overrides
from harness.conformance.probe import Outcome, Probe, far, mixed, outcome, probe, stepped
from harness.tokens import metrics

CLOSE = 1e-9  # relative: what differs by more in float64 is no rounding
FINITE = "clamp before exp and log, add a small number before dividing, raise min_group where one is too few"
ENTROPIES = (0.01, 0.01, 2.5, 0.3, 0.05)  # that a control with a memory hears of, one after the other


class Failed(Exception):
    """A check found a mistake, which the message names; `advice` replaces that of the check where it would mislead."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


def kind_of(error: Exception) -> str:
    said = str(error).strip().partition("\n")[0]
    return said if isinstance(error, UserError | Failed) else f"{type(error).__name__}: {said}"


@dataclass(frozen=True)
class Finding:
    """Says how a check ended."""

    check: str
    passed: bool
    said: str  # what was seen, or what is wrong
    advice: str = ""  # what to do about it
    numbers: dict[str, float] = field(default_factory=dict)  # what was measured


def finding(name: str, advice: str, run: Callable[[], str | tuple[str, dict[str, float]]]) -> Finding:
    """Run a check, and return any exception of the method as a finding."""
    try:
        seen = run()
    except Exception as error:
        better = error.advice if isinstance(error, Failed) else ""
        return Finding(name, False, kind_of(error), better or advice)
    said, numbers = seen if isinstance(seen, tuple) else (seen, {})
    return Finding(name, True, said, numbers=numbers)


@dataclass
class Subject:
    """The method that is checked; each check makes it anew, so that no memory is left of another one."""

    spec: str
    table: Table

    def make(self) -> Method:
        return Method.of(self.spec, self.table)

    @cached_property
    def size(self) -> int:
        """Returns the responses to a prompt."""
        return max(4, self.make().min_group)

    def probe(self, seed: int = 0, **given: Any) -> Probe:
        return probe(seed, **{"size": self.size, **given})

    def step(self, number: int) -> Probe:
        """Return the batch of a step, with other responses and another share of right ones than the steps beside it."""
        return self.probe(20 + number, rewards=lambda group, size: mixed(group + number, size))

    @cached_property
    def edges(self) -> dict[str, Probe]:
        """Returns batches of the kinds that come rarely, and then stop a run."""
        least = self.make().min_group
        even = self.probe(6)
        return {
            "no response is right": self.probe(1, rewards=lambda group, size: [0.0] * size),
            "every response is right": self.probe(2, rewards=lambda group, size: [1.0] * size),
            "responses of one token": self.probe(3, longest=1),
            "one group of the least size": self.probe(
                4, groups=1, size=least, rewards=lambda group, size: [1.0] + [0.0] * (size - 1)
            ),
            "the policy has not moved": self.probe(5, drift=0.0),
            "all tokens are equally likely": replace(
                even, old_logits_TV=0 * even.old_logits_TV, logits_TV=0 * even.logits_TV
            ),
            "the policy is sure of every token": self.probe(7, sharp=400.0),
            "log ratios of +-30": far(self.probe(8)),
            "the first step": self.probe(9, progress=0.0),
            "the last step": self.probe(9, progress=0.999),
        }

    def moments(self) -> Iterator[tuple[str, Method, Probe]]:
        """Yields the edges in both types, each with a method that has heard of some steps."""
        for name, given in self.edges.items():
            for dtype in (torch.float64, torch.float32):
                method = self.make()
                hears = any(overrides(control, "observe") for control in method.controls.values())
                for entropy in ENTROPIES[:2] if hears else ():
                    method.observe(record(method, self.probe(), entropy))
                yield f"{name} (in {str(dtype).removeprefix('torch.')})", method, given.to(dtype)


def require_finite(name: str, *values: Tensor | float) -> None:
    """Refuse NaN and infinity, with which no comparison means anything."""
    for value in values:
        if not torch.isfinite(torch.as_tensor(value)).all():
            raise Failed(f"{name} is not finite on an ordinary batch", FINITE)


def near(one: Tensor, other: Tensor) -> bool:
    scale = max(one.abs().max().item(), other.abs().max().item()) if one.numel() else 0.0
    return bool(torch.isclose(one, other, rtol=CLOSE, atol=CLOSE * scale + 1e-15).all())


def compare(expected: Outcome, found: Outcome, to: Tensor | None, where: str) -> None:
    """Refuses another loss or gradient; `to` names the tokens of `expected` that `found` has, in their order."""
    require_finite("the loss", expected.loss, found.loss)
    require_finite("the gradient", expected.gradient_TV, found.gradient_TV)
    if not math.isclose(expected.loss, found.loss, rel_tol=CLOSE, abs_tol=1e-12):
        raise Failed(f"the loss is {found.loss:.6g} {where}, and {expected.loss:.6g} without that")
    gradient_TV = expected.gradient_TV if to is None else expected.gradient_TV[to]
    if not near(gradient_TV, found.gradient_TV):
        size = (gradient_TV - found.gradient_TV).norm() / max(gradient_TV.norm().item(), 1e-300)
        raise Failed(f"the gradient is another one {where} (by {size:.1%} of its size)")


def same(one: Outcome, other: Outcome) -> bool:
    """Return whether two outcomes have the same bits."""
    require_finite("the loss", one.loss, other.loss)
    require_finite("the gradient", one.gradient_TV, other.gradient_TV)
    return one.loss == other.loss and torch.equal(one.gradient_TV, other.gradient_TV)


def singly(batch: TokenBatch) -> list[TokenBatch]:
    """Splits into the responses, the last one first."""
    return [batch.take([row]) for row in reversed(range(len(batch)))]


def unevenly(batch: TokenBatch) -> list[TokenBatch]:
    """Splits into three parts that mix the groups, and one without tokens, as where other ranks have more parts."""
    return [batch.take(list(range(start, len(batch), 3))) for start in range(3)] + [batch.idle()]


def record(method: Method, given: Probe, entropy: float | None = None) -> dict[str, float]:
    """Returns what the trainer would log of a step; with another mean entropy, if one is given."""
    found, batch, needs = outcome(method, given, updates=2), given.batch, method.needs
    log_ratios, touched, logged = [], [], []
    for minibatch in batch.split(2):
        fixed = stepped(method, given, found.signal, minibatch).at(minibatch.index_T)
        with torch.no_grad():
            now = given.during(needs, given.logits_TV, minibatch.index_T)
            touched.append(method.touched(now, fixed, minibatch))
            logged.append(method.update_metrics(now, fixed, minibatch))
        log_ratios.append(now.logp - fixed.old.logp)
    verdicts = [Verdict.RIGHT if right else Verdict.WRONG for right in batch.right_B.tolist()]
    prompts = batch.prompt_lengths_B.tolist()
    # Each response is its own answer.
    texts = [str(tokens[prompt:].tolist()) for tokens, prompt in zip(batch.sequences, prompts, strict=True)]
    whole = [Answer(text, len(text)) for text in texts]
    judged = [Judged(verdict, answer, goes_on=False) for verdict, answer in zip(verdicts, whole, strict=True)]
    size = batch.grouped(batch.groups_B).shape[1]
    by_group = [judged[start : start + size] for start in range(0, len(judged), size)]
    heard = {
        **metrics.of_rollouts(batch, [str(verdict) for verdict in verdicts]),
        **metrics.of_signal(found.signal, batch),
        **metrics.of_answers(by_group, batch.lengths_B.tolist(), found.signal, batch),
        **metrics.of_ratios(log_ratios, touched),
        **metrics.of_updates(logged),
        **method.metrics(found.signal, batch),
        "loss/policy": found.loss,
        "gradient/norm": found.gradient_TV.norm().item(),
        "tokens/generated": batch.global_tokens(),
    }
    return heard if entropy is None else heard | {"entropy/mean": entropy}
