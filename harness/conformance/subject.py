"""The method that is checked, the batches for it, and the comparison of its outcomes."""

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
from harness.conformance.probe import (
    FARTHEST,
    Outcome,
    Probe,
    compute_outcome,
    emptied,
    far,
    mixed,
    random_probe,
    with_step_marks,
)
from harness.methods.batch import TokenBatch
from harness.methods.composition import Method, Signal, Table, overrides
from harness.tokens import metrics

CLOSE = 1e-9  # relative: a larger difference in float64 does not come from rounding
FINITE = "clamp before exp and log, add a small number before dividing, raise min_group where one is too few"
# Mean entropies that a control with a memory observes in turn: constant, far above any target, and falling again.
ENTROPIES = (0.01, 0.01, 2.5, 0.3, 0.05)

Result = str | tuple[str, dict[str, float]]  # of a check that passed: what it saw, and perhaps measurements


class Failed(Exception):
    """The mistake that a check has detected; `advice` replaces that of the check where it would mislead."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


def first_line_of(error: Exception) -> str:
    """Return the first line of an error's message, with its type unless the error was written for users."""
    line = str(error).strip().partition("\n")[0]
    return line if isinstance(error, UserError | Failed) else f"{type(error).__name__}: {line}"


@dataclass(frozen=True)
class Finding:
    """The result of a check."""

    check: str
    passed: bool
    message: str  # what was seen, or what is wrong
    advice: str = ""  # how to fix it
    numbers: dict[str, float] = field(default_factory=dict)  # measurements


def finding_of(name: str, advice: str, run_check: Callable[[], Result]) -> Finding:
    """Run a check, and return any exception of the method as a finding."""
    try:
        result = run_check()
    except Exception as error:
        better_advice = error.advice if isinstance(error, Failed) else ""
        return Finding(name, False, first_line_of(error), better_advice or advice)
    message, numbers = (result, {}) if isinstance(result, str) else result
    return Finding(name, True, message, numbers=numbers)


@dataclass
class Subject:
    """The method that is checked; each check makes a new instance, so that none inherits another one's memory."""

    spec: str
    table: Table

    def make(self) -> Method:
        return Method.of(self.spec, self.table)

    @cached_property
    def size(self) -> int:
        """The number of responses to a prompt."""
        return max(4, self.make().min_group)

    def probe(self, seed: int = 0, **options: Any) -> Probe:
        """Return a random probe with groups that are large enough for the method."""
        return random_probe(seed, **{"size": self.size, **options})  # `options` may have a size too, which then counts

    def step(self, number: int) -> Probe:
        """Return the batch of a step; responses and the share of right ones differ from step to step."""
        return self.probe(20 + number, rewards=lambda group, size: mixed(group + number, size))

    @cached_property
    def edges(self) -> dict[str, Probe]:
        """Batches of the rare kinds that can stop a run late."""
        smallest = self.make().min_group
        even, empty = self.probe(6), self.probe(10)
        equally_likely = replace(even, old_logits_TV=0 * even.old_logits_TV, logits_TV=0 * even.logits_TV)
        return {
            "no response is right": self.probe(1, rewards=lambda group, size: [0.0] * size),
            "every response is right": self.probe(2, rewards=lambda group, size: [1.0] * size),
            "responses of one token": self.probe(3, longest=1),
            "one group of the least size": self.probe(
                4, groups=1, size=smallest, rewards=lambda group, size: [1.0] + [0.0] * (size - 1)
            ),
            "the policy has not moved": self.probe(5, drift=0.0),
            "all tokens are equally likely": equally_likely,
            "the policy is sure of every token": self.probe(7, sharp=400.0),
            f"log ratios of +-{FARTHEST:.0f}": far(self.probe(8)),
            # Right and wrong ones, the first and the last among them.
            "some responses are empty": emptied(empty, [*range(0, len(empty.batch), 3), len(empty.batch) - 1]),
            "all responses are empty": emptied(empty, range(len(empty.batch))),
            "the first step": self.probe(9, progress=0.0),
            "the last step": self.probe(9, progress=0.999),
        }

    def moments(self) -> Iterator[tuple[str, Method, Probe]]:
        """Yield the edges in float64 and float32, each with a method whose memory has observed some steps."""
        for name, probe in self.edges.items():
            for dtype in (torch.float64, torch.float32):
                method = self.make()
                if any(overrides(control, "observe") for control in method.controls.values()):
                    for entropy in ENTROPIES[:2]:
                        method.observe(step_record(method, self.probe(), entropy))
                yield f"{name} (in {str(dtype).removeprefix('torch.')})", method, probe.to(dtype)


