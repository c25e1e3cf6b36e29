"""Compares our methods with verl's own advantages and policy losses of the same name, in verl's own trainer.

docs/ports.md lists every loss and advantage of verl by name, with what makes it differ from ours.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from places import REPOSITORY
from ragged import Case, case
from torch import Tensor

import entrobench
from harness.methods.batch import TokenBatch, TokenStats

pytest.importorskip("verl.trainer.ppo.v1", reason="needs the package verl; make test-verl runs it")

from omegaconf import OmegaConf
from tensordict import TensorDict
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.dapo import DAPORewardManager
from verl.trainer.ppo import core_algos
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss
from verl_batches import BUDGET, Run, close, direct, mask_of, padded

from entrobench import verl as door

ACTOR = "actor_rollout_ref.actor."
MODE = ACTOR + "policy_loss.loss_mode"
DENOMINATOR = ACTOR + "loss_agg_mode"
ESTIMATOR = "algorithm.adv_estimator"
BY_RESPONSE = {DENOMINATOR: "seq-mean-token-mean"}
BY_BUDGET = {DENOMINATOR: "seq-mean-token-sum-norm", ACTOR + "loss_scale_factor": BUDGET}
NO_DEVIATION = {"algorithm.norm_adv_by_std_in_grpo": False}
NO_DUAL_CLIP = {ACTOR + "clip_ratio_c": 1e9}


def clips(low: float, high: float) -> dict[str, Any]:
    return {ACTOR + "clip_ratio_low": low, ACTOR + "clip_ratio_high": high}


def kl(kind: str) -> dict[str, Any]:
    return {ACTOR + "use_kl_loss": True, ACTOR + "kl_loss_coef": 0.1, ACTOR + "kl_loss_type": kind}


# Our spec, and the settings of verl's own trainer that compute the same.
SAME: list[tuple[str, Mapping[str, Any]]] = [
    ("grpo", {}),
    ("grpo", {ESTIMATOR: "grpo_vectorized"}),
    ("grpo(normalise=sequence)", BY_RESPONSE),
    ("grpo(normalise=constant)", BY_BUDGET),
    ("grpo(clip_high=0.28, dual_clip=10)", {**clips(0.2, 0.28), ACTOR + "clip_ratio_c": 10.0}),
    ("grpo+entropy_bonus(coefficient=0.3)", {ACTOR + "entropy_coeff": 0.3}),
    ("grpo(kl_coef=0.1)", kl("k2")),
    ("grpo(kl_coef=0.1, kl_estimator=k3)", kl("low_var_kl")),
    ("dr_grpo", {**NO_DEVIATION, **BY_BUDGET, **NO_DUAL_CLIP}),
    ("rloo", {ESTIMATOR: "rloo"}),
    ("rloo", {ESTIMATOR: "rloo_vectorized"}),
    ("opo", {ESTIMATOR: "opo"}),
    ("gspo", {MODE: "gspo", **clips(3e-4, 4e-4), **BY_RESPONSE}),
    ("cispo", {MODE: "cispo", **clips(10, 4)}),
    ("cispo(clip_high=0.2)", {MODE: "cispo", **clips(10, 0.2)}),
    ("sapo", {MODE: "sapo"}),
    ("kimi(tau=0.3)", {MODE: "dro", ACTOR + "policy_loss.dro_beta": 0.3, **NO_DEVIATION}),
    ("dppo", {MODE: "dppo_tv", **clips(0.15, 0.15), **NO_DEVIATION, **BY_BUDGET}),
    ("dppo(measure=kl)", {MODE: "dppo_kl", **clips(0.05, 0.05), **NO_DEVIATION, **BY_BUDGET}),
]
# The names of verl's registries that are compared below, in tests of their own.
COMPARED_APART = {"clip_cov", "kl_cov", "geo_mean", "gpg", "gae", "reinforce_plus_plus_baseline"}
COMPARED_APART |= {"optimal_token_baseline"}
# Those without a method of ours; docs/ports.md has the reasons.
NO_METHOD = {"bypass_mode", "gdpo", "grpo_passk", "reinforce_plus_plus", "remax", "tir_optimal_token_baseline"}


@pytest.fixture
def of_both(settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A function that returns the gradients of all updates by our trainer mode, and by verl's own trainer."""

    def gradients(
        c: Case, spec: str, of_verl: Mapping[str, Any], *, adapt: Callable[[Run], None] | None = None, **layout: Any
    ) -> tuple[list[Tensor], list[Tensor]]:
        layout = {"updates": 2, "ranks": 2, **layout}
        mine = Run(c, settings(spec), monkeypatch, **layout).step()
        run = Run(c, settings(spec), monkeypatch, **layout)
        for key, value in of_verl.items():
            door.OmegaConf.update(run.trainer.config, key, value)
        actor = copy.deepcopy(run.trainer.config.actor_rollout_ref.actor)
        run.workers.loss_fn = partial(ppo_loss, config=omega_conf_to_dataclass(actor))
        for name in ("_compute_advantage", "_update_actor"):
            monkeypatch.setattr(run.trainer, name, partial(getattr(door.PPOTrainerSync, name), run.trainer))
        if adapt is not None:
            adapt(run)
        theirs = run.step()
        assert len(mine) == len(theirs) == layout["updates"]
        assert all(gradient.abs().max() > 1e-6 for gradient in mine)
        return mine, theirs

    return gradients


