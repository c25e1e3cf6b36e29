"""Compares models that compute equal responses once with the plain model, which computes each copy alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from float64 import compute_in_float64
from known import known
from torch import Tensor, nn

from harness.config import Hardware, Train
from harness.conformance import miniature
from harness.conformance.probe import stats_of
from harness.methods.batch import Rollout, TokenBatch, TokenStats
from harness.train.policy import Critic, Policy

TEMPERATURE = 0.7
WAYS = {"padded": (False, 10**6), "shared prompts": (True, 10**6), "packed": (True, 0)}


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One of the three ways to run a batch through a model."""
    prompts_weigh, long = WAYS[request.param]
    monkeypatch.setattr(TokenBatch, "prompts_weigh", prompts_weigh)
    monkeypatch.setattr("harness.methods.batch.LONG", long)
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    miniature.write_model(tmp_path, miniature.Size())
    return tmp_path


def policy_of(folder: Path, micro: int) -> Policy:
    policy = Policy(folder, Train(), TEMPERATURE, "cpu", torch.float32, Hardware(micro_tokens=micro))
    compute_in_float64(policy.network)
    return policy


def critic_of(folder: Path, micro: int) -> Critic:
    torch.manual_seed(1)
    critic = Critic(folder, Train(), 1e-3, "cpu", torch.float32, Hardware(micro_tokens=micro))
    nn.init.normal_(critic.module.head.weight)  # a head of zeros would give the body no gradient
    compute_in_float64(critic.network)
    return critic


def responses(number: int) -> list[list[int]]:
    """Some responses of different lengths; all groups have some in common."""
    return [[7, 8, 9, number + 1], [5], [11, 3, 4, 4, number + 2, 6], [7, 8, 9, 10], [7, 8]]


def batch_with_copies() -> TokenBatch:
    """Groups of many copies, of copies alone, and of none; the engine's log-probabilities of copies differ."""
    chosen = [[0, 1, 0, 2, 2, 0], [3, 3, 3, 3, 3, 3], [4, 2, 1, 1, 4, 1], [2, 0, 2, 3, 0, 2]]
    generator = torch.Generator().manual_seed(0)
    groups = []
    for number, places in enumerate(chosen):
        prompt, texts = [20 - number, *range(1, 3 + 2 * number)], responses(number)
        group = []
        for place in places:
            logp = (-torch.rand(len(texts[place]), generator=generator)).tolist()
            group.append(Rollout(prompt, texts[place], logp, True))
        groups.append(group)
    return TokenBatch.of(groups, [0.0] * 24, 8, "cpu")


def factors(batch: TokenBatch) -> Tensor:
    """Return two factors of each token, another one for each copy, as advantages and weights are."""
    return torch.randn(2, len(batch.index_T), generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def alone(batch: TokenBatch) -> Iterator[tuple[Tensor, int]]:
    """Yield each response with the length of its prompt."""
    yield from zip(batch.sequences, batch.prompt_lengths_B.tolist(), strict=True)


def gradients(module: nn.Module) -> list[Tensor]:
    return [weight.grad.clone() for weight in module.parameters() if weight.grad is not None]


def close(actual: list[Tensor], expected: list[Tensor]) -> None:
    assert len(actual) == len(expected) > 0
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("micro", [20, 60, 10**6])
def test_statistics_and_gradient_are_those_of_each_copy_alone(micro: int, folder: Path) -> None:
    batch, policy = batch_with_copies(), policy_of(folder, micro)
    by_logp_T, by_entropy_T = factors(batch)
    stats = policy.stats(batch, frozenset({"sum_p2", "min_p", "likeliest_entropy"}))
    for part in policy.micro_batches(batch):
        current = policy.current(part, frozenset({"entropy_grad"}))
        loss_T = by_logp_T[part.index_T] * current.logp + by_entropy_T[part.index_T] * known(current.entropy)
        policy.backward(loss_T.sum())
    actual = gradients(policy.module)

    policy.network.zero_grad()
    parts = []
    for sequence, prompt in alone(batch):
        logits_TV = policy.module(sequence[None]).logits[0, prompt - 1 : -1] / TEMPERATURE
        parts.append(stats_of(logits_TV, sequence[prompt:]))
    expected = TokenStats.cat(parts)
    (by_logp_T * expected.logp + by_entropy_T * known(expected.entropy)).sum().backward()
    assert stats.columns.keys() == expected.columns.keys()
    close(list(stats.columns.values()), list(expected.detach().columns.values()))
    close(actual, gradients(policy.module))


@pytest.mark.parametrize("micro", [20, 10**6])
def test_values_and_their_gradient_are_those_of_each_copy_alone(micro: int, folder: Path) -> None:
    batch, critic = batch_with_copies(), critic_of(folder, micro)
    factor_T, _ = factors(batch)
    for part in critic.micro_batches(batch):
        critic.backward((factor_T[part.index_T] * critic.current(part) ** 2).sum())
    result, values_T = gradients(critic.module), critic.values(batch)

    critic.network.zero_grad()
    parts = []
    for sequence, prompt in alone(batch):
        hidden_TD = critic.module.body(sequence[None]).last_hidden_state[0, prompt - 1 : -1]
        parts.append(critic.module.head(hidden_TD)[:, 0])
    expected_T = torch.cat(parts)
    (factor_T * expected_T**2).sum().backward()
    close(result, gradients(critic.module))
    close([values_T], [expected_T.detach()])


def test_policy_computes_copies_once(folder: Path, way: str) -> None:
    batch, policy = batch_with_copies(), policy_of(folder, 10**6)
    seen: list[Tensor] = []
    policy.module.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True
    )
    policy.stats(batch)
    (once, _), rows = batch.without_copies(), 3 + 1 + 3 + 3
    assert len(once) == rows
    if way == "packed":
        prompts = sum(3 + 2 * number for number in range(4))
        assert seen[0].numel() == prompts + int(once.lengths_B.sum()) - rows  # nothing is predicted from a last token
    else:
        assert [len(ids) for ids in seen] == ([4, rows] if way == "shared prompts" else [rows])
