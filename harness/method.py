"""The verbs that methods are made of: an objective has some, a control of the entropy others.

Objectives and controls are frozen dataclasses of their hyper-parameters (the only place of their defaults) with pure
functions on flat tokens (see harness/batch.py). They use tensor methods alone, so that planning and listing need no
torch. harness/composition.py joins them, and says when each verb is called.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, ClassVar

from harness.base.schema import check, choice, number

if TYPE_CHECKING:
    from torch import Tensor

    from harness.batch import TokenBatch, TokenStats


# What the trainer computes for those that need it, beyond log p and the entropy before the update.
NEEDS = {
    "values": "a critic's values: old.values",
    "ref_logp": "log p of the model before training: old.ref_logp, current.ref_logp",
    "sum_p2": "the sums over squared probabilities: old.sum_p2, old.sum_p2_logp",
    "entropy_now": "the present entropy without gradient: current.entropy",
    "entropy_grad": "the present entropy with gradient: current.entropy",
}


@dataclass(frozen=True)
class View:
    """Shows a verb of an optimiser step its tokens: whole responses of a mini-batch, and what was fixed about them."""

    current: TokenStats  # the present policy, with gradient
    old: TokenStats  # the policy before the first update on the rollout batch
    advantages_T: Tensor
    marks: Mapping[str, Tensor]  # what the component has marked before the update, of these tokens
    batch: TokenBatch
    term_scale_T: Tensor  # the factor of each token's `term` in the loss, by `normalise`

    @property
    def ratio_T(self) -> Tensor:
        """Returns the importance ratio of each token, with gradient."""
        return (self.current.logp - self.old.logp).exp()


@dataclass(frozen=True)
class Component:
    source: ClassVar[str] = ""  # the paper
    # Whether a token of zero advantage or zero weight adds nothing to the loss, so that responses of such tokens alone
    # need not be computed. A class that overrides `surrogate` or `term` has to declare it anew.
    silent_without_signal: ClassVar[bool] = False

    # Whether the gradient at ratio 1 is that of advantage times log p, with weights and gates as constant factors, or
    # else the slope of the surrogate's own value; declared False by an estimator that is neither on purpose.
    follows_advantage: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        """Takes back what was declared of a verb that the class overrides."""
        super().__init_subclass__()
        if {"surrogate", "term"} & vars(cls).keys() and "silent_without_signal" not in vars(cls):
            cls.silent_without_signal = False

    def __post_init__(self) -> None:
        check(type(self), vars(self), f"{type(self).__name__}.")

    @property
    def needs(self) -> frozenset[str]:
        """Returns those of NEEDS that it uses. A class for which they are always the same may say so as
        `needs = frozenset({"sum_p2"})`."""
        return frozenset()

    @property
    def min_group(self) -> int:
        """Returns how many responses to a prompt there must be for it to learn from them. A class for which it is one
        number may say `min_group = 2`."""
        return 1

    def marks(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        """Returns what is selected or measured over the whole rollout batch, before the update, for the verbs of each
        optimiser step: tensors of the batch's tokens, or of one number."""
        return {}

    def step_marks(self, view: View) -> Mapping[str, Tensor]:
        """Returns further marks, from the present policy on the whole mini-batch of an optimiser step. A component that
        overrides it costs a forward pass of each mini-batch."""
        return {}

    def metrics(self, view: View) -> Mapping[str, float]:
        """Returns numbers to log, from the whole rollout batch before the update."""
        return {}

    def update_metrics(self, view: View) -> Mapping[str, Tensor | float]:
        """Return columns to log of each update, with an entry for each token of the view or one number for all."""
        return {}


