"""Methods against TRL: its own trainer computes the loss, with the model's output from a test case."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from known import known
from ragged import Case, case
from registered import method
from torch import Tensor
from trl_trainers import BUDGET, sampling, spread, trainer_of

from harness.methods.batch import TokenBatch
from harness.methods.composition import Method

with pytest.MonkeyPatch.context() as patch:
    patch.setitem(sys.modules, "vllm", None)  # trl would take the folder tests/vllm for it
    trl: Any = pytest.importorskip("trl.trainer.grpo_trainer", reason="trl is not installed; the extra dev has it")
    gmpo: Any = pytest.importorskip("trl.experimental.gmpo")
    rewards: Any = pytest.importorskip("trl.rewards")

pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
RTOL, ATOL = 1e-9, 1e-12
# The soft penalty of dapo: share 0.2 of the budget, with the factor that goes with rewards of 0 and 1.
OVERLONG = {"reward_weights": [1.0, 0.5]}

# What makes the peer compute what a method does.
BNPO = {"loss_type": "bnpo"}
SEQUENCE_RATIO = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
SAME: list[tuple[str, dict[str, Any]]] = [
    ("grpo(normalise=sequence, dual_clip=null)", {"loss_type": "grpo"}),
    ("grpo(normalise=sequence)", {"loss_type": "grpo", "delta": 3.0}),
    ("grpo(dual_clip=null)", BNPO),
    ("grpo(clip_low=0.1, clip_high=0.4, dual_clip=null)", {**BNPO, "epsilon": 0.1, "epsilon_high": 0.4}),
    ("grpo(dual_clip=null, kl_coef=0.3, kl_estimator=k3)", {**BNPO, "beta": 0.3, "use_bias_correction_kl": False}),
    ("grpo(dual_clip=null)", {"loss_type": "dapo"}),
    ("dr_grpo", {"loss_type": "dr_grpo", "scale_rewards": "none"}),
    ("dapo", {"loss_type": "dapo", "epsilon_high": 0.28, "delta": 10.0, **OVERLONG}),
    ("cispo", {"loss_type": "cispo", "epsilon_high": 5.0}),
    ("cispo(bound=1.3)", {"loss_type": "cispo", "epsilon_high": 1.3}),
    (f"sapo(tau_negative={torch.tensor(1.05).item()})", {"loss_type": "sapo"}),  # the default, in single precision
    (
        "sapo(tau_positive=0.5, tau_negative=3)",
        {"loss_type": "sapo", "sapo_temperature_pos": 0.5, "sapo_temperature_neg": 3.0},
    ),
    ("gspo", {**SEQUENCE_RATIO, "epsilon": 3e-4, "epsilon_high": 4e-4}),
    (
        "gspo(clip_low=0.3, clip_high=0.2, dual_clip=1.4)",
        {**SEQUENCE_RATIO, "epsilon": 0.3, "epsilon_high": 0.2, "delta": 1.4},
    ),
    ("vespo", {"loss_type": "vespo"}),
    (
        "vespo(k_positive=0.125, lambda_positive=0.25, k_negative=0.375, lambda_negative=0.5)",
        {"loss_type": "vespo", "vespo_k_pos": 0.125, "vespo_lambda_pos": 0.25}
        | {"vespo_k_neg": 0.375, "vespo_lambda_neg": 0.5},
    ),
    ("gmpo", {"gmpo": True}),
    ("grpo(dual_clip=null)+entropy_bonus(coefficient=0.2)", {**BNPO, "entropy_coef": 0.2}),
    ("grpo(dual_clip=null)+sequence_mask(delta=0.3)", {**BNPO, "off_policy_mask_threshold": 0.3}),
]
IDS = [f"{spec}-{options.get('loss_type', 'gmpo')}" for spec, options in SAME]


@dataclass
class Said:
    """Holds what a model returns to the peer."""

    log_probs: Tensor
    entropy: Tensor


class Given(torch.nn.Module):
    """Stands for the model: says of the responses of `part` what the case says of them."""

    def __init__(self, case: Case, part: TokenBatch) -> None:
        super().__init__()
        self.case, self.part = case, part

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, fused_lm_head: bool) -> Said:
        asked_BT, stats = labels != -100, self.case.current(self.part)
        assert labels[asked_BT].tolist() == self.case.targets_T[self.part.index_T].tolist()
        return Said(spread(stats.logp, asked_BT), spread(known(stats.entropy), asked_BT))


def peer(c: Case, options: dict[str, Any], folder: Path, parts: int = 1, steps: int = 1) -> Any:
    """Make a trainer of trl that is given the case's responses, `parts` of them at a time, and `steps` updates."""
    options = dict(options)
    kind, config = (
        (gmpo.GMPOTrainer, gmpo.GMPOConfig) if options.pop("gmpo", False) else (trl.GRPOTrainer, trl.GRPOConfig)
    )

    def right(completions: Sequence[str], **_: Any) -> list[float]:
        return c.batch.rewards_B.tolist()

    beta = options.pop("beta", 0.0)
    overlong = [rewards.get_soft_overlong_punishment(BUDGET, 0.2 * BUDGET)] if "reward_weights" in options else []
    made = trainer_of(
        "",
        folder,
        reward=[right, *overlong],
        kind=kind,
        config=config,
        per_device_train_batch_size=len(c.batch) // parts,
        gradient_accumulation_steps=parts // steps,
        steps_per_generation=parts,
        num_generations=len(c.groups[0]),
        train_dataset=Dataset.from_list([{"prompt": str(i)} for i in range(len(c.groups))]),
        rollout_func=sampling(c),
        **options,
    )
    made.beta, made.ref_model = beta, made.model  # by itself it would load the reference model from a hub
    made.model.train()
    made.current_gradient_accumulation_steps = parts // steps
    return made