@pytest.mark.parametrize(("spec", "of_verl"), SAME)
def test_the_gradient_is_that_of_verl(spec: str, of_verl: Mapping[str, Any], of_both: Callable[..., Any]) -> None:
    """A drift of 0.5 stays within verl's clamps: of log-ratios at 20, and of its k3 estimate at 10."""
    c = case(4, drift=0.5, groups=4, size=8, longest=BUDGET)
    for mine, theirs in zip(*of_both(c, spec, of_verl), strict=True):
        close(mine, theirs)


def test_gmpo_is_geo_mean_with_one_micro_batch(of_both: Callable[..., Any]) -> None:
    """verl averages over the responses of a micro-batch and adds these means up."""
    c = case(4, groups=4, size=8, longest=BUDGET)
    of_verl = {MODE: "geo_mean", **clips(0.4, 0.4)}
    for micro, micro_batches in ((8, 1), (4, 2), (2, 4)):
        for mine, theirs in zip(*of_both(c, "gmpo", of_verl, micro=micro), strict=True):
            torch.testing.assert_close(micro_batches * mine, theirs, rtol=1e-7, atol=1e-9)


def test_a_constant_denominator_of_verl_depends_on_the_split_without_its_value(of_both: Callable[..., Any]) -> None:
    """Without `loss_scale_factor` it divides the loss of a micro-batch by the longest response in it."""
    c = case(4, groups=4, size=8, longest=BUDGET)
    by_split = [
        of_both(c, "grpo(normalise=constant)", {DENOMINATOR: "seq-mean-token-sum-norm"}, micro=micro)
        for micro in (8, 2)
    ]
    for in_one, in_four in zip(*(mine for mine, _ in by_split), strict=True):
        close(in_one, in_four)
    assert any((in_one - in_four).abs().max() > 1e-4 for in_one, in_four in zip(*(x for _, x in by_split), strict=True))


