"""Samples of vLLM on a CPU: the model's distribution, and the same samples for a seed in any batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tiny import EOS, LONG, PROMPTS, SEEDS, build, engine_of, generate, tokens_of
from transformers import PreTrainedModel

from harness.base.errors import UserError
from harness.methods.batch import Rollout
from harness.rollout.vllm import VllmEngine


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return build("qwen2-tied")


@pytest.fixture(scope="module")
def engine(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> VllmEngine:
    return engine_of(model, tmp_path_factory.mktemp("model"))


def test_seeds_repeat_with_any_neighbors(engine: VllmEngine, model: PreTrainedModel) -> None:
    together = generate(engine)
    assert tokens_of(generate(engine)) == tokens_of(together)  # the prompts are in the cache now
    engine.load(model)
    assert generate(engine) == together
    backwards = engine.generate(PROMPTS[::-1], 6, seeds=SEEDS[::-1], temperature=0.8, max_new_tokens=12)
    assert tokens_of(backwards[::-1]) == tokens_of(together)
    for prompt, seed, group in zip(PROMPTS, SEEDS, together, strict=True):
        [alone] = engine.generate([prompt], 4, seeds=[seed], temperature=0.8, max_new_tokens=12)
        assert tokens_of([alone]) == [[rollout.response for rollout in group[:4]]]
        for ours, theirs in zip(alone, group[:4], strict=True):
            assert ours.logp == pytest.approx(theirs.logp, abs=1e-5)
    a, b, c = engine.generate([[1, 2]] * 3, 6, seeds=[5, 6 + 2**40, 5], temperature=0.8, max_new_tokens=12)
    assert tokens_of([a]) == tokens_of([c]) != tokens_of([b])
    assert len({tuple(rollout.response) for rollout in a}) > 3
    assert engine.generate([], 6, seeds=[], temperature=0.8, max_new_tokens=12) == []


def test_responses_end_with_the_end_of_sequence_or_at_the_limit(engine: VllmEngine) -> None:
    rollouts = [r for group in generate(engine, n=60) for r in group]
    assert any(r.finished for r in rollouts)
    assert any(not r.finished for r in rollouts)
    for rollout in rollouts:
        assert len(rollout.logp) == len(rollout.response)
        if rollout.finished:
            assert rollout.response.index(EOS) == len(rollout.response) - 1
        else:
            assert EOS not in rollout.response
            assert len(rollout.response) == 12


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_frequencies_are_those_of_the_softmax(engine: VllmEngine, model: PreTrainedModel, temperature: float) -> None:
    n = 4000
    [group] = engine.generate([[5, 1]], n, seeds=[3], temperature=temperature, max_new_tokens=1)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[5, 1]])).logits[0, -1]
    p = torch.softmax(logits.double() / temperature, -1).numpy()
    counts = np.bincount([r.response[0] for r in group], minlength=len(p))
    order = np.argsort(-p)
    expected, observed = ([*x[order[:5]], x[order[5:]].sum()] for x in (p * n, counts))
    assert min(expected) > 20
    assert stats.chisquare(observed, expected).pvalue > 0.01


def test_temperature_zero_takes_the_likeliest_token(engine: VllmEngine, model: PreTrainedModel) -> None:
    for group in generate(engine, n=2, temperature=0):
        assert group[0] == group[1]
        assert set(group[0].logp) == {0.0}
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([group[0].prompt + group[0].response])).logits[0]
        assert group[0].response == logits[len(group[0].prompt) - 1 : -1].argmax(-1).tolist()


def test_each_group_is_handed_over_once_when_it_has_ended(engine: VllmEngine) -> None:
    prompts, heard = [[5, token] for token in range(10, 42)], []

    def on_group(number: int, group: list[Rollout]) -> None:
        heard.append((number, group, engine.engine.has_unfinished_requests()))

    settings: dict[str, Any] = {"seeds": range(32), "temperature": 1.0, "max_new_tokens": 60}
    groups = engine.generate(prompts, 2, on_group=on_group, **settings)
    assert sorted(number for number, _, _ in heard) == list(range(32))
    assert all(groups[number] == group for number, group, _ in heard)
    lengths = [max(len(r.response) for r in groups[number]) for number, _, _ in heard]
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 1
    assert heard[0][2], "others are still being sampled"
    assert groups == engine.generate(prompts, 2, **settings)


def test_what_was_interrupted_leaves_nothing_behind(engine: VllmEngine) -> None:
    """The error comes from the callback for groups, or from a prompt that vLLM refuses."""
    from vllm.exceptions import VLLMValidationError

    before = tokens_of(generate(engine))

    def interrupt(number: int, group: list[Rollout]) -> None:
        raise KeyboardInterrupt

    asked: dict[str, Any] = {"seeds": range(40), "temperature": 1.0, "max_new_tokens": 40}
    with pytest.raises(KeyboardInterrupt):
        engine.generate([[5, token] for token in range(10, 50)], 2, on_group=interrupt, **asked)
    with pytest.raises(VLLMValidationError, match="cannot be empty"):
        engine.generate([[5, 6]] * 39 + [[]], 2, **asked)
    assert tokens_of(generate(engine)) == before


def test_prompts_of_a_group_are_read_once(engine: VllmEngine, model: PreTrainedModel) -> None:
    scheduler = engine.engine.engine_core.engine_core.scheduler
    engine.load(model)
    computed = []
    schedule = scheduler.schedule

    def counted(*args: object) -> object:
        output = schedule(*args)
        computed.append(output.total_num_scheduled_tokens)
        return output

    scheduler.schedule = counted
    try:
        engine.generate([[*LONG, 9]], 8, seeds=[1], temperature=1.0, max_new_tokens=1)
    finally:
        del scheduler.schedule
    blocks = 151 // 32 * 32
    assert sum(computed) == 151 + 7 * (151 - blocks)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": 0.001}, r"temperature is 0.001; vLLM allows 0, or 0.01 to 2"),
        ({"temperature": 2.5}, r"temperature is 2.5; vLLM allows 0, or 0.01 to 2"),
        ({"length": 120}, r"max_new_tokens is 120, .* prompt of 152 tokens exceeds the 256 .* rollout.engine=embedded"),
    ],
)
def test_what_it_cannot_sample_is_one_sentence(engine: VllmEngine, asked: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=words):
        generate(engine, **asked)  # type: ignore[arg-type]