def require_finite(name: str, *values: Tensor | float) -> None:
    """Refuse NaN and infinity, with which every comparison is meaningless."""
    for value in values:
        if not torch.isfinite(torch.as_tensor(value)).all():
            raise Failed(f"{name} is not finite on an ordinary batch", FINITE)


def near(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal except for rounding."""
    scale = 0.0
    if one.numel():  # max() refuses a tensor without elements
        scale = max(one.abs().max().item(), other.abs().max().item())
    # Relative to the largest element too: a small one may be left over from large ones. 1e-15 is for tensors near 0.
    return bool(torch.isclose(one, other, rtol=CLOSE, atol=CLOSE * scale + 1e-15).all())


def require_equal(expected: Outcome, actual: Outcome, tokens: Tensor | None, where: str) -> None:
    """Refuse a different loss or gradient; `tokens` are the places in `expected` of the tokens of `actual`."""
    require_finite("the loss", expected.loss, actual.loss)
    require_finite("the gradient", expected.gradient_TV, actual.gradient_TV)
    if not math.isclose(expected.loss, actual.loss, rel_tol=CLOSE, abs_tol=1e-12):
        raise Failed(f"the loss is {actual.loss:.6g} {where}, and {expected.loss:.6g} without that")
    gradient_TV = expected.gradient_TV if tokens is None else expected.gradient_TV[tokens]
    if not near(gradient_TV, actual.gradient_TV):
        size = (gradient_TV - actual.gradient_TV).norm() / max(gradient_TV.norm().item(), 1e-300)
        raise Failed(f"the gradient differs {where} (by {size:.1%} of its size)")


def identical(one: Outcome, other: Outcome) -> bool:
    """Return whether two outcomes have the same bits."""
    require_finite("the loss", one.loss, other.loss)
    require_finite("the gradient", one.gradient_TV, other.gradient_TV)
    return one.loss == other.loss and torch.equal(one.gradient_TV, other.gradient_TV)


def singly(batch: TokenBatch) -> list[TokenBatch]:
    """Split a batch into single responses, the last one first."""
    return [batch.take([row]) for row in reversed(range(len(batch)))]


def unevenly(batch: TokenBatch) -> list[TokenBatch]:
    """Split a batch into three parts that mix the groups, and one without tokens.

    A rank gets such an empty part when other ranks have more parts.
    """
    parts = [batch.take(list(range(start, len(batch), 3))) for start in range(3)]
    return [*parts, batch.idle()]


def step_record(method: Method, probe: Probe, entropy: float | None = None) -> dict[str, float]:
    """Return the metrics that the trainer would log of a step; `entropy` replaces the mean entropy."""
    outcome = compute_outcome(method, probe, updates=2)
    batch, signal = probe.batch, outcome.signal
    verdicts = []
    for right in batch.right_B.tolist():
        verdicts.append(Verdict.RIGHT if right else Verdict.WRONG)
    record = {
        **metrics.of_rollouts(batch, [str(verdict) for verdict in verdicts]),
        **metrics.of_signal(signal, batch),
        **metrics.of_answers(judged_groups(batch, verdicts), batch.lengths_B.tolist(), signal, batch),
        **update_record(method, probe, signal),
        **method.metrics(signal, batch),
        "loss/policy": outcome.loss,
        "gradient/norm": outcome.gradient_TV.norm().item(),
        "tokens/generated": batch.global_tokens(),
    }
    if entropy is not None:
        record["entropy/mean"] = entropy
    return record


def judged_groups(batch: TokenBatch, verdicts: list[Verdict]) -> list[list[Judged]]:
    """Return the judged responses of each group; each response is its own answer."""
    judged = []
    prompts = batch.prompt_lengths_B.tolist()
    for sequence, prompt, verdict in zip(batch.sequences, prompts, verdicts, strict=True):
        text = str(sequence[prompt:].tolist())
        judged.append(Judged(verdict, Answer(text, len(text)), goes_on=False))
    size = batch.grouped(batch.groups_B).shape[1]
    return [judged[start : start + size] for start in range(0, len(judged), size)]


def update_record(method: Method, probe: Probe, signal: Signal) -> dict[str, float]:
    """Return the metrics of the two updates on a probe."""
    log_ratios, touched, logged = [], [], []
    for minibatch in probe.batch.split(2):
        fixed = with_step_marks(method, probe, signal, minibatch).at(minibatch.index_T)
        with torch.no_grad():
            current = probe.during(method.needs, probe.logits_TV, minibatch.index_T)
            touched.append(method.touched(current, fixed, minibatch))
            logged.append(method.update_metrics(current, fixed, minibatch))
        log_ratios.append(current.logp - fixed.old.logp)
    return {**metrics.of_ratios(log_ratios, touched), **metrics.of_updates(logged)}
