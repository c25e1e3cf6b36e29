"""How a method is made: one objective and any number of entropy controls, joined by `+`.

The trainer calls a `Method` and knows no method by name. Objectives and controls are frozen dataclasses of their
hyper-parameters (the only place of their defaults) with pure functions on flat tokens (see harness/batch.py). They
use tensor methods alone, so that planning and listing need no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from harness.base import registry
from harness.base.errors import UserError
from harness.base.schema import check, choice, number

if TYPE_CHECKING:
    from torch import Tensor

    from harness.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Component:
    source: ClassVar[str] = ""  # the paper
    # What the trainer must compute beyond logp and the entropy before the update:
    # values (a critic), ref_logp (the model before training), sum_p2, entropy_grad (H in the loss, with gradient)
    needs: ClassVar[frozenset[str]] = frozenset()
    min_group: ClassVar[int] = 1  # responses to a prompt without which it has nothing to learn from

    def __post_init__(self) -> None:
        check(type(self), vars(self), f"{type(self).__name__}.")


@dataclass(frozen=True)
class Objective(Component):
    """The base of a method: advantages and a surrogate. Its options are shared by every objective."""

    clip_low: float = number(0.2, least=0)
    clip_high: float = number(0.2, least=0)
    # Bounds the loss of a negative token, as a multiple of |A|; null: nothing does.
    dual_clip: float | None = number(3.0, least=1)
    normalise: str = choice("token", ("token", "sequence", "constant"))  # what a response's loss is divided by
    kl_coef: float = number(0.0, least=0)  # weight of the KL divergence to the model before training
    kl_estimator: str = choice("k2", ("k2", "k3"))  # k2 has the gradient of the reverse KL, k3 its value without bias

    def advantages(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        raise NotImplementedError

    def whiten(self, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        """The advantages as the surrogate takes them; a critic learns from them as they were before."""
        return advantages_T

    def surrogate(self, current: TokenStats, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        """What is maximised, token by token: by default PPO's clipped ratio times the advantage."""
        ratio_T = (current.logp - old.logp).exp()
        bound_T = ratio_T.detach().clamp(1 - self.clip_low, 1 + self.clip_high)
        clipped_T = (ratio_T > bound_T) & (advantages_T > 0) | (ratio_T < bound_T) & (advantages_T < 0)
        factor_T = self.clipped(ratio_T, bound_T).where(clipped_T, ratio_T)
        if self.dual_clip is not None:
            factor_T = factor_T.clamp(max=self.dual_clip).where(advantages_T < 0, factor_T)
        return factor_T * advantages_T

    def clipped(self, ratio_T: Tensor, bound_T: Tensor) -> Tensor:
        """What stands for the ratio of a token beyond the clip: by default the bound, a constant without gradient."""
        return bound_T

    def value_loss(self, values_T: Tensor, old_values_T: Tensor, returns_T: Tensor) -> Tensor:
        """The critic's loss, token by token; only of objectives that need values."""
        raise NotImplementedError

    def scale(self, batch: TokenBatch, counted_T: Tensor) -> Tensor:
        """The factor of each token in the loss of one optimiser step; denominators count the tokens of `counted_T`."""
        if self.normalise == "token":
            return counted_T / max(batch.count(counted_T), 1.0)
        if self.normalise == "sequence":
            return counted_T / (batch.responses * batch.per_sequence(counted_T).clamp(min=1))[batch.sequence_T]
        return counted_T / (batch.responses * batch.budget)

    def divergence(self, current: TokenStats) -> Tensor:
        """The KL divergence to the model before training, estimated at each token."""
        assert current.ref_logp is not None
        difference_T = current.ref_logp - current.logp
        if self.kl_estimator == "k2":
            return 0.5 * difference_T**2
        return difference_T.exp() - difference_T - 1


