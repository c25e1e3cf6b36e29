"""The study of which tokens move the entropy: it makes the updates of training, without some tokens' signal."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from known import known
from torch import Tensor

from harness import config
from harness.methods.batch import TokenBatch
from harness.theory.explain import batch_of, build_trainer, copy_from
from harness.tokens import dynamics
from harness.tokens.metrics import Stopwatch
from harness.train.trainer import Trainer
from harness.verify.pool import VerifierPool
from studies.laptop import tokens

SMALL = ["train.prompts=8", "train.group=8", "train.updates=2", "train.lr=1e-3", "train.warmup_steps=0", "seeds=[0]"]


def entropy(trainer: Trainer, batch: TokenBatch) -> Tensor:
    return known(trainer.policy.stats(batch).entropy).double()


def test_measure_batch(tmp_path: Path) -> None:
    """In the second step, with moments: nothing left out is training itself; left-out tokens are those of a control."""
    trainer = build_trainer(config.load_config("demo", SMALL), "grpo", str(tmp_path), VerifierPool())
    trainer.train_step(1, Stopwatch())
    batch = batch_of(trainer, 2)
    start = {name: x.clone() for name, x in trainer.policy.state().items()}
    measured = tokens.measure_batch(trainer, 2, batch, torch.Generator().manual_seed(0))
    state = trainer.policy.state()
    assert state.keys() == start.keys()
    assert all(torch.equal(x, start[name]) for name, x in state.items())
    assert measured["clip_b"]["share"] == pytest.approx(tokens.SHARE, abs=1 / len(batch.index_T))
    for name in (tokens.NEGATIVE, tokens.ANY):
        assert measured[name]["share"] == measured["clip_b"]["share"]

    for name, spec in {"clip_b": "grpo+clip_b(share=0.02)", tokens.NOTHING: "grpo"}.items():
        other = build_trainer(config.load_config("demo", SMALL), spec, str(tmp_path), VerifierPool())
        other.policy.load_state(start, partial(copy_from, start))
        other.synchronise(1)
        before_T = entropy(other, batch)
        other.train_step(2, Stopwatch())
        change_T = entropy(other, batch) - before_T
        assert measured[name]["without"] == pytest.approx(change_T.mean().item(), abs=1e-6)

    signal = trainer.method.signal(trainer.stats_before(batch, dynamics.NEEDS), batch, list(batch.split(2)))
    for name, draws in tokens.sets_of_tokens(signal, batch, torch.Generator().manual_seed(0)).items():
        there = [change for mask_T in draws for change in change_T[mask_T].tolist()]  # of GRPO, the last of the two
        assert measured[name]["there"] == pytest.approx(sum(there) / len(draws) / len(change_T), abs=1e-6)


def test_sets_of_tokens(tmp_path: Path) -> None:
    trainer = build_trainer(config.load_config("demo", SMALL), "grpo", str(tmp_path), VerifierPool())
    batch = batch_of(trainer, 1)
    signal = trainer.method.signal(trainer.stats_before(batch, dynamics.NEEDS), batch, list(batch.split(2)))
    sets = tokens.sets_of_tokens(signal, batch, torch.Generator().manual_seed(0))
    (dropped_T,) = sets["clip_b"]
    assert (signal.advantages_T[dropped_T] < 0).all()
    for name, allowed_T in {tokens.NEGATIVE: signal.advantages_T < 0, tokens.ANY: signal.advantages_T != 0}.items():
        assert len({tuple(mask_T.tolist()) for mask_T in sets[name]}) == tokens.DRAWS
        for mask_T in sets[name]:
            assert mask_T.sum() == dropped_T.sum()
            assert not (mask_T & ~allowed_T).any()
