"""Equal rewards are exactly equal, and a share of a count is computed from the written number."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Sequence

import pytest
import torch
from ragged import batch_of
from registered import method

from baselines.archer import above_quantile
from baselines.grpo import Grouped
from baselines.ppo import whitened
from baselines.reinforce_pp import ReinforcePp
from harness.base.errors import UserError
from harness.methods.batch import Rollout, TokenBatch, TokenStats
from harness.methods.composition import Method
from harness.methods.shares import share_of
from harness.methods.verbs import Objective

GROUPED = ["grpo", "dr_grpo", "rloo", "lite_ppo", "maxrl", "qae", "qae(mode=paper)", "dppo", "reinforce_pp", "otb"]
GROUPED += ["rs_grpo", "opo", "gpg"]


def responses(lengths: Sequence[int], group: int) -> tuple[TokenStats, TokenBatch]:
    """Make a rollout batch of right responses, in float32 as training makes it, and what a policy says of it."""
    rollouts = [Rollout([0], [1] * length, [-1.0] * length, True) for length in lengths]
    groups = [rollouts[start : start + group] for start in range(0, len(rollouts), group)]
    batch = TokenBatch.of(groups, [1.0] * len(lengths), 7168, "cpu")
    generator = torch.Generator().manual_seed(len(lengths))
    logp_T = -torch.rand(sum(lengths), generator=generator) - 0.1
    ones_T = torch.ones_like(logp_T)
    return TokenStats(logp_T, 0.7 * ones_T, 0.5 * ones_T, -0.4 * ones_T), batch


def advantages(spec: str, old: TokenStats, batch: TokenBatch) -> torch.Tensor:
    return method(spec).signal(old, batch, [batch]).advantages_T


def before_whitening(objective: Objective, old: TokenStats, batch: TokenBatch) -> torch.Tensor:
    """Return the advantages within groups: whitening moves those of a group without signal off 0."""
    if isinstance(objective, ReinforcePp):
        return Grouped.advantages(objective, old, batch)
    return objective.advantages(old, batch)


# Equal rewards


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("objective", GROUPED)
def test_advantages_of_equal_rewards(objective: str, dtype: torch.dtype) -> None:
    chance = random.Random(0)
    for group in (2, 3, 7, 8, 12, 16):
        old, batch = responses([2] * 2 * group, group)
        batch = dataclasses.replace(batch, rewards_B=batch.rewards_B.to(dtype))
        for _ in range(5):
            level, other = chance.uniform(-1, 1), [chance.uniform(-1, 1) for _ in range(group)]
            batch = dataclasses.replace(batch, rewards_B=batch.rewards_B.new_tensor([level] * group + other))
            advantages_T = before_whitening(method(objective).objective, old, batch)
            assert not advantages_T[: 2 * group].any()
            assert advantages_T[2 * group :].any() or (objective == "maxrl" and sum(other) <= 0)


@pytest.mark.parametrize("spec", ["ppo", "reinforce_pp"])
def test_whitening_leaves_equal_advantages_at_0(spec: str) -> None:
    for reward, tokens in itertools.product((0.1, 0.3, 1 / 3, -0.7), (3, 7, 11, 1001)):
        old, batch = responses([1] * 2 * tokens, 2)
        columns = {name: x_T.double() for name, x_T in old.columns.items()}
        old = TokenStats(**columns, values=torch.zeros(2 * tokens, dtype=torch.float64))
        equal_T = torch.full((2 * tokens,), reward, dtype=torch.float64)
        assert not whitened(equal_T, batch).any()
        batch = dataclasses.replace(batch, rewards_B=equal_T)
        assert not advantages(spec, old, batch).any()


def test_global_deviation_of_equal_values() -> None:
    _, batch = responses([1] * 22, 2)
    for x in (0.1, 0.3, 1 / 3, 1e6 + 0.1):
        for dtype in (torch.float32, torch.float64):
            equal_T = torch.full((22,), x, dtype=dtype)
            assert not batch.global_centered(equal_T).any()
            assert batch.global_std(equal_T) == 0


# Shares of a count


@pytest.mark.parametrize("count", [1, 7, 100, 300, 4096, 123_457])
def test_share_of(count: int) -> None:
    for digits in (2, 3, 4):
        scale = 10**digits
        for numerator in range(0, scale + 1, 7 if digits < 4 else 97):
            share = share_of(numerator / scale, count)
            assert math.floor(share) == numerator * count // scale
            assert math.ceil(share) == -(-numerator * count // scale)
            whole, rest = divmod(numerator * count, scale)
            assert round(share) == whole + (2 * rest > scale or (2 * rest == scale and whole % 2))


def tokens(count: int) -> tuple[TokenStats, TokenBatch, torch.Tensor]:
    """Make a group of two right and two wrong responses with this many tokens, all distinct."""
    half = Rollout([0], [1] * (count // 2), [-1.0] * (count // 2), True)
    batch = batch_of([[half, half]], [0.0, 1.0], budget=count)
    spread_T = torch.linspace(0.02, 0.98, count, dtype=torch.float64)
    order_T = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    entropy_T, p_T = spread_T[order_T], spread_T.flip(0)[order_T]
    old = TokenStats(p_T.log(), entropy_T, 0.5 * p_T, -0.1 * entropy_T)
    return old, batch, torch.tensor([-1.0, 1.0], dtype=torch.float64)[batch.sequence_T]


# spec -> by its share, the number of 100 tokens whose weight is not 1
SHARES = {
    "top_entropy(share={})": {0.07: 93, 0.28: 72, 0.55: 45, 0.56: 44, 0.071: 92},
    "clip_cov(fraction={}, lowest=0, highest=900)": {0.29: 29, 0.57: 57, 0.58: 58, 0.001: 1},
    "clip_b(share={}, mode=paper)": {0.575: 58, 0.29: 29, 0.145: 14, 0.155: 16},
    "clip_v(share={}, mode=paper)": {0.575: 58, 0.29: 29, 0.145: 14, 0.155: 16},
    "clip_v(mu=0, max_frac={})": {0.29: 29},
    "clip_predict(target=900, most={})": {0.29: 29},
    "stare(target=9, share={})": {0.14: 7, 0.142: 8, 0.002: 1, 0: 0},  # of the 50 with a positive advantage
}


@pytest.mark.parametrize("template", SHARES)
def test_controls_weigh_the_share_that_was_written(template: str) -> None:
    old, batch, advantages_T = tokens(100)
    for share, number in SHARES[template].items():
        [(name, control)] = method(template.format(share)).controls.items()
        # With the first all tokens are candidates of the cap; with the second all covariances are in the band.
        given_T = {"clip_v": -advantages_T.abs(), "clip_cov": old.logp}.get(name, advantages_T)
        weights_T = control.weights(old, given_T, batch)
        assert int((weights_T != 1).sum()) == number, share  # type: ignore[union-attr]


@pytest.mark.parametrize(("fraction", "chosen"), [(0.29, 29), (0.57, 57), (0.58, 58), (0.001, 1)])
def test_kl_cov_chooses_the_fraction_that_was_written(fraction: float, chosen: int) -> None:
    old, batch, advantages_T = tokens(100)
    held_T = method(f"kl_cov(fraction={fraction})").controls["kl_cov"].marks(old, advantages_T, batch)["held"]
    assert int(held_T.sum()) == chosen


@pytest.mark.parametrize("name", ["kl_cov", "kl_cov_release"])
def test_kl_cov_gradient_of_rounding(name: str) -> None:
    """Expect the objective's gradient where log p differs from the old one by rounding, as in other micro-batches."""
    old, batch, _ = tokens(100)
    composed = method("grpo+kl_cov(fraction=0.5)" if name == "kl_cov" else name)
    rounding_T = torch.linspace(-3e-6, 3e-6, len(old.logp), dtype=torch.float64)
    slopes = []
    for composition in (composed, Method(composed.name, (composed.base, composed.objective), {})):
        logp_T = (old.logp + rounding_T).requires_grad_()
        signal = composition.signal(old, batch, [batch])
        (slope_T,) = torch.autograd.grad(composition.loss(TokenStats(logp_T), signal, batch), logp_T)
        slopes.append(slope_T)
    assert torch.equal(*slopes)
    assert slopes[0].any()


