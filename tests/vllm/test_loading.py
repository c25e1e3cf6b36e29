"""Loading weights: exact after any number of updates, in another type; and what is refused.

Every test starts vLLM again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny import EOS, MODELS, OTHERS, PROMPTS, SIZES, build, engine_of, generate, randomize, tokens_of, worst_difference
from transformers import Qwen2Config, Qwen2ForCausalLM

from harness.base.errors import UserError
from harness.config import Hardware, Train
from harness.methods.batch import TokenBatch
from harness.rollout.choice import CPU_HEADS, VLLM_ARCHITECTURES
from harness.rollout.proof import check_engine_weights
from harness.rollout.vllm import VllmEngine
from harness.train.policy import Policy


@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_are_the_trainers_over_fifty_updates(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    model = build(name)
    engine = engine_of(model, tmp_path)
    assert worst_difference(model, generate(engine)) < 1e-3
    differences, seen = [], []
    for update in range(1, 51):
        randomize(model, update)
        engine.load(model)
        groups = engine.generate(PROMPTS[1:3], 2, seeds=[update, 0], temperature=0.8, max_new_tokens=6)
        differences.append(worst_difference(model, groups))
        seen.append(str(tokens_of(groups)))
    record_property("largest difference", max(differences))
    print(f"{name}: largest difference in log p over 50 updates {max(differences):.2e}")
    assert max(differences) < 1e-3
    assert len(set(seen)) == 50, "each update changed what is sampled"


@pytest.mark.parametrize("name", OTHERS)
def test_other_architectures_are_the_trainers(name: str, tmp_path: Path) -> None:
    model = build(name)
    engine = engine_of(model, tmp_path / "other")
    check_engine_weights(engine, model, torch.float32, 0)
    groups = generate(engine)
    assert worst_difference(model, groups) < 1e-3
    model.save_pretrained(tmp_path / "model")
    policy = Policy(tmp_path / "model", Train(), 0.8, "cpu", torch.float32, Hardware())
    batch = TokenBatch.of(groups, [0.0] * 24, 12, "cpu")
    assert batch.prompts_weigh
    assert (policy.stats(batch).logp - batch.behaviour_logp_T).abs().max() < 1e-3


def test_the_lists_of_what_runs_are_right() -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert {build(name).config.model_type for name in MODELS | OTHERS} == set(VLLM_ARCHITECTURES)
    assert list(CPU_HEADS) == CPUAttentionBackend.get_supported_head_sizes()


def test_half_precision_is_cast_and_close(tmp_path: Path) -> None:
    model = build("qwen2-tied")
    engine = engine_of(model, tmp_path, torch.bfloat16)
    found = worst_difference(model, generate(engine))
    assert 1e-4 < found < 0.6
    exact = build("qwen2-tied").to(torch.bfloat16)
    engine.load(exact)
    assert worst_difference(model, generate(engine)) == found, (
        "bfloat16 weights are those that float32 ones are cast to"
    )


def test_what_the_models_folder_says_of_sampling_does_not_count(tmp_path: Path) -> None:
    model = build("qwen2-tied")
    greedy = type(model)(model.config)
    greedy.generation_config.update(do_sample=True, top_k=1, temperature=0.1, eos_token_id=[EOS, *range(10, 80)])
    greedy.save_pretrained(tmp_path)
    engine = VllmEngine(tmp_path, [EOS], "cpu", torch.float32, cache_gib=0.1)
    engine.load(model)
    groups = generate(engine, n=30)
    assert worst_difference(model, groups) < 1e-3
    assert all(r.response[-1] == EOS if r.finished else len(r.response) == 12 for group in groups for r in group)
    assert len({tuple(r.response) for r in groups[0]}) > 20


def test_a_module_that_lacks_weights_is_named(tmp_path: Path) -> None:
    model = build("qwen2-tied")
    own = engine_of(model, tmp_path)
    del model.model.layers[1].mlp.down_proj
    with pytest.raises(AssertionError, match=r"no weights for .*layers\.1\.mlp\.down_proj\.weight"):
        own.load(model)


def test_logits_that_are_not_finite_are_named(tmp_path: Path) -> None:
    broken = build("qwen2-untied")
    engine = engine_of(broken, tmp_path)
    with torch.no_grad():
        broken.model.norm.weight[0] = torch.nan
    engine.load(broken)
    with pytest.raises(FloatingPointError, match="not finite"):
        generate(engine)


def test_what_cannot_run_here_is_one_sentence(tmp_path: Path) -> None:
    narrow = Qwen2ForCausalLM(Qwen2Config(**{**SIZES, "head_dim": 16}))
    narrow.save_pretrained(tmp_path / "narrow")
    with pytest.raises(UserError, match=r"head_dim is 16; vLLM's attention on a CPU allows 32, 64.*engine=embedded"):
        VllmEngine(tmp_path / "narrow", [EOS])
    build("qwen2-tied").save_pretrained(tmp_path / "model")
    for gib in (1e5, 1e-6):
        with pytest.raises(UserError, match=f"not enough memory.*hardware.cache_gib is {gib}: raise it"):
            VllmEngine(tmp_path / "model", [EOS], cache_gib=gib)


def test_a_context_longer_than_what_is_read_at_once(tmp_path: Path) -> None:
    long = Qwen2ForCausalLM(Qwen2Config(**{**SIZES, "max_position_embeddings": 40_000})).eval()
    randomize(long, 0)
    engine = engine_of(long, tmp_path)
    assert engine.context == 40_000
    many = engine.generate(
        [[i % 80 + 1] * 300 for i in range(80)], 1, seeds=range(80), temperature=1.0, max_new_tokens=2
    )
    assert worst_difference(long, many[:4], temperature=1.0) < 1e-3, "24,000 tokens of prompts are read in two parts"
