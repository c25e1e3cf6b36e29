from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from harness.base.errors import UserError
from harness.base.schema import choice, number
from harness.methods.shares import share_of
from harness.methods.verbs import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats

TRAINER, ENGINE = "trainer", "engine"  # whose log p is in S*


@dataclass(frozen=True)
class ClipB(Control):
    """Drops tokens whose entropy discriminator S* is an outlier in the rollout batch.

        D     = S* - mean S*
        sigma = population deviation of D
        mode=reference: dropped where A < 0 and D < -mu sigma
        mode=paper:     dropped where D < -mu sigma or D > mu_high sigma

    S* = p (H + log p). Mean and deviation cover all tokens of the rollout batch on all ranks; nothing is dropped where
    sigma < 1e-12. `mu_high=null` means the same bound as mu.

    With `share` in place of mu, the threshold is found on each rollout batch so that this share of all response tokens
    is dropped, the largest outliers first: in mode=reference the lowest D < 0 among tokens with A < 0, in mode=paper
    the largest |D|. If several tokens tie at the edge, none of them is dropped, so that the order of the batch does not
    matter. In that case less than the share is dropped; the same holds if mode=reference finds too few tokens with A <
    0 and D < 0.

    Defaults: the released configuration.

    Differs: the authors' code takes log p from the rollout engine and H from the trainer, so that S* belongs to no
    single distribution; here both are the trainer's, unless `logp=engine`. Their code leaves dropped tokens out of the
    denominator of each micro-batch; here only `reference_denominator=true` does so, for each mini-batch, or with
    `train.loss_scale=micro-batch` for each micro-batch.
    """

    source = "arXiv:2602.03392"

    mode: str = choice("reference", ("reference", "paper"))
    mu: float = number(2.5, least=0)
    mu_high: float | None = number(None, least=0)
    share: float | None = number(None, least=0, most=1)
    logp: str = choice(TRAINER, (TRAINER, ENGINE))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share is not None and self.mu != type(self).mu:
            raise UserError(
                f"both share ({self.share}) and mu ({self.mu}) are given; allowed: one (share=null takes it away)"
            )
        if self.mu_high is not None and (self.mode != "paper" or self.share is not None):
            raise UserError(f"mu_high is {self.mu_high}; allowed: only with mode=paper and without share")

    @property
    def reads_sampler(self) -> bool:
        return self.logp == ENGINE

    def identifying(self) -> dict[str, Any]:
        """Return the options; the source of log p only if it is the engine, so that other ids stay the same."""
        options = asdict(self)
        if self.logp == TRAINER:
            del options["logp"]
        return options

    def discriminator(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        if self.logp == TRAINER:
            return old.discriminator
        assert old.entropy is not None
        return batch.behaviour_logp_T.exp() * (old.entropy + batch.behaviour_logp_T)

    def deviation(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        return batch.global_centered(self.discriminator(old, batch))

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor | float:
        deviation_T = self.deviation(old, batch)
        sigma = batch.global_std(deviation_T)
        if sigma < 1e-12:
            return 1.0
        if self.share is not None:
            size_T = deviation_T.abs() if self.mode == "paper" else harm(deviation_T, advantages_T)
            most = round(share_of(self.share, batch.global_tokens()))
            return size_T <= batch.global_kth_largest(size_T, most + 1).clamp(min=0)
        if self.mode == "paper":
            mu_high = self.mu if self.mu_high is None else self.mu_high
            return (deviation_T >= -self.mu * sigma) & (deviation_T <= mu_high * sigma)
        return self.reference(deviation_T, sigma, advantages_T, batch)

    def reference(self, deviation_T: Tensor, sigma: Tensor, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        return (advantages_T >= 0) | (deviation_T >= -self.mu * sigma)


def harm(deviation_T: Tensor, advantages_T: Tensor) -> Tensor:
    """Return how strongly each token of negative advantage lowers the entropy; 0 for all others."""
    return (-deviation_T).masked_fill(advantages_T >= 0, 0)
