"""The importance correction against plain loops in float64, and the numbers that it must not change."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import loops
import pytest
import torch
from loops import Oracle, group_advantages, responses
from ragged import Case, case
from trainers import build, same, weights

import baselines
from harness import config
from harness.base.errors import UserError
from harness.config import Correction
from harness.methods.batch import Rollout, TokenBatch
from harness.methods.composition import Method, Signal
from harness.tokens import metrics
from harness.tokens.correction import correct, correction_factors
from harness.tokens.metrics import Stopwatch

pytestmark = pytest.mark.slow

SETTINGS = [
    Correction(kind, level, low, high)
    for kind, low in (("truncated", 0.0), ("masked", 0.0), ("masked", 0.6))
    for level in ("token", "sequence")
    for high in (1.3, 2.0)
]


def drifted(seed: int) -> Case:
    """Make a case whose engine gives other log-probabilities than the trainer."""
    made = case(seed)
    generator = torch.Generator().manual_seed(seed + 100)
    noise_T = 0.4 * torch.randn(len(made.old.logp), dtype=torch.float64, generator=generator)
    batch = dataclasses.replace(made.batch, behaviour_logp_T=made.old.logp + noise_T)
    return dataclasses.replace(made, batch=batch)


def log_ratios(made: Case) -> list[float]:
    pairs = zip(made.old.logp.tolist(), made.batch.behaviour_logp_T.tolist(), strict=True)
    return [trainer - engine for trainer, engine in pairs]


def ratios_of_sequences(made: Case) -> list[float]:
    differences = log_ratios(made)
    return [math.exp(math.fsum(differences[t] for t in span)) for span in responses(made)]


def expected(made: Case, given: Correction) -> list[float]:
    def bounded(ratio: float) -> float:
        if given.kind == "truncated":
            return min(ratio, given.high)
        return ratio if given.low <= ratio <= given.high else 0.0

    if given.level == "token":
        return [bounded(math.exp(x)) for x in log_ratios(made)]
    spread = zip(ratios_of_sequences(made), responses(made), strict=True)
    return [bounded(ratio) for ratio, span in spread for _ in span]


def signal_of(spec: str, made: Case) -> tuple[Method, Signal, list[TokenBatch]]:
    method = Method.of(spec, baselines.METHODS)
    minibatches = list(made.batch.split(2))
    return method, method.signal(made.old, made.batch, minibatches), minibatches


@pytest.mark.parametrize("given", SETTINGS, ids=str)
def test_factors_are_those_of_the_loops(given: Correction) -> None:
    seen = set()
    for seed in range(5):
        made = drifted(seed)
        actual_T = correction_factors(made.batch, made.old.logp, given)
        wanted_T = torch.tensor(expected(made, given), dtype=torch.float64)
        torch.testing.assert_close(actual_T, wanted_T, rtol=1e-12, atol=0)
        bound = given.high if given.kind == "truncated" else 0.0
        seen |= {value == bound for value in actual_T.tolist()}
    assert seen == {True, False}, "a bound that never or always holds would make this test empty"


@pytest.mark.parametrize("given", SETTINGS[::3], ids=str)
@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        ("grpo", {}),
        ("grpo(normalise=sequence,kl_coef=0.3)", {"normalise": "sequence", "kl": loops.kl(0.3)}),
        ("grpo(normalise=constant)+entropy_bonus(coefficient=0.2)", {"normalise": "constant", "bonus": 0.2}),
    ],
)
def test_correct_multiplies_gradients_only(spec: str, settings: dict[str, object], given: Correction) -> None:
    made = drifted(3)
    method, plain, minibatches = signal_of(spec, made)
    signal = correct(plain, made.batch, given)
    oracle = Oracle(group_advantages(made), keep=expected(made, given), **settings)  # type: ignore[arg-type]
    for part in minibatches:
        made.logits_TV.grad = None
        rows = [row for row, group in enumerate(made.batch.groups_B.tolist()) if group in part.groups_B.tolist()]
        wanted, gradient = oracle.loss(made, rows)
        loss = method.loss(made.current(part), signal.at(part.index_T), part)
        loss.backward()
        assert loss.item() == pytest.approx(wanted, rel=1e-9, abs=1e-12)
        assert made.logits_TV.grad is not None
        for t, slopes in gradient.items():
            wanted_V = torch.tensor(slopes, dtype=torch.float64)
            torch.testing.assert_close(made.logits_TV.grad[t], wanted_V, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    "spec", ["clip_b(share=0.1)", "clip_v(share=0.1)", "clip_b(share=0.1,reference_denominator=true)"]
)
@pytest.mark.parametrize("given", SETTINGS[1::4], ids=str)
def test_correct_after_the_signal(spec: str, given: Correction) -> None:
    made = drifted(1)
    _, plain, _ = signal_of(spec, made)
    signal = correct(plain, made.batch, given)
    for name in ("advantages_T", "scale_T", "term_scale_T"):
        assert torch.equal(getattr(signal, name), getattr(plain, name))
    assert (plain.weights_T == 0).any()
    assert not torch.equal(signal.weights_T, plain.weights_T)
    assert (signal.weights_T[plain.weights_T == 0] == 0).all(), "what a method drops stays dropped"
    wanted = torch.tensor(expected(made, given), dtype=torch.float64)[plain.weights_T != 0]
    torch.testing.assert_close(signal.weights_T[plain.weights_T != 0], wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_correct_without_a_mismatch(dtype: torch.dtype) -> None:
    made = case(2)
    old = dataclasses.replace(made.old, logp=made.old.logp.to(dtype))
    batch = dataclasses.replace(made.batch, behaviour_logp_T=old.logp.clone())
    method = Method.of("clip_b(share=0.1)", baselines.METHODS)
    plain = method.signal(old, batch, list(batch.split(2)))
    for given in SETTINGS:
        signal = correct(plain, batch, given)
        assert signal.weights_T.dtype == dtype
        assert torch.equal(signal.weights_T, plain.weights_T)


def test_train_step_with_a_correction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    actual = []
    for name, overrides in (("off", []), ("on", ["correction.kind=truncated"])):
        trainer = build(tmp_path / name, "grpo", *overrides, "mismatch.float32.p99=null", "mismatch.float32.max=null")
        plain = trainer.engine.generate

        def generate(*asked: Any, plain=plain, **given: Any) -> list[list[Rollout]]:  # type: ignore[no-untyped-def]
            actual = plain(*asked, **given)
            return [[dataclasses.replace(r, logp=[x - 0.5 for x in r.logp]) for r in group] for group in actual]

        monkeypatch.setattr(trainer.engine, "generate", generate)
        record = trainer.train_step(1, Stopwatch())
        actual.append((weights(trainer), record))
        assert record["mismatch/token_ratio_mean"] == pytest.approx(math.exp(0.5), abs=1e-4), "raw, whether corrected"
        assert record["weights/mean"] == 1.0, "the method's own weights"
    assert not same(actual[0][0], actual[1][0])


# What is logged


@pytest.mark.parametrize("given", [Correction(), SETTINGS[1], SETTINGS[-1]], ids=str)
def test_raw_ratios_are_those_of_the_loops(given: Correction) -> None:
    made = drifted(4)
    actual = metrics.of_mismatch(made.batch, made.old.logp, given)
    differences = log_ratios(made)
    by_level = {"token": [math.exp(x) for x in differences], "sequence": ratios_of_sequences(made)}
    sizes = sorted(map(abs, differences))
    wanted = {
        "mismatch/mean": math.fsum(sizes) / len(sizes),
        "mismatch/p99": next(x for i, x in enumerate(sizes, 1) if 100 * i >= 99 * len(sizes)),
        "mismatch/max": sizes[-1],
        "mismatch/k3": math.fsum(math.exp(x) - x - 1 for x in differences) / len(sizes),
        "mismatch/beyond": sum(not given.low <= r <= given.high for r in by_level[given.level])
        / len(by_level[given.level]),
    }
    for level, ratios in by_level.items():
        total, ordered = math.fsum(ratios), sorted(ratios)
        wanted[f"mismatch/{level}_ratio_mean"] = total / len(ratios)
        wanted[f"mismatch/{level}_ratio_p99"] = next(
            x for i, x in enumerate(ordered, 1) if 100 * i >= 99 * len(ordered)
        )
        wanted[f"mismatch/{level}_ratio_max"] = ordered[-1]
        wanted[f"mismatch/{level}_ess"] = total**2 / math.fsum(r * r for r in ratios) / len(ratios)
    assert actual == pytest.approx(wanted, rel=1e-10)
    assert 0 < actual["mismatch/beyond"] < 1


def test_correction_factors_of_huge_ratios() -> None:
    made = drifted(0)
    batch = dataclasses.replace(made.batch, behaviour_logp_T=made.old.logp - 1000.0)
    actual = metrics.of_mismatch(batch, made.old.logp, Correction())
    assert all(map(math.isfinite, actual.values()))
    assert actual["mismatch/max"] == pytest.approx(1000)
    assert set(correction_factors(batch, made.old.logp, Correction("truncated")).tolist()) == {2.0}
    assert set(correction_factors(batch, made.old.logp, Correction("masked")).tolist()) == {0.0}


# The configuration


def test_load_config_refuses_a_lower_bound_without_a_correction() -> None:
    with pytest.raises(UserError, match=r"correction\.low is 0.5, but kind=off has no lower bound"):
        config.load_config("smoke", ["correction.low=0.5"])
    config.load_config("smoke", ["correction.low=0.5", "axes.correction.kind=[off, masked]"])
    with pytest.raises(UserError, match=r"correction\.low is 0.5, but kind=truncated has no lower bound"):
        config.load_config("smoke", ["correction.low=0.5", "axes.correction.kind=[truncated, masked]"])