@dataclass(frozen=True)
class Objective(Component):
    """The base of a method: advantages and a surrogate. Its options are shared by every objective."""

    # Whether single tokens of a response may be weighed; not where the loss of a response is one product of them all.
    weighs_tokens: ClassVar[bool] = True
    # Whether its advantages come from the rewards, which controls may shape; not where they come from what is right.
    takes_rewards: ClassVar[bool] = True

    normalise: str = choice("token", ("token", "sequence", "constant"))
    """`token`: sum over the tokens of a mini-batch / their number; `sequence`: mean over responses of each one's mean
    over tokens; `constant`: sum / (responses x the most tokens a response may have)."""
    kl_coef: float = number(0.0, least=0)
    """Weight of a KL term: an estimate of KL(policy, model before training), added to the loss."""
    kl_estimator: str = choice("k2", ("k2", "k3"))
    """k2 = 0.5 (log p - log p_ref)^2, with the gradient of the KL; k3 = p_ref/p - log(p_ref/p) - 1, with an unbiased
    value."""

    def advantages(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        """Returns the advantage of each token."""
        raise NotImplementedError

    def whiten(self, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        """Returns the advantages as the surrogate takes them; a critic learns from them as they were before."""
        return advantages_T

    def surrogate(self, view: View) -> Tensor:
        """Returns what is maximised, token by token."""
        raise NotImplementedError

    def clips(self, view: View) -> tuple[Tensor, Tensor]:
        """Says which tokens it clips, at the low side and at the high side: those whose gradient is taken away or
        bounded for the sake of their ratio."""
        nothing_T = view.advantages_T != view.advantages_T
        return nothing_T, nothing_T

    def term(self, view: View) -> Tensor | float:
        """Returns a loss added to each token's: the KL divergence to the model before training, if asked for."""
        return self.kl_coef * self.divergence(view.current) if self.kl_coef else 0.0

    def value_loss(self, values_T: Tensor, old_values_T: Tensor, returns_T: Tensor) -> Tensor:
        """Returns the critic's loss, token by token; only objectives that need values have one."""
        raise NotImplementedError

    def scale(self, batch: TokenBatch, counted_T: Tensor) -> Tensor:
        """Returns each token's factor in the loss of one optimiser step; denominators count those of `counted_T`."""
        if self.normalise == "token":
            return counted_T / max(batch.global_count(counted_T), 1.0)
        if self.normalise == "sequence":
            lengths_B = batch.per_sequence(counted_T).clamp(min=1)
            return counted_T / (batch.global_responses() * lengths_B)[batch.sequence_T]
        return counted_T / (batch.global_responses() * batch.budget)

    def divergence(self, current: TokenStats) -> Tensor:
        """Estimates the KL divergence to the model before training at each token."""
        assert current.ref_logp is not None
        difference_T = current.ref_logp - current.logp
        if self.kl_estimator == "k2":
            return 0.5 * difference_T**2
        return difference_T.exp() - difference_T - 1


@dataclass(frozen=True)
class ClippedObjective(Objective):
    """Maximises the advantage times a ratio that is kept within bounds, as PPO does."""

    silent_without_signal: ClassVar[bool] = True

    clip_low: float = number(0.2, least=0)
    """The ratio of a token is clipped below 1 - clip_low where A < 0."""
    clip_high: float = number(0.2, least=0)
    """The ratio of a token is clipped above 1 + clip_high where A > 0; 0.28 is Clip-Higher of arXiv:2503.14476."""
    clip_low_positive: float | None = number(None, least=0)
    """Also clipped below 1 - clip_low_positive where A > 0, a side that PPO leaves open; null: no bound."""
    clip_high_negative: float | None = number(None, least=0)
    """Also clipped above 1 + clip_high_negative where A < 0, a side that PPO leaves open; null: no bound."""
    dual_clip: float | None = number(3.0, least=1)
    """J is at least dual_clip A where A < 0; null: no bound."""

    def surrogate(self, view: View) -> Tensor:
        """Returns the clipped ratio times the advantage."""
        ratio_T, advantages_T = self.ratio(view), view.advantages_T
        low_T, high_T = self.bounds(view)
        bound_T = ratio_T.detach().clamp(low_T, high_T)
        factor_T = self.beyond(ratio_T, bound_T).where((ratio_T < low_T) | (ratio_T > high_T), ratio_T)
        if self.dual_clip is not None:
            factor_T = factor_T.clamp(max=self.dual_clip).where(advantages_T < 0, factor_T)
        return factor_T * advantages_T

    def ratio(self, view: View) -> Tensor:
        """Returns the ratio that is clipped, with gradient: by default that of each token."""
        return view.ratio_T

    def bounds(self, view: View) -> tuple[Tensor, Tensor]:
        """Returns the least and the most that each token's ratio may be before it is clipped."""
        advantages_T = view.advantages_T
        nothing_T = view.old.logp.new_zeros(advantages_T.shape)
        low_T, high_T = nothing_T - inf, nothing_T + inf
        for side_T, low, high in (
            (advantages_T > 0, self.clip_low_positive, self.clip_high),
            (advantages_T < 0, self.clip_low, self.clip_high_negative),
        ):
            low_T = low_T if low is None else low_T.masked_fill(side_T, 1 - low)
            high_T = high_T if high is None else high_T.masked_fill(side_T, 1 + high)
        return low_T, high_T

    def beyond(self, ratio_T: Tensor, bound_T: Tensor) -> Tensor:
        """Returns what stands for the ratio of a token beyond the clip: by default the bound, which has no gradient."""
        return bound_T

    def clips(self, view: View) -> tuple[Tensor, Tensor]:
        ratio_T, (low_T, high_T) = self.ratio(view), self.bounds(view)
        if self.dual_clip is not None:
            high_T = high_T.clamp(max=self.dual_clip).where(view.advantages_T < 0, high_T)
        return ratio_T < low_T, ratio_T > high_T


@dataclass(frozen=True)
class Control(Component):
    """Controls the entropy. A verb that it does not override leaves things as they are."""

    silent_without_signal: ClassVar[bool] = True  # but not of one that overrides `term` and does not say so
    # Whether all tokens of a response have the same weight, the same gate, and the same factor in `reshape`.
    by_response: ClassVar[bool] = False
    # Whether `reward` ignores the rewards it is given, so that a control before it would shape them in vain.
    replaces_rewards: ClassVar[bool] = False

    reference_denominator: bool = dataclasses.field(default=False, kw_only=True)
    """Leave tokens that this control drops out of the denominator of the loss too, as the code of some authors does. An
    added term (entropy bonus, KL) is always divided by all tokens."""

    def reward(self, rewards_B: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        """Returns other rewards, before advantages are taken."""
        return rewards_B

    def reshape(self, advantages_T: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        """Returns other advantages, before the update."""
        return advantages_T

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor | float:
        """Says whose gradient counts, and how much (0 drops a token); before the update, on the whole rollout batch."""
        return 1.0

    def gate(self, view: View) -> Tensor | float:
        """Returns a factor of each token's surrogate that may depend on the present policy."""
        return 1.0

    def term(self, view: View) -> Tensor | float:
        """Returns a loss of its own, which is added to each token's."""
        return 0.0

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Hears the metrics of a step that is over, its own by the keys of its verb `metrics`; a control with a memory
        updates it here."""

    def state(self) -> dict[str, float]:
        """Returns the memory, for the checkpoint and the log."""
        return {}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Takes over a memory that `state` has returned."""
        assert not state, f"{type(self).__name__} has no memory"


@dataclass(frozen=True)
class Composition:
    """A named spec of other methods; `about` is structured like the docstring of a method, with one clause first."""

    spec: str
    source: str
    about: str
