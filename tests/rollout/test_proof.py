"""Faults in the weights of the real embedded engine, and their detection by the proof."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import faults
import pytest
import torch
import trainers
from tiny import MODELS, build
from trainers import records
from transformers import PreTrainedModel

from harness.base.errors import CellFailure
from harness.config import Correction, Mismatch
from harness.config.sections import Bounds
from harness.methods.batch import Rollout, TokenBatch
from harness.rollout import proof
from harness.rollout.embedded import EmbeddedEngine
from harness.rollout.proof import check_engine_weights, check_log_ratios
from harness.tokens.metrics import Stopwatch, of_mismatch

pytestmark = pytest.mark.slow

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LR = 1e-6


def synchronised(name: str, dtype: torch.dtype, lr: float) -> tuple[EmbeddedEngine, PreTrainedModel, PreTrainedModel]:
    """An engine with the weights from before an update, and the model before and after it."""
    model = build(name, scale=0.1)
    engine = EmbeddedEngine([3], "cpu", dtype)
    engine.load(model)
    return engine, faults.update(model, lr), model


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_check_engine_weights_after_an_update(name: str, dtype: str) -> None:
    engine, _, now = synchronised(name, DTYPES[dtype], LR)
    engine.load(now)
    for seed in range(20):
        check_engine_weights(engine, now, DTYPES[dtype], seed)
    parameters = dict(now.named_parameters(remove_duplicate=False))
    held = engine.weights(dict.fromkeys(parameters, slice(None)))
    for key, weight in parameters.items():
        assert torch.equal(held[key].to(DTYPES[dtype]), weight.detach().to(DTYPES[dtype])), key


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("name", MODELS)
def test_check_engine_weights_after_a_faulty_update(name: str, fault: faults.Fault, dtype: str) -> None:
    engine, before, now = synchronised(name, DTYPES[dtype], LR)
    fault(engine, before, now)
    for seed in range(20):
        with pytest.raises(CellFailure, match=faults.FAULTS[fault]):
            check_engine_weights(engine, now, DTYPES[dtype], seed)


@pytest.mark.parametrize("name", MODELS)
def test_check_engine_weights_with_a_stale_head(name: str) -> None:
    engine, before, now = synchronised(name, torch.float32, LR)
    if name.endswith("-untied"):
        faults.stale_head(engine, before, now)
    else:  # as of an engine that keeps a copy of it
        engine.load(now)
        engine.head = before.lm_head.weight.detach()
    for seed in range(20):
        with pytest.raises(CellFailure, match=faults.STALE_HEAD):
            check_engine_weights(engine, now, torch.float32, seed)


def test_columns_cover_a_parameter_and_depend_on_the_seed_alone() -> None:
    model = build("qwen2-tied", scale=0.1)
    engine = EmbeddedEngine([3])
    engine.load(model)
    with mock.patch.object(engine, "weights", wraps=engine.weights) as compared:
        for seed in [*range(300), 7]:
            check_engine_weights(engine, model, torch.float32, seed)
    asked = [call.args[0] for call in compared.call_args_list]
    assert asked.pop() == asked[7]
    for name, weight in model.named_parameters(remove_duplicate=False):
        seen = {column for columns in asked for column in range(weight.shape[-1])[columns[name]]}
        assert seen == set(range(weight.shape[-1])), name
        width = proof.WIDTH if weight.dim() > 1 else len(weight)
        assert {len(range(weight.shape[-1])[columns[name]]) for columns in asked} == {width}, name
    assert "lm_head.weight" in asked[0], "tied or not, the head is asked for"


# Log-probabilities


@pytest.mark.parametrize("key", ["mean", "p99", "max"])
@pytest.mark.parametrize("value", [0.02, math.nan, math.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_check_log_ratios_bounds(dtype: str, key: str, value: float) -> None:
    computed, allowed = getattr(torch, dtype), Mismatch(**{dtype: Bounds(mean=0.01, p99=0.01, max=0.01)})
    mismatch = {"mismatch/mean": 0.01, "mismatch/p99": 0.01, "mismatch/max": 0.01}
    check_log_ratios(mismatch, allowed, computed)
    mismatch[f"mismatch/{key}"] = value
    told = rf"mismatch/{key} is .*, and mismatch.{dtype}.{key} allows 0.01: .*likely"
    with pytest.raises(CellFailure, match=told) as failure:
        check_log_ratios(mismatch, allowed, computed)
    assert ("train.dtype=float32 ends it" in str(failure.value)) == (dtype == "bfloat16")
    check_log_ratios(mismatch, Mismatch(Bounds(), Bounds()), computed)


def test_check_log_ratios_of_rare_tokens_in_bfloat16() -> None:
    """Four of 400 tokens far off: what rounding leaves of a policy that is nearly certain."""
    engine = torch.tensor([-0.01] * 396 + [-9.0] * 4)
    groups = [[Rollout([1], [2] * 400, engine.tolist(), True)]]
    batch = TokenBatch.of(groups, [0.0], 400, "cpu")
    off = torch.tensor([0.01] * 396 + [0.9, -0.9, 1.2, -0.7])
    check_log_ratios(of_mismatch(batch, engine + off, Correction()), Mismatch(), torch.bfloat16)
    with pytest.raises(CellFailure, match=r"mismatch/mean is 0\.[12]"):
        check_log_ratios(of_mismatch(batch, engine + 10 * off, Correction()), Mismatch(), torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_check_log_ratios_of_a_sound_engine(dtype: str, tmp_path: Path) -> None:
    trainer = trainers.build(tmp_path, "grpo", f"train.dtype={dtype}")
    bounds = getattr(trainer.config.mismatch, dtype)
    for step in (1, 2, 3):
        record = trainer.train_step(step, Stopwatch())
        assert all(record[f"mismatch/{key}"] < bound / 3 for key, bound in vars(bounds).items() if bound)


# In training


def test_train_step_with_a_stale_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainers.build(tmp_path, "grpo", f"train.lr={LR}")
    arrives, loads = trainer.engine.load, []

    def load(model: PreTrainedModel) -> None:
        loads.append(model)
        if len(loads) != 3:  # before training, after step 1, after step 2
            arrives(model)

    monkeypatch.setattr(trainer.engine, "load", load)
    with pytest.raises(CellFailure, match="the load was skipped"):
        trainer.run(lambda step: None)
    assert [record["step"] for record in records(tmp_path)] == [0, 1]


@pytest.mark.parametrize(
    ("lag", "dtype", "temperature"), [(0, "float32", 1.05), (1, "float32", 1.05), (0, "bfloat16", 1.5)]
)
def test_train_step_with_another_engine(
    lag: int, dtype: str, temperature: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainers.build(tmp_path, "grpo", f"rollout.lag={lag}", f"train.dtype={dtype}")
    plain: Callable[..., list[list[Rollout]]] = trainer.engine.generate

    def warmer(prompts: Sequence[Sequence[int]], n: int, **settings: Any) -> list[list[Rollout]]:
        return plain(prompts, n, **{**settings, "temperature": temperature})

    monkeypatch.setattr(trainer.engine, "generate", warmer)
    before = [p.detach().clone() for p in trainer.policy.module.parameters()]
    with pytest.raises(CellFailure, match=rf"mismatch/(mean|p99) is 0\.\d+, and mismatch.{dtype}.\1 allows 0\.\d+"):
        trainer.train_step(1, Stopwatch())
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.policy.module.parameters(), strict=True))