def scored(trainer: Any, c: Case) -> dict[str, Any]:
    """Return the peer's own input of a loss: padded responses, and advantages of the rewards."""
    asked = [{"prompt": str(i)} for i, group in enumerate(c.groups) for _ in group]
    inputs: dict[str, Any] = trainer._generate_and_score_completions(asked)
    return inputs


def lost(trainer: Any, inputs: dict[str, Any], c: Case, advantages_T: Tensor, part: TokenBatch) -> Tensor:
    """Return the peer's loss of some responses, in double, for given advantages and old policy."""
    rows = c.batch.sequence_T[part.index_T].unique()
    taken = {name: x[rows] if x.ndim else x for name, x in inputs.items()}
    mask_BT = taken["completion_mask"]
    old_BT = spread(c.old.logp[part.index_T], mask_BT)
    taken |= {
        "advantages": advantages_T[c.batch.starts_B[rows]],
        "old_per_token_logps": old_BT,
        "sampling_per_token_logps": old_BT,
        "ref_per_token_logps": spread(known(c.old.ref_logp)[part.index_T], mask_BT),
    }
    loss: Tensor = trainer.compute_loss(Given(c, part), taken)
    return loss


def crowded(seed: int = 2, drift: float = 1.0) -> Case:
    """Make a batch in which responses come near the limit of their length."""
    c = case(seed, groups=6, size=4, drift=drift, longest=BUDGET)
    c.batch = dataclasses.replace(c.batch, budget=BUDGET)
    return c


def ours(m: Method, c: Case, minibatches: list[TokenBatch]) -> list[Tensor]:
    """Return our loss of each mini-batch."""
    signal = m.signal(c.old, c.batch, minibatches)
    return [m.loss(c.current(part), signal.at(part.index_T), part) for part in minibatches]


def advantages(m: Method, c: Case) -> Tensor:
    return m.signal(c.old, c.batch, [c.batch]).advantages_T


def losses(trainer: Any, m: Method, c: Case) -> tuple[Tensor, Tensor]:
    """Return our loss of the batch and the peer's."""
    (mine,) = ours(m, c, [c.batch])
    return mine, lost(trainer, scored(trainer, c), c, advantages(m, c), c.batch)


