"""The faults of tests/helpers/faults.py in the real vLLM: the proof catches each of them at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import build
from transformers import PreTrainedModel

pytest.importorskip("vllm", reason="make test-vllm runs it")

import faults

from harness.base.errors import CellFailure
from harness.rollout.proof import check_engine_weights
from harness.rollout.vllm import VllmEngine

LR = 1e-6
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["qwen2-tied", "qwen3-untied"])
def test_a_whole_update_passes_and_each_fault_is_caught_at_once(name: str, dtype: str, tmp_path: Path) -> None:
    """All with one engine, since starting one takes seconds."""
    now = build(name, scale=0.1)
    now.save_pretrained(tmp_path)
    engine = VllmEngine(tmp_path, [3], "cpu", DTYPES[dtype], cache_gib=0.1)
    cases: list[tuple[Callable[[VllmEngine, PreTrainedModel, PreTrainedModel], None], str]]
    cases = [*faults.FAULTS.items()]
    if not now.config.tie_word_embeddings or keeps_a_packed_head(engine, now):
        cases.append((stale_head, faults.STALE_HEAD))
    for fault, sentence in cases:
        engine.load(now)
        before = faults.update(now, LR)
        fault(engine, before, now)
        for seed in range(5):
            with pytest.raises(CellFailure, match=sentence):
                check_engine_weights(engine, now, DTYPES[dtype], seed)
        engine.load(now)
        for seed in range(5):
            check_engine_weights(engine, now, DTYPES[dtype], seed)
    parameters = dict(now.named_parameters(remove_duplicate=False))
    held = engine.weights(dict.fromkeys(parameters, slice(None)))
    for key, weight in parameters.items():
        assert torch.equal(held[key].to(DTYPES[dtype]), weight.detach().to(DTYPES[dtype])), key


def keeps_a_packed_head(engine: VllmEngine, model: PreTrainedModel) -> bool:
    """Return whether vLLM multiplies by a copy of the head: in bfloat16 it does so only on CPUs with AVX-512."""
    hidden_1D = torch.ones(1, model.config.hidden_size, dtype=engine.dtype)

    def ignores_its_weight(module: Any) -> bool:
        head = module.lm_head
        return bool(head.cpu_linear(hidden_1D, torch.zeros_like(head.weight), None).any())

    [answer] = engine.llm.apply_model(ignores_its_weight)
    return answer


def stale_head(engine: VllmEngine, before: PreTrainedModel, now: PreTrainedModel) -> None:
    """As vLLM by itself leaves the packed head of a tied model; of an untied one, by the weights that are loaded."""
    if not now.config.tie_word_embeddings:
        faults.stale_head(engine, before, now)
        return
    [packed] = engine.llm.apply_model(lambda model: model.lm_head.cpu_linear)
    engine.load(now)
    engine.llm.apply_model(lambda model: setattr(model.lm_head, "cpu_linear", packed))