def test_dapo_is_verls_with_its_overlong_reward(of_both: Callable[..., Any]) -> None:
    c = case(4, groups=4, size=8, longest=10)
    verdicts = iter(c.batch.rewards_B.tolist())
    overlong = {"enable": True, "len": 2, "penalty_factor": 0.5, "log": False}
    config = OmegaConf.create({"reward": {"reward_kwargs": {"overlong_buffer_cfg": overlong, "max_resp_len": 10}}})
    manager = DAPORewardManager(config, Words(), compute_score=lambda **_: next(verdicts))

    def score(length: int) -> float:
        columns = {"responses": torch.zeros(1, length), "attention_mask": torch.ones(1, 1 + length).long()}
        named = {"data_source": np.array(["x"]), "reward_model": np.array([{"ground_truth": ""}])}
        one = DataProto(TensorDict(columns, batch_size=1), named)
        return float(manager.loop.run_until_complete(manager.run_single(one))["reward_score"])

    rewards = [score(length) for length in c.batch.lengths_B.tolist()]
    assert min(rewards) < 0
    rewards_B = torch.tensor(rewards, dtype=torch.float64)

    def reward_as_verl(run: Run) -> None:
        for key, row in zip(run.batch.keys, run.order, strict=True):
            run.queue.fields[key]["rm_scores"][-1] = rewards_B[row]

    of_verl = {**clips(0.2, 0.28), ACTOR + "clip_ratio_c": 10.0}
    for mine, theirs in zip(*of_both(c, "dapo", of_verl, adapt=reward_as_verl, budget=10), strict=True):
        close(mine, theirs)


class Words:
    """A tokenizer for a reward that reads no text."""

    def decode(self, tokens: Tensor, skip_special_tokens: bool) -> str:
        return ""


# Selections: verl's are of one micro-batch of the present policy, ours of the rollout batch before the update


class Shifted(Case):
    """A case whose policy has moved by the same log-ratio at each token, which leaves all covariances alone."""

    def current(self, part: TokenBatch | None = None) -> TokenStats:
        stats = super().current(part)
        return dataclasses.replace(stats, logp=stats.logp + 0.1)


@pytest.mark.parametrize(
    ("spec", "of_verl"),
    [
        (
            "grpo(clip_low=1, clip_high=1, dual_clip=null)+clip_cov(fraction=1)",
            {MODE: "clip_cov", ACTOR + "policy_loss.clip_cov_ratio": 1.0, **clips(1, 1)},
        ),
        (
            "grpo(clip_low=1, clip_high=1e9, dual_clip=null)+kl_cov(fraction=0.2, coefficient=0.3)",
            {MODE: "kl_cov", ACTOR + "policy_loss.kl_cov_ratio": 0.2, ACTOR + "policy_loss.ppo_kl_coef": 0.3},
        ),
    ],
)
def test_a_selection_by_covariance_is_verls_in_one_micro_batch(
    spec: str, of_verl: Mapping[str, Any], of_both: Callable[..., Any]
) -> None:
    """`fraction=1` drops all tokens within the bounds of Clip-Cov; of fewer, verl's draw has no seed."""
    c = Shifted(**vars(case(4, drift=0, groups=4, size=8, longest=BUDGET)))
    (mine,), (theirs,) = of_both(c, spec, of_verl, updates=1, ranks=1, micro=32)
    close(mine, theirs)
    (plain,) = direct(c, spec.partition("+")[0], [*range(32)], [[*range(32)]])
    assert (plain - mine).abs().max() > 1e-6  # some tokens were selected
    _, (in_parts,) = of_both(c, spec, of_verl, updates=1, ranks=1, micro=4)
    assert (in_parts - mine).abs().max() > 1e-6


# Advantages that differ by a factor


def factor_of(mine: Tensor, theirs: Tensor) -> float:
    """Return the number that makes our gradient verl's; fail if none does."""
    factor = (theirs.norm() / mine.norm()).item()
    torch.testing.assert_close(factor * mine, theirs, rtol=1e-7, atol=1e-9)
    return factor


@pytest.mark.parametrize(("spec", "estimator"), [("reinforce_pp", "reinforce_plus_plus_baseline"), ("ppo", "gae")])
def test_whitened_advantages_differ_by_the_variance_with_n_less_one(
    spec: str, estimator: str, of_both: Callable[..., Any]
) -> None:
    c = case(4, groups=4, size=8, longest=BUDGET)
    tokens = int(c.batch.lengths_B.sum())
    for mine, theirs in zip(*of_both(c, spec, {ESTIMATOR: estimator}), strict=True):
        assert factor_of(mine, theirs) == pytest.approx(((tokens - 1) / tokens) ** 0.5, rel=1e-6)


