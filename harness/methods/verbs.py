"""The verbs of the algebra: the methods that an objective or an entropy control may override.

Objectives and controls are frozen dataclasses of their hyper-parameters, the only place of the defaults. Their verbs
are functions of flat tokens (see harness/methods/batch.py), grouped below by the moment at which they are called:

    before the update   once per rollout batch, on all of its tokens: global statistics are allowed here
    each step           on whole responses of one mini-batch: the present policy is known here
    after the step      memory

They use tensor methods alone, so that planning and listing need no torch. harness/methods/composition.py joins
components and calls their verbs; docs/add-a-method.md gives the order, and says why there are this many.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, ClassVar

from harness.base.schema import check, choice, number

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


# Statistics that the trainer computes on request only. log p and the entropy before the update are always there.
NEEDS = {
    "values": "a critic's values: old.values",
    "ref_logp": "log p of the model before training: old.ref_logp, current.ref_logp",
    "sum_p2": "the sums over squared probabilities: old.sum_p2, old.sum_p2_logp",
    "min_p": "log p without the tokens below 0.02 of the largest probability: old.min_p_logp",
    "likeliest_entropy": "the entropy among the two likeliest tokens: old.likeliest_entropy, current.likeliest_entropy",
    "entropy_now": "the present entropy without gradient: current.entropy",
    "entropy_grad": "the present entropy with gradient: current.entropy",
}


LARGEST_LOG_RATIO = 80.0  # its exponential is finite in float32 and bfloat16, and the square of that in float64


@dataclass(frozen=True)
class View:
    """The tokens of whole responses of a mini-batch, as one component sees them in an optimizer step."""

    current: TokenStats  # the present policy, with gradient
    old: TokenStats  # the policy before the first update on the rollout batch
    advantages_T: Tensor
    marks: Mapping[str, Tensor]  # the component's own marks of these tokens
    batch: TokenBatch
    term_scale_T: Tensor  # the factor of each token's `term` in the loss, by `normalise`

    @property
    def ratio_T(self) -> Tensor:
        """The importance ratio of each token, with gradient; from exp(-80) to exp(80), and without one at these."""
        # An infinite ratio would give NaN gradients to tokens that a clip drops: the chain rule multiplies it by 0.
        log_ratio_T = self.current.logp - self.old.logp
        return log_ratio_T.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()


@dataclass(frozen=True)
class Component:
    """An objective or a control: its declarations, and the verbs that both kinds have."""

    source: ClassVar[str] = ""  # the paper

    # Declarations. The trainer and the composition read them, and `entrobench check` tests them.

    # Whether a token of zero advantage or zero weight adds nothing to the loss, so that responses of such tokens alone
    # need not be computed. A class that overrides `surrogate` or `term` has to declare it again.
    silent_without_signal: ClassVar[bool] = False

    # Whether the gradient at ratio 1 is that of advantage times log p, with weights and gates as constant factors, or
    # else the slope of the surrogate's own value. False for an estimator that is neither on purpose.
    follows_advantage: ClassVar[bool] = True

    # Whether it treats a response as one: an objective, the loss of a response as one product of its tokens; a control,
    # with the same weight, gate and factor in `reshape` for all of its tokens. Such an objective allows only such
    # controls.
    by_response: ClassVar[bool] = False

    # Whether it ignores the rewards that it receives: an objective that asks which responses are right; a control whose
    # `reward` replaces all rewards. No control may shape rewards before it, since that would be in vain.
    ignores_rewards: ClassVar[bool] = False

    # Whether it reads `batch.answers_B`: which answers of a group are equal. Not every trainer has them.
    reads_answers: ClassVar[bool] = False

    # Whether it reads `batch.base_right_B`, which `train.filter` measures. Not every trainer has it.
    reads_base: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Withdraw the declaration of silence from a class that overrides the verbs it was declared of."""
        super().__init_subclass__()
        if {"surrogate", "term"} & vars(cls).keys() and "silent_without_signal" not in vars(cls):
            cls.silent_without_signal = False

    def __post_init__(self) -> None:
        check(type(self), vars(self), f"{type(self).__name__}.")

    @property
    def needs(self) -> frozenset[str]:
        """The names in NEEDS that its verbs read.

        A class that always needs the same may write `needs = frozenset({"sum_p2"})`.
        """
        return frozenset()

    @property
    def reads_sampler(self) -> bool:
        """Whether it reads `batch.behaviour_logp_T`, of the policy that sampled; not every trainer has it.

        A class that always does may write `reads_sampler = True`.
        """
        return False

    @property
    def min_group(self) -> int:
        """The least number of responses to a prompt that it can learn from.

        A class for which it is one number may write `min_group = 2`.
        """
        return 1

    # Before the update, on the whole rollout batch

    def marks(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        """Return selections or measurements of the rollout batch that the verbs of each step read.

        Each mark is a tensor of the batch's tokens or of one number.
        """
        return {}

    def metrics(self, view: View) -> Mapping[str, float]:
        """Return numbers to log, from the whole rollout batch."""
        return {}

    # Each optimizer step

    def step_marks(self, view: View) -> Mapping[str, Tensor]:
        """Return further marks, from the present policy on a whole mini-batch.

        A component that overrides it costs a forward pass of each mini-batch.
        """
        return {}

    def term(self, view: View) -> Tensor | float:
        """Return a loss that is added to each token's."""
        return 0.0

    def update_metrics(self, view: View) -> Mapping[str, Tensor | float]:
        """Return columns to log of each update, with an entry for each token of the view or one number for all."""
        return {}


@dataclass(frozen=True)
class Objective(Component):
    """The part of a method that gives advantages and the surrogate; its options are shared by every objective."""

    normalise: str = choice("token", ("token", "sequence", "constant"))
    """`token`: sum over the tokens of a mini-batch / their number; `sequence`: mean over responses of each one's mean
    over tokens; `constant`: sum / (responses x the most tokens a response may have)."""
    kl_coef: float = number(0.0, least=0)
    """Weight of a KL term: an estimate of KL(policy, model before training), added to the loss."""
    kl_estimator: str = choice("k2", ("k2", "k3"))
    """k2 = 0.5 (log p - log p_ref)^2, with the gradient of the KL; k3 = p_ref/p - log(p_ref/p) - 1, with an unbiased
    value."""
    lr: float | None = number(None, above=0)
    """Learning rate of the policy with this method, warmed up like that of the configuration; null: `train.lr`."""

    # Before the update, on the whole rollout batch

    def advantages(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        """Return the advantage of each token, as the surrogate takes it where no control reshapes it."""
        raise NotImplementedError

    def returns(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        """Return the critic's target for each token; called only where the objective needs values.

        An objective that rescales its advantages overrides it, since a critic learns from advantages in the units of
        the reward.
        """
        assert old.values is not None
        return self.advantages(old, batch) + old.values

    # Each optimizer step

    def surrogate(self, view: View) -> Tensor:
        """Return the value to maximize, token by token."""
        raise NotImplementedError

    def clips(self, view: View) -> tuple[Tensor, Tensor]:
        """Return two masks: the tokens clipped at the low side, and at the high side.

        A token is clipped where its gradient is removed or bounded because of its ratio.
        """
        nothing_T = view.advantages_T.new_zeros(view.advantages_T.shape).bool()
        return nothing_T, nothing_T

    def term(self, view: View) -> Tensor | float:
        """Return the weighted KL divergence to the model before training, 0 without `kl_coef`."""
        return self.kl_coef * self.divergence(view.current) if self.kl_coef else 0.0

    def value_loss(self, values_T: Tensor, old_values_T: Tensor, returns_T: Tensor) -> Tensor:
        """Return the critic's loss, token by token; called only where the objective needs values."""
        raise NotImplementedError

    # Parts of every objective, which none overrides

    def scale(self, batch: TokenBatch, counted_T: Tensor) -> Tensor:
        """Return each token's factor in the loss of one optimizer step; denominators count the tokens of `counted_T`.

        The factors belong to the mini-batch and not to its micro-batches, so that memory settings change no result.
        """
        if self.normalise == "token":
            return counted_T / max(batch.global_count(counted_T), 1.0)
        if self.normalise == "sequence":
            lengths_B = batch.per_sequence(counted_T).clamp(min=1)
            return counted_T / (batch.global_responses() * lengths_B)[batch.sequence_T]
        return counted_T / (batch.global_responses() * batch.budget)

    def divergence(self, current: TokenStats) -> Tensor:
        """Return an estimate of the KL divergence to the model before training at each token."""
        assert current.ref_logp is not None
        difference_T = current.ref_logp - current.logp
        if self.kl_estimator == "k2":
            return 0.5 * difference_T**2
        difference_T = difference_T.clamp(max=LARGEST_LOG_RATIO)
        return difference_T.exp() - difference_T - 1


@dataclass(frozen=True)
class ClippedObjective(Objective):
    """Advantage times a ratio that is kept within bounds, as in PPO."""

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
        """Return the clipped ratio times the advantage."""
        ratio_T, advantages_T = self.ratio(view), view.advantages_T
        low_T, high_T = self.bounds(view)
        bound_T = ratio_T.detach().clamp(low_T, high_T)
        factor_T = self.beyond(ratio_T, bound_T).where((ratio_T < low_T) | (ratio_T > high_T), ratio_T)
        if self.dual_clip is not None:
            factor_T = factor_T.clamp(max=self.dual_clip).where(advantages_T < 0, factor_T)
        return factor_T * advantages_T

    def ratio(self, view: View) -> Tensor:
        """Return the ratio that is clipped, with gradient (default: that of each token)."""
        return view.ratio_T

    def bounds(self, view: View) -> tuple[Tensor, Tensor]:
        """Return the lowest and the highest ratio of each token that is not clipped."""
        advantages_T = view.advantages_T
        nothing_T = view.old.logp.new_zeros(advantages_T.shape)
        low_T, high_T = nothing_T - inf, nothing_T + inf
        for side_T, low, high in (
            (advantages_T > 0, self.clip_low_positive, self.clip_high),
            (advantages_T < 0, self.clip_low, self.clip_high_negative),
        ):
            if low is not None:
                low_T = low_T.masked_fill(side_T, 1 - low)
            if high is not None:
                high_T = high_T.masked_fill(side_T, 1 + high)
        return low_T, high_T

    def beyond(self, ratio_T: Tensor, bound_T: Tensor) -> Tensor:
        """Return the value used in place of a clipped ratio (default: the bound, which has no gradient)."""
        return bound_T

    def clips(self, view: View) -> tuple[Tensor, Tensor]:
        ratio_T = self.ratio(view)
        low_T, high_T = self.bounds(view)
        if self.dual_clip is not None:
            high_T = high_T.clamp(max=self.dual_clip).where(view.advantages_T < 0, high_T)
        return ratio_T < low_T, ratio_T > high_T


@dataclass(frozen=True)
class Control(Component):
    """An entropy control. A verb that it does not override changes nothing."""

    silent_without_signal: ClassVar[bool] = True  # withdrawn from a class that overrides `term`

    # Options that users expect here, each with the reason why there is none.
    refused: ClassVar[Mapping[str, str]] = {
        "lr": "the learning rate is an option of the objective, also below a control, as in grpo(lr=3e-4)+clip_b"
    }

    reference_denominator: bool = dataclasses.field(default=False, kw_only=True)
    """Leave tokens that this control drops out of the denominator of the loss too, as the code of some authors does. An
    added term (entropy bonus, KL) is always divided by all tokens."""

    # Before the update, on the whole rollout batch

    def reward(self, rewards_B: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        """Return changed rewards, from which advantages are computed."""
        return rewards_B

    def reshape(self, advantages_T: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        """Return changed advantages."""
        return advantages_T

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor | float:
        """Return a factor of each token's gradient, 0 and more; 0 drops the token."""
        return 1.0

    # Each optimizer step

    def gate(self, view: View) -> Tensor | float:
        """Return a factor of each token's surrogate that may depend on the present policy."""
        return 1.0

    @property
    def base_share(self) -> float:
        """Right responses of the model before training that join each optimizer step, as a share of its responses.

        They answer problems that `train.filter` leaves out as too easy.
        """
        return 0.0

    def base_term(self, logp_T: Tensor, base_logp_T: Tensor) -> Tensor | float:
        """Return a loss for each token of these responses, from log p of the present policy and of that model."""
        return 0.0

    # After the step

    @cached_property
    def remembered(self) -> dict[str, float]:
        """The memory, which `observe` changes in place; every checkpoint keeps it.

        A control with a memory overrides it with the values before the first step.
        """
        return {}

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Update the memory from the metrics of a finished step, with its own metrics under their short names."""

    # Parts of every control, which none overrides

    def state(self) -> dict[str, float]:
        """Return a copy of the memory, for the checkpoint and the log."""
        return dict(self.remembered)

    def load_state(self, state: Mapping[str, float]) -> None:
        """Take over a memory that `state` has returned."""
        has_memory = type(self).remembered is not Control.remembered
        assert has_memory or not state, f"{type(self).__name__} has no memory"
        self.remembered.update(state)


@dataclass(frozen=True)
class Composition:
    """A named spec of other methods; `about` is structured like the docstring of a method, with one clause first."""

    spec: str
    source: str
    about: str