def gradient(loss: Tensor, c: Case) -> Tensor:
    """Return the slope of a loss by the logits of all tokens."""
    (slope_TV,) = torch.autograd.grad(loss, c.logits_TV)
    return slope_TV


@pytest.mark.parametrize(("spec", "options"), SAME, ids=IDS)
def test_loss_and_gradient_are_those_of_the_peer(spec: str, options: dict[str, Any], tmp_path: Path) -> None:
    c, m = crowded(), method(spec)
    mine, theirs = losses(peer(c, options, tmp_path), m, c)
    assert mine.item() == pytest.approx(theirs.item(), rel=RTOL, abs=ATOL)
    slope_TV = gradient(mine, c)
    assert slope_TV.abs().max() > 1e-3
    torch.testing.assert_close(slope_TV, gradient(theirs, c), rtol=RTOL, atol=ATOL)


@pytest.mark.parametrize(
    ("spec", "options", "epsilon"),
    [
        ("grpo", {}, 1e-4),
        ("dr_grpo", {"scale_rewards": "none"}, 1e-6),
        ("lite_ppo", {"scale_rewards": "batch"}, 1e-4),
        ("dapo", OVERLONG, 1e-4),
    ],
)
def test_advantages_but_for_the_epsilon(spec: str, options: dict[str, Any], epsilon: float, tmp_path: Path) -> None:
    c, m = crowded(), method(spec)
    theirs_B = scored(peer(c, options, tmp_path), c)["advantages"].double()
    rewards_PG = c.batch.grouped(m.rewarded(c.old, c.batch).rewards_B)
    deviation_PG = rewards_PG.std() if spec == "lite_ppo" else rewards_PG.std(1, keepdim=True)
    factor_PG = ((deviation_PG + epsilon) / (deviation_PG + 1e-6)).expand_as(rewards_PG)
    mine_T = advantages(m, c)
    torch.testing.assert_close(mine_T[c.batch.starts_B], theirs_B * factor_PG.flatten(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", ["grpo(dual_clip=null)", "grpo(clip_high=0.4, dual_clip=null)"])
def test_clipped_shares_equal_the_peers(spec: str, tmp_path: Path) -> None:
    c, m = crowded(), method(spec)
    trainer = peer(c, {**BNPO, "epsilon_high": 0.4 if "0.4" in spec else 0.2}, tmp_path)
    signal = m.signal(c.old, c.batch, [c.batch])
    lost(trainer, scored(trainer, c), c, signal.advantages_T, c.batch)
    touched = m.touched(c.current(), signal, c.batch)
    for ours_name, theirs_name in (("clipped_low", "clip_ratio/low_mean"), ("clipped_high", "clip_ratio/high_mean")):
        (share,) = trainer._metrics["train"][theirs_name]
        assert 0 < share == pytest.approx(touched[ours_name].double().mean().item(), rel=1e-6)


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        # Later the peer takes the entropy of the present policy; a control here that of the policy before the update.
        ("grpo(dual_clip=null)+top_entropy", {"top_entropy_quantile": 0.2}),
        # The peer's default is k3 times the ratio; at ratio 1 its gradient is that of k2, the default here.
        ("grpo(dual_clip=null, kl_coef=0.3)", {"beta": 0.3}),
    ],
    ids=["top_entropy", "kl"],
)
def test_gradient_before_the_policy_has_moved(spec: str, options: dict[str, Any], tmp_path: Path) -> None:
    c, m = crowded(drift=0), method(spec)
    mine, theirs = losses(peer(c, {**BNPO, **options}, tmp_path), m, c)
    torch.testing.assert_close(gradient(mine, c), gradient(theirs, c), rtol=RTOL, atol=ATOL)


