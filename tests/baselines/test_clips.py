"""The masks of Clip_B and Clip_V against loops written from the formulas (loops.py)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import loops
import pytest
import torch
from ragged import Case, batch_of, case, rollouts
from registered import method

import baselines
from harness.methods.batch import TokenBatch, TokenStats


def weights(spec: str, c: Case) -> list[bool]:
    signal = method(spec).signal(c.old, c.batch, [c.batch])
    assert set(signal.weights_T.tolist()) <= {0.0, 1.0}
    return (signal.weights_T == 1).tolist()


CASES = [case(seed, groups=8, size=4, longest=12) for seed in range(5)]


@pytest.mark.parametrize("c", CASES, ids=range(5))
@pytest.mark.parametrize("mu", [0, 0.5, 1, 1.5])
def test_clip_b(c: Case, mu: float) -> None:
    s, a = loops.taken(c)[0], loops.group_advantages(c)
    assert weights(f"clip_b(mu={mu})", c) == loops.keep_clip_b(s, a, "reference", mu)
    assert weights(f"clip_b(mu={mu}, mode=paper)", c) == loops.keep_clip_b(s, a, "paper", mu)
    assert weights(f"clip_b(mu={mu}, mode=paper, mu_high=1)", c) == loops.keep_clip_b(s, a, "paper", mu, 1)


@pytest.mark.parametrize("c", CASES, ids=range(5))
@pytest.mark.parametrize("mu", [0, 0.5, 1, 1.5])
@pytest.mark.parametrize("max_frac", [1e-4, 0.013, 0.05, 1])
def test_clip_v(c: Case, mu: float, max_frac: float) -> None:
    s, n, a = *loops.taken(c), loops.group_advantages(c)
    expected = loops.keep_clip_v(s, n, a, "reference", mu, max_frac=max_frac)
    assert weights(f"clip_v(mu={mu}, max_frac={max_frac})", c) == expected
    assert weights(f"clip_v(mu={mu}, mode=paper)", c) == loops.keep_clip_v(s, n, a, "paper", mu)
    assert weights(f"clip_v(mu={mu}, mode=paper, mu_high=1)", c) == loops.keep_clip_v(s, n, a, "paper", mu, 1)


@pytest.mark.parametrize("c", CASES, ids=range(5))
@pytest.mark.parametrize("mu", [0.5, 1])
def test_clips_by_log_p_of_the_engine(c: Case, mu: float) -> None:
    """Compare with p (H + log p) by the math module, with p of the engine and H of the trainer."""
    logps = [logp for group in c.groups for rollout in group for logp in rollout.logp]
    batch = dataclasses.replace(c.batch, behaviour_logp_T=torch.tensor(logps, dtype=torch.float64))
    c = dataclasses.replace(c, batch=batch)
    entropies = [loops.entropy(loops.softmax(logits)) for logits in c.old_logits_TV.tolist()]
    s = [math.exp(logp) * (h + logp) for logp, h in zip(logps, entropies, strict=True)]
    n, a = loops.taken(c)[1], loops.group_advantages(c)
    assert weights(f"clip_b(mu={mu}, logp=engine)", c) == loops.keep_clip_b(s, a, "reference", mu)
    assert weights(f"clip_b(mu={mu}, logp=engine)", c) != weights(f"clip_b(mu={mu})", c)
    expected = loops.keep_clip_v(s, n, a, "reference", mu, max_frac=1)
    assert weights(f"clip_v(mu={mu}, logp=engine, max_frac=1)", c) == expected


def test_clips_read_the_engine_only_where_they_are_asked_to() -> None:
    plain, engine = (method(spec) for spec in ("clip_b", "clip_b(logp=engine)"))
    assert (plain.reads_sampler, engine.reads_sampler) == (False, True)
    assert "logp" not in plain.identity()[1], "ids from before there was a choice stay as they are"
    assert engine.identity()[1]["logp"] == "engine"


def test_clips_default_to_the_released_code() -> None:
    c = CASES[0]
    s, n, a = *loops.taken(c), loops.group_advantages(c)
    assert weights("clip_b", c) == loops.keep_clip_b(s, a, "reference", 2.5)
    assert weights("clip_v", c) == loops.keep_clip_v(s, n, a, "reference", 8.5, max_frac=1e-4)
    identity = method("clip_b+clip_v").identity()
    assert [(x["mode"], x["mu"]) for x in identity[1:]] == [("reference", 2.5), ("reference", 8.5)]
    assert identity[2]["max_frac"] == 1e-4


@pytest.mark.parametrize("mode", ["reference", "paper"])
@pytest.mark.parametrize("share", [0, 0.005, 0.02, 0.1, 1])
@pytest.mark.parametrize("c", CASES, ids=range(5))
def test_clips_meet_a_share(c: Case, share: float, mode: str) -> None:
    s, n = loops.taken(c)
    a = loops.group_advantages(c)
    deviations = {"clip_b": loops.centred(s), "clip_v": [x - y for x, y in zip(s, n, strict=True)]}
    for name, d in deviations.items():
        keep = weights(f"{name}(share={share}, mode={mode})", c)
        if share < 1:  # of all tokens, those on the safe side stay
            assert keep.count(False) == round(share * len(s))
        assert keep == loops.keep_share(d, a, mode, share)


def handmade(p: list[float], h: list[float], advantages: list[float]) -> tuple[TokenStats, torch.Tensor, TokenBatch]:
    """Make statistics without a distribution behind them: S* = p (h + log p), N = 0."""
    length = len(p)
    batch = batch_of(rollouts(0, 1, 1), [1.0])
    batch = dataclasses.replace(batch, lengths_B=torch.tensor([length]), index_T=torch.arange(length))
    p_T, h_T = torch.tensor(p, dtype=torch.float64), torch.tensor(h, dtype=torch.float64)
    zero_T = torch.zeros(length, dtype=torch.float64)
    return TokenStats(p_T.log(), h_T, zero_T, zero_T), torch.tensor(advantages, dtype=torch.float64), batch


@pytest.mark.parametrize("name", ["clip_b", "clip_v"])
def test_equal_tokens_are_treated_equally(name: str) -> None:
    """Expect no choice among equal tokens by their order: at the edge of a share, none of them is dropped."""
    p = [0.1, 0.1, 0.1, 0.2, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]
    stats, advantages_T, batch = handmade(p, [0.1] * 10, [-1.0] * 10)
    cls: Any = baselines.METHODS[name]
    # S* is lowest for p = 0.2, then for the three of p = 0.1.
    for limit, number in ((0.1, 1), (0.2, 1), (0.3, 1), (0.4, 4)):
        clips = [cls(share=limit), *([cls(mu=0.1, max_frac=limit)] if name == "clip_v" else [])]
        for clip in clips:
            keep_T = clip.weights(stats, advantages_T, batch)
            assert int((~keep_T).sum()) == number
            assert len(set(keep_T[:3].tolist())) == 1


@pytest.mark.parametrize("spec", ["clip_b(mu=0)", "clip_b(mode=paper, mu=0)", "clip_b(share=0.5)", "clip_v(mu=0)"])
def test_clips_keep_all_tokens_without_spread(spec: str) -> None:
    c = case(1)
    alike = {"logp": -1.0, "entropy": 0.7, "sum_p2": 0.2, "sum_p2_logp": -0.1}
    c.old = dataclasses.replace(c.old, **{k: torch.full_like(c.old.logp, x) for k, x in alike.items()})
    assert all(weights(spec, c))


@pytest.mark.parametrize("normalise", ["token", "sequence", "constant"])
def test_dropped_tokens_leave_the_denominator_only_on_demand(normalise: str) -> None:
    c = CASES[0]
    spec = f"grpo(normalise={normalise})+clip_b(mu=0.5"
    ours, theirs = (
        method(f"{spec}, reference_denominator={flag})").signal(c.old, c.batch, [c.batch]) for flag in ("false", "true")
    )
    keep, tokens = ours.weights_T.tolist(), len(ours.weights_T)
    assert torch.equal(ours.weights_T, theirs.weights_T)
    assert torch.equal(ours.term_scale_T, theirs.term_scale_T)
    assert torch.equal(ours.scale_T, ours.term_scale_T)
    spans = loops.responses(c)
    for span in spans:
        for t in span:
            kept = sum(keep[u] for u in span)
            full, short = {
                "token": (tokens, sum(keep)),
                "sequence": (len(spans) * len(span), len(spans) * max(kept, 1)),
                "constant": (len(spans) * c.batch.budget,) * 2,
            }[normalise]
            assert ours.scale_T[t].item() == pytest.approx(1 / full)
            assert theirs.scale_T[t].item() == pytest.approx(keep[t] / short)