def test_gpg_differs_by_its_alpha(of_both: Callable[..., Any]) -> None:
    c = case(4, groups=4, size=8, longest=BUDGET)
    rewards_PG = c.batch.rewards_B.view(4, 8)
    with_signal = int((rewards_PG.std(1) > 0).sum())
    with_reward = int(rewards_PG.count_nonzero())
    ours, of_verl = 4 / with_signal, 32 / with_reward
    assert of_verl > 2 * ours
    for mine, theirs in zip(*of_both(c, "gpg", {ESTIMATOR: "gpg", MODE: "gpg"}), strict=True):
        assert factor_of(mine, theirs) == pytest.approx(of_verl / ours, rel=1e-6)  # verl has alpha in float32


def test_otb_has_the_advantages_of_verl() -> None:
    """verl's trainer gives its estimator no sum of p², so this calls the function."""
    c = case(4, groups=4, size=8, longest=BUDGET)
    groups = [row // 8 for row in range(32)]
    mask_BT = mask_of(c)
    assert c.old.sum_p2 is not None
    assert c.old.sum_p2_logp is not None
    sums: dict[str, Any] = {"sum_p2": padded(c.old.sum_p2, c), "sum_p2_logp": padded(c.old.sum_p2_logp, c)}
    signal = entrobench.Method("otb").signal(padded(c.old.logp, c), c.batch.rewards_B, groups, mask=mask_BT, **sums)
    last_B = c.batch.lengths_B - 1
    rewards_BT = torch.zeros(mask_BT.shape, dtype=torch.float64)
    rewards_BT[torch.arange(32), last_B] = c.batch.rewards_B
    theirs, _ = core_algos.compute_optimal_token_baseline_advantage(
        token_level_rewards=rewards_BT,
        response_mask=mask_BT.long(),
        index=np.array(groups),
        old_log_probs=padded(c.old.logp, c),
        sum_pi_squared=sums["sum_p2"],
    )
    close(signal.advantages, theirs)
    assert theirs.abs().max() > 0.1


def test_the_critic_of_ppo_learns_by_the_value_loss_of_verl() -> None:
    c = case(4, groups=4, size=8, longest=BUDGET)
    assert c.old.values is not None
    mask_BT = mask_of(c)
    values_BT = padded(c.old.values, c)
    groups = [row // 8 for row in range(32)]
    method = entrobench.Method("ppo")
    signal = method.signal(padded(c.old.logp, c), c.batch.rewards_B, groups, mask=mask_BT, values=values_BT)
    assert signal.returns is not None
    present_BT = (0.9 * signal.returns + 0.1 * values_BT).requires_grad_()
    theirs, clipped = core_algos.compute_value_loss(
        present_BT, signal.returns, values_BT, mask_BT.long(), cliprange_value=0.5
    )
    assert 0 < clipped < 1
    slopes = [torch.autograd.grad(x, present_BT)[0] for x in (method.value_loss(signal, present_BT), theirs)]
    close(slopes[0], slopes[1])


# Signatures and names


def test_a_workers_loss_takes_the_arguments_of_verls() -> None:
    given = list(inspect.signature(door.MethodLoss.__call__).parameters)
    expected = list(inspect.signature(ppo_loss).parameters)
    assert given[1:] == expected[1:]  # after self, and after the configuration that verl binds


def test_every_loss_and_advantage_of_verl_is_compared_or_listed() -> None:
    names = {*core_algos.POLICY_LOSS_REGISTRY, *core_algos.ADV_ESTIMATOR_REGISTRY}
    compared = {"vanilla", "grpo", *COMPARED_APART}
    for _, of_verl in SAME:
        compared |= {of_verl[key] for key in (MODE, ESTIMATOR) if key in of_verl}
    assert names == compared | NO_METHOD
    assert not compared & NO_METHOD
    text = (REPOSITORY / "docs" / "ports.md").read_text()
    assert not [name for name in sorted(names) if f"`{name}`" not in text]