@dataclass(frozen=True)
class Control(Component):
    """An entropy control. A verb that it does not override leaves things as they are."""

    # Forget dropped tokens in the denominator of the loss too, as in the authors' code of some methods.
    reference_denominator: bool = dataclasses.field(default=False, kw_only=True)

    def reshape(self, advantages_T: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        """Other advantages, before the update."""
        return advantages_T

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor | float:
        """Whose gradient counts, and how much (0 drops a token); before the update, over the whole rollout batch."""
        return 1.0

    def gate(self, current: TokenStats, old: TokenStats, advantages_T: Tensor) -> Tensor | float:
        """A factor of each token's surrogate that may depend on the present policy."""
        return 1.0

    def term(self, current: TokenStats, old: TokenStats, advantages_T: Tensor) -> Tensor | float:
        """A loss of its own, added to each token's."""
        return 0.0

    def observe(self, metrics: Mapping[str, float]) -> None:
        """The metrics of a step that is over; a control with a memory updates it here."""

    def state(self) -> dict[str, float]:
        """The memory, for the checkpoint and the log."""
        return {}

    def load_state(self, state: Mapping[str, float]) -> None:
        assert not state, f"{type(self).__name__} has no memory"


@dataclass(frozen=True)
class Signal:
    """What is fixed before the first update on a rollout batch, token by token."""

    old: TokenStats
    advantages_T: Tensor
    weights_T: Tensor
    scale_T: Tensor  # of the surrogate
    term_scale_T: Tensor  # of what is added to it: dropped tokens count here
    returns_T: Tensor | None  # for a critic

    def at(self, index_T: Tensor) -> Signal:
        taken: dict[str, Any] = {k: None if x is None else x[index_T] for k, x in vars(self).items() if k != "old"}
        return Signal(self.old.at(index_T), **taken)


class Method:
    """An objective with its controls."""

    def __init__(self, name: str, objective: Objective, controls: list[Control]) -> None:
        self.name, self.objective, self.controls = name, objective, controls

    @classmethod
    def of(
        cls, spec: str, table: Mapping[str, type[Component]], shared: Mapping[str, Mapping[str, Any]] | None = None
    ) -> Method:
        """`ppo+clip_b(share=0.02)` -> the method; a control named alone stands on grpo."""
        components = [registry.build("method", table, part, shared) for part in registry.split(spec, "+")]
        objectives = [c for c in components if isinstance(c, Objective)]
        controls = [c for c in components if isinstance(c, Control)]
        if not objectives:
            base = registry.build("method", table, "grpo", shared)
            assert isinstance(base, Objective)
            objectives = [base]
        if len(objectives) > 1:
            raise UserError(
                f"method {spec!r} has {len(objectives)} objectives; allowed: one, and any number of controls"
            )
        names = [type(c).__name__ for c in controls]
        if len(set(names)) < len(names):
            raise UserError(f"method {spec!r} names a control twice")
        return cls(spec.replace(" ", ""), objectives[0], controls)

    @property
    def components(self) -> list[Component]:
        return [self.objective, *self.controls]

    @property
    def needs(self) -> frozenset[str]:
        kl = {"ref_logp"} if self.objective.kl_coef else set()
        return frozenset(kl).union(*(component.needs for component in self.components))

    @property
    def min_group(self) -> int:
        return max(component.min_group for component in self.components)

    def identity(self) -> list[dict[str, Any]]:
        """All that defines the method, for the hash of a cell."""
        return [registry.identity(component) for component in self.components]

    def signal(self, old: TokenStats, batch: TokenBatch, minibatches: list[TokenBatch]) -> Signal:
        """Before the update: advantages over whole groups, weights over the whole batch, the scale of each step."""
        advantages_T = self.objective.advantages(old, batch)
        returns_T = None if old.values is None else advantages_T + old.values
        advantages_T = self.objective.whiten(advantages_T, batch)
        for control in self.controls:
            advantages_T = control.reshape(advantages_T, old, batch)
        every_T = old.logp.new_ones(old.logp.shape)
        weights_T, counted_T = every_T, every_T
        for control in self.controls:
            weight_T = control.weights(old, advantages_T, batch) * every_T
            weights_T = weights_T * weight_T
            if control.reference_denominator:
                counted_T = counted_T * (weight_T != 0)
        scale_T, term_scale_T = every_T.clone(), every_T.clone()
        for part in minibatches:
            scale_T[part.index_T] = self.objective.scale(part, counted_T[part.index_T])
            term_scale_T[part.index_T] = self.objective.scale(part, every_T[part.index_T])
        return Signal(old, advantages_T, weights_T, scale_T, term_scale_T, returns_T)

    def contributing(self, batch: TokenBatch, signal: Signal) -> TokenBatch:
        """The responses of a mini-batch that have a gradient: those of groups without signal have none, unless a term
        gives them one. At least one response is left, so that the optimiser steps whatever the rewards were."""
        if self.objective.kl_coef or any(type(control).term is not Control.term for control in self.controls):
            return batch
        live_T = (signal.advantages_T * signal.weights_T)[batch.index_T].abs()
        return batch.take(batch.per_sequence(live_T).nonzero().flatten().tolist() or [0])

    def loss(self, current: TokenStats, signal: Signal, batch: TokenBatch) -> Tensor:
        """The loss of a part of a mini-batch; the losses of its parts add up to that of the mini-batch."""
        old, advantages_T = signal.old, signal.advantages_T
        surrogate_T = self.objective.surrogate(current, old, advantages_T, batch) * signal.weights_T
        term_T = surrogate_T.new_zeros(surrogate_T.shape)
        for control in self.controls:
            surrogate_T = surrogate_T * control.gate(current, old, advantages_T)
            term_T = term_T + control.term(current, old, advantages_T)
        if self.objective.kl_coef:
            term_T = term_T + self.objective.kl_coef * self.objective.divergence(current)
        return (signal.term_scale_T * term_T - signal.scale_T * surrogate_T).sum()

    def value_loss(self, values_T: Tensor, signal: Signal) -> Tensor:
        assert signal.old.values is not None
        assert signal.returns_T is not None
        loss_T = self.objective.value_loss(values_T, signal.old.values, signal.returns_T)
        return (signal.term_scale_T * loss_T).sum()

    def observe(self, metrics: Mapping[str, float]) -> None:
        for control in self.controls:
            control.observe(metrics)

    def state(self) -> dict[str, dict[str, float]]:
        return {type(control).__name__: control.state() for control in self.controls}

    def load_state(self, state: Mapping[str, Mapping[str, float]]) -> None:
        for control in self.controls:
            control.load_state(state[type(control).__name__])