@pytest.mark.parametrize(("quantile", "length", "above"), [(0.29, 101, 71), (0.57, 101, 43), (0.8, 6, 1), (1, 9, 0)])
def test_above_quantile(quantile: float, length: int, above: int) -> None:
    rollout = Rollout([0], [1] * length, [0.0] * length, True)
    batch = batch_of([[rollout]], [0.0], budget=length)
    assert int(above_quantile(torch.arange(length).double(), quantile, batch).sum()) == above


# Controls that would take each other's effect away


def test_random_reward_with_a_penalty() -> None:
    words = (
        "control random_reward replaces all rewards, and so takes away what control overlong made of them; allowed: "
        "random_reward before overlong, or without it"
    )
    for spec in ("dapo+random_reward", "overlong+random_reward", "grpo+overlong+random_reward"):
        with pytest.raises(UserError) as error:
            method(spec)
        assert str(error.value) == words
    old, batch = responses([7168, 100] * 8, 8)
    coins_B = method("random_reward").rewarded(old, batch).rewards_B
    both_B = method("random_reward+dapo").rewarded(old, batch).rewards_B
    assert set(coins_B.tolist()) == {0, 1}
    assert both_B.tolist() == pytest.approx((coins_B - torch.tensor([0.5, 0.0] * 8)).tolist())


def test_controls_that_move_the_advantages_of_whole_responses_go_with_a_product_of_ratios() -> None:
    assert set(method("gmpo+ucpo+unlikeliness").controls) == {"ucpo", "unlikeliness"}
    old, batch = responses([3, 5, 2, 7], 4)
    advantages_T = advantages("gmpo+unlikeliness+ucpo", old, batch)
    for of_response in advantages_T.split([3, 5, 2, 7]):
        assert len(of_response.unique()) == 1