def test_adaptive_entropy_equals_the_peers(tmp_path: Path) -> None:
    m = method("grpo(dual_clip=null)+adaptive_entropy(target=1.1, delta=0.02, highest=0.03, start=0.01)")
    adaptive = {"use_adaptive_entropy": True, "entropy_target": 1.1, "entropy_coef_delta": 0.02}
    trainer = peer(crowded(), {**BNPO, **adaptive, "entropy_coef": 0.01, "entropy_coef_max": 0.03}, tmp_path)
    coefficients = []
    for seed in range(6):
        c = crowded(seed, drift=0)
        (mine,) = ours(m, c, [c.batch])
        theirs = lost(trainer, scored(peer(c, BNPO, tmp_path), c), c, advantages(m, c), c.batch)
        torch.testing.assert_close(gradient(mine, c), gradient(theirs, c), rtol=RTOL, atol=ATOL)
        m.observe({"entropy/mean": known(c.old.entropy).mean().item()})
        coefficients.append(trainer.entropy_coef)
        assert m.state()["adaptive_entropy"]["coefficient"] == pytest.approx(trainer.entropy_coef)
    assert len(set(coefficients)) > 2


@pytest.mark.parametrize(
    ("spec", "options"),
    [SAME[0], ("dr_grpo", SAME[6][1]), ("sapo(tau_negative=3)", {"loss_type": "sapo", "sapo_temperature_neg": 3.0})],
)
def test_loss_of_micro_batches_as_a_mean_over_responses(spec: str, options: dict[str, Any], tmp_path: Path) -> None:
    c, m = crowded(), method(spec)
    trainer = peer(c, options, tmp_path, parts=3)
    inputs = scored(trainer, c)
    theirs = [lost(trainer, inputs, c, advantages(m, c), part) for part in c.batch.split(3)]
    (mine,) = ours(m, c, [c.batch])
    assert mine.item() == pytest.approx(torch.stack(theirs).sum().item(), rel=RTOL, abs=ATOL)


def test_bnpo_weighs_micro_batches_alike_however_many_tokens_they_have(tmp_path: Path) -> None:
    """Here they add up to the mean over the tokens of the mini-batch."""
    c, m = crowded(), method("grpo(dual_clip=null)")
    trainer, parts = peer(c, BNPO, tmp_path, parts=3), list(c.batch.split(3))
    inputs = scored(trainer, c)
    theirs = [lost(trainer, inputs, c, advantages(m, c), part).item() for part in parts]
    of_each = [loss.item() for loss in ours(m, c, parts)]  # as mini-batches of their own
    assert theirs == pytest.approx([loss / 3 for loss in of_each], rel=RTOL, abs=ATOL)
    (mine,) = ours(m, c, [c.batch])
    tokens = [len(part.index_T) for part in parts]
    weighed = [n * x for n, x in zip(tokens, of_each, strict=True)]
    assert mine.item() == pytest.approx(sum(weighed) / sum(tokens), rel=RTOL)
    assert abs(mine.item() - sum(theirs)) > 1e-3


@pytest.mark.parametrize("loss_type", ["dapo", "cispo", "vespo"])
def test_dapo_divides_each_update_by_the_tokens_of_a_mean_one(loss_type: str, tmp_path: Path) -> None:
    """Here each update is divided by its own tokens. The ratio of the two losses is known before the update."""
    specs = {"dapo": "grpo(dual_clip=null)", "cispo": "cispo", "vespo": "vespo"}
    c, m = crowded(), method(specs[loss_type])
    options = {"loss_type": loss_type, **({"epsilon_high": 5.0} if loss_type == "cispo" else {})}
    trainer, updates = peer(c, options, tmp_path, parts=2, steps=2), list(c.batch.split(2))
    inputs = scored(trainer, c)
    assert len({len(part.index_T) for part in updates}) == 2
    for part, mine in zip(updates, ours(m, c, updates), strict=True):
        theirs = lost(trainer, inputs, c, advantages(m, c), part)
        tokens, mean = len(part.index_T), len(c.batch.index_T) / 2
        assert theirs.item() * mean == pytest.approx(mine.item() * tokens, rel=RTOL, abs=ATOL)
