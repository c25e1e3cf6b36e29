"""TokenBatch against loops, and its statistics on two ranks against those of one process."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from companions import on_ranks
from known import known
from ragged import Case, batch_of, case, rollouts
from torch import Tensor

import baselines
from harness.base.errors import UserError
from harness.methods.batch import Rollout, TokenBatch, TokenStats
from harness.methods.composition import Method
from harness.tokens import dynamics


def made(seed: int = 0, groups: int = 6, size: int = 3) -> tuple[list[Rollout], TokenBatch]:
    groups_of = rollouts(seed, groups, size)
    batch = TokenBatch.of(groups_of, [float(i) for i in range(groups * size)], 16, "cpu")
    return [rollout for group in groups_of for rollout in group], batch


def check(part: TokenBatch, flat: list[Rollout], rows: list[int]) -> None:
    """Check that `part` holds exactly the responses `rows` of the batch of `flat`."""
    starts = [sum(len(r.response) for r in flat[:row]) for row in range(len(flat))]
    assert [s.tolist() for s in part.sequences] == [flat[row].prompt + flat[row].response for row in rows]
    assert part.prompt_lengths_B.tolist() == [len(flat[row].prompt) for row in rows]
    assert part.lengths_B.tolist() == [len(flat[row].response) for row in rows]
    assert part.groups_B.tolist() == [row // 3 for row in rows]
    assert part.rewards_B.tolist() == [float(row) for row in rows]
    assert part.behaviour_logp_T.tolist() == pytest.approx([x for row in rows for x in flat[row].logp])
    assert part.index_T.tolist() == [starts[row] + i for row in rows for i in range(len(flat[row].response))]
    assert part.sequence_T.tolist() == [k for k, row in enumerate(rows) for _ in flat[row].response]
    assert part.within_T.tolist() == [i for row in rows for i in range(len(flat[row].response))]
    assert part.starts_B.tolist() == [sum(len(flat[r].response) for r in rows[:k]) for k in range(len(rows))]
    assert (len(part), part.global_responses()) == (len(rows), len(rows))
    assert part.global_tokens() == len(part.index_T)
    assert part.budget == 16


def test_take_of_a_part() -> None:
    flat, batch = made()
    check(batch, flat, list(range(18)))
    check(batch.take([5]), flat, [5])
    check(batch.take([11, 2, 7]), flat, [11, 2, 7])
    check(batch.take([11, 2, 7, 3]).take([3, 0]), flat, [3, 11])


def test_equal_answers_of_a_group_have_one_number_in_any_part() -> None:
    groups = rollouts(0, 2, 4)
    answers = ["a", None, "b", "a", "b", "b", None, "a"]
    batch = TokenBatch.of(groups, [0.0] * 8, 16, "cpu", answers=answers)
    assert batch.answers_B.tolist() == [0, -1, 1, 0, 0, 0, -1, 1]
    assert batch.take([3, 6, 7]).answers_B.tolist() == [0, -1, 1]
    assert TokenBatch.of(groups, [0.0] * 8, 16, "cpu").answers_B.tolist() == [-1] * 8


@pytest.mark.parametrize("parts", [1, 2, 3, 6])
def test_split_gives_whole_groups_in_order(parts: int) -> None:
    flat, batch = made()
    size = 18 // parts
    pieces = list(batch.split(parts))
    assert len(pieces) == parts
    for number, piece in enumerate(pieces):
        check(piece, flat, list(range(number * size, (number + 1) * size)))


def test_prompts_weigh_and_sequences_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    flat, batch = made(1)
    prompts, responses = (sum(map(len, texts)) for texts in zip(*((r.prompt, r.response) for r in flat), strict=True))
    assert batch.prompts_weigh == (2 * prompts > responses)
    for long, packed in (((prompts + responses) / 18, True), ((prompts + responses) / 18 + 0.1, False)):
        monkeypatch.setattr("harness.methods.batch.LONG", long)
        assert all(piece.packed == packed for piece in batch.micro_batches(40, packing=True))
        assert not any(piece.packed for piece in batch.micro_batches(40)), "the model does not allow it"


@pytest.mark.parametrize("tokens", [1, 20, 40, 100, 10_000])
@pytest.mark.parametrize("way", ["sorted", "whole groups", "packed"])
@pytest.mark.parametrize("copies", [(0, 1, 2), (0, 1, 0, 2, 1, 0)])  # of three responses of each group
def test_copies_are_in_one_micro_batch_and_count_once(
    tokens: int, way: str, copies: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TokenBatch, "prompts_weigh", way == "whole groups")
    monkeypatch.setattr("harness.methods.batch.LONG", 0 if way == "packed" else 10**6)
    flat, _ = made(1)
    groups = []  # each copy has its own log p
    for first in range(0, 18, 3):
        chosen = [flat[first + copy] for copy in copies]
        groups.append([dataclasses.replace(r, logp=[-float(i)] * len(r.response)) for i, r in enumerate(chosen)])
    batch = TokenBatch.of(groups, [float(i) for i in range(6 * len(copies))], 16, "cpu")
    originals = [first + copy for first in range(0, 18, 3) for copy in copies]  # of each row, in `flat`
    lengths = [len(r.prompt) + len(r.response) for r in flat]

    pieces = list(batch.micro_batches(tokens, packing=way == "packed"))
    held = [[round(x) for x in piece.rewards_B.tolist()] for piece in pieces]
    assert sorted(row for rows in held for row in rows) == list(range(len(batch)))
    originals_held = [list(dict.fromkeys(originals[row] for row in rows)) for rows in held]
    order = [original for part in originals_held for original in part]
    assert sorted(order) == list(range(18)), "no response has copies in two parts"
    assert order == (sorted(order, key=lambda number: lengths[number]) if way == "sorted" else list(range(18)))

    def computed(part: Sequence[int]) -> int:
        of_part = [lengths[number] for number in part]
        return sum(of_part) if way == "packed" else max(of_part) * len(of_part)

    for part, following in itertools.pairwise(originals_held):
        assert computed([*part, following[0]]) > tokens
    for part, piece, rows in zip(originals_held, pieces, held, strict=True):
        assert len(part) == 1 or computed(part) <= tokens
        assert piece.packed == (way == "packed")
        once, place_T = piece.without_copies()
        assert [s.tolist() for s in once.sequences] == [flat[i].prompt + flat[i].response for i in part]
        tokens_T = torch.cat([s[n:] for s, n in zip(once.sequences, once.prompt_lengths_B.tolist(), strict=True)])
        assert tokens_T[place_T].tolist() == [token for row in rows for token in flat[originals[row]].response]
        own = [-float(row % len(copies)) for row in rows for _ in flat[originals[row]].response]
        assert piece.behaviour_logp_T.tolist() == own, "the engine's log p is each copy's own"


def test_equal_responses_to_other_prompts_are_no_copies() -> None:
    group = [Rollout([1, 2], [3, 4], [0.0, 0.0], True), Rollout([1, 2], [3], [0.0], False)] * 2
    other = [dataclasses.replace(rollout, prompt=[1, 5]) for rollout in group]
    batch = TokenBatch.of([group, other], [0.0] * 8, 2, "cpu")
    once, place_T = batch.without_copies()
    assert [s.tolist() for s in once.sequences] == [[1, 2, 3, 4], [1, 2, 3], [1, 5, 3, 4], [1, 5, 3]]
    assert place_T.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]
    last = batch.take([7, 6, 5])
    assert [s.tolist() for s in last.without_copies()[0].sequences] == [[1, 5, 3], [1, 5, 3, 4]]
    assert last.without_copies()[1].tolist() == [0, 1, 2, 0]


def test_micro_batches_of_a_minibatch_point_into_the_whole_batch() -> None:
    flat, batch = made(2)
    x_T = torch.arange(len(batch.index_T))
    second = list(batch.split(2))[1]
    for piece in second.micro_batches(30):
        rows = [round(x) for x in piece.rewards_B.tolist()]
        check(piece, flat, rows)
        assert torch.equal(x_T[piece.index_T], piece.index_T)


def test_sums_by_response_and_rows_by_group() -> None:
    flat, batch = made(3)
    x_T = torch.arange(len(batch.index_T), dtype=torch.float64) ** 2
    sums, start = [], 0
    for rollout in flat:
        sums.append(sum(float(t) ** 2 for t in range(start, start + len(rollout.response))))
        start += len(rollout.response)
    assert batch.per_sequence(x_T).tolist() == sums
    rows = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0]]
    assert batch.grouped(batch.rewards_B)[:3].tolist() == rows
    half = list(batch.split(2))[1]
    assert half.grouped(half.rewards_B)[0].tolist() == [9.0, 10.0, 11.0]


def test_statistics_over_tokens() -> None:
    _, batch = made(4)
    x_T = torch.randn(len(batch.index_T), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = x_T.tolist()
    assert batch.global_mean(x_T).item() == pytest.approx(statistics.fmean(values), rel=1e-13)
    assert batch.global_std(x_T).item() == pytest.approx(statistics.pstdev(values), rel=1e-13)
    assert batch.global_count(x_T > 0.5) == sum(x > 0.5 for x in values)
    for k in (1, 2, 17, len(values)):
        assert batch.global_kth_largest(x_T, k).item() == sorted(values, reverse=True)[k - 1]
    for k in (0, len(values) + 1):
        assert batch.global_kth_largest(x_T, k).item() == -math.inf


def test_global_order_with_ties() -> None:
    c = case(4, longest=16)
    values = c.old.logp.round().tolist()
    order = sorted(range(len(values)), key=lambda t: (-values[t], t))
    assert len(set(values)) < len(values) / 2
    places = c.batch.global_order(c.old.logp.round()).tolist()
    assert [places[t] for t in order] == list(range(len(values)))


def test_chance_is_seeded_by_purpose_and_response_and_not_by_who_asks() -> None:
    groups = rollouts(0)
    batch = batch_of(groups, [0.0] * 12, seed=7)
    x_T, x_B = batch.uniform_T("a"), batch.uniform_B("a")
    part = batch.take([11, 2, 7])
    assert torch.equal(part.uniform_T("a"), x_T[part.index_T])
    assert torch.equal(part.uniform_B("a"), x_B[[11, 2, 7]])
    for other in (batch.uniform_T("b"), batch_of(groups, [0.0] * 12, seed=8).uniform_T("a")):
        assert not (other == x_T).any()
    assert not torch.isin(x_B, x_T).any()
    many = TokenBatch.of([[Rollout([0], [0] * 50_000, [0.0] * 50_000, True)]], [0.0], 50_000, "cpu").uniform_T("a")
    assert 0 <= many.min() < 1e-3 < 0.999 < many.max() < 1
    assert many.mean().item() == pytest.approx(0.5, abs=0.005)


def test_batch_right_and_finished() -> None:
    groups = [[dataclasses.replace(r, finished=i % 2 == 0) for i, r in enumerate(group)] for group in rollouts(0)]
    batch = batch_of(groups, [float(i % 3 == 0) for i in range(12)], places=[4, 0, 1, 2])
    part = dataclasses.replace(batch, rewards_B=batch.rewards_B - 5).take([9, 0, 1])
    assert part.right_B.tolist() == [True, True, False]
    assert part.finished_B.tolist() == [True, True, False]
    assert part.places_B.tolist() == [6, 12, 13]


def test_global_mean_of_many_float32_values() -> None:
    batch = batch_of([[Rollout([0], [0] * 100_000, [0.0] * 100_000, True)]], [0.0])
    x_T = torch.full((100_000,), 1 / 3) + torch.linspace(0, 1e-3, 100_000)
    assert batch.global_mean(x_T).item() == pytest.approx(math.fsum(x_T.tolist()) / 100_000, rel=1e-12)


def test_statistics_of_parts_put_together_are_those_of_the_whole() -> None:
    c = case(5)
    parts = list(c.batch.micro_batches(30))
    assert len(parts) > 2
    joined = TokenStats.cat([c.old.at(part.index_T) for part in parts])
    joined = joined.at(torch.cat([part.index_T for part in parts]).argsort())
    for name, x in vars(c.old).items():
        assert torch.equal(getattr(joined, name), x)
    alone = TokenStats.cat([TokenStats(c.old.logp[:2]), TokenStats(c.old.logp[2:])]).at(torch.tensor([3, 0]))
    assert torch.equal(alone.logp, c.old.logp[[3, 0]])
    assert alone.entropy is alone.values is None


# Two ranks

SPECS = (
    "ppo+clip_b(mu=1)",
    "ppo+clip_b(share=0.1, reference_denominator=true)",
    "grpo(normalise=sequence)+clip_v(mu=0.5, max_frac=0.03)",
    "grpo(normalise=constant)+clip_v(share=0.05, mode=paper)",
    "reinforce_pp",
    "lite_ppo",
    "otb",
    "bapo",
)
CHOOSING = (
    "clip_cov(fraction=0.05, lowest=0, highest=9)",
    "top_entropy",
    "stare(target=9)",
    "clip_predict(target=2)",
    "clip_servo(damping=0)",
)


# The groups of each rank. A mini-batch is made of one part from each rank: here groups 0-3, then 4-7.
RANKS = ([0, 1, 4, 5], [2, 3, 6, 7])


def tokens_of(c: Case, groups: Sequence[int]) -> Tensor:
    return c.batch.take([row for row, group in enumerate(c.batch.groups_B.tolist()) if group in groups]).index_T


def measured(c: Case, groups: Sequence[int]) -> dict[str, Tensor]:
    """Return what a process that holds these groups makes of them."""
    rewarded = zip(c.batch.rewards_B.tolist(), c.batch.groups_B.tolist(), strict=True)
    rewards = [reward for reward, group in rewarded if group in groups]
    batch = batch_of([c.groups[i] for i in groups], rewards, places=groups, seed=3)
    old = c.old.at(tokens_of(c, groups))
    old = dataclasses.replace(old, entropy=known(old.entropy).round(decimals=1))  # with ties
    result = {
        "mean": batch.global_mean(old.logp),
        "std": batch.global_std(old.logp),
        "kth": torch.stack([batch.global_kth_largest(old.logp, k) for k in (1, 7, 40, 10**6)]),
        "sum": batch.global_sum(old.logp),
        "order_T": batch.global_order(old.logp.round()),  # with ties
        "uniform_T": batch.uniform_T("test"),
        "uniform of responses_T": batch.uniform_B("test")[batch.sequence_T],
        "count": torch.tensor([batch.global_count(old.logp < -1), batch.global_responses(), batch.global_tokens()]),
    }
    for spec in (*SPECS, *CHOOSING):
        method, minibatches = Method.of(spec, baselines.table()), list(batch.split(2))
        signal = method.signal(old, batch, minibatches)
        after_T = known(old.entropy) + known(old.values)
        seen = dynamics.of_step(method, signal, batch, minibatches, after_T, temperature=0.7)
        result |= {f"{spec} {name}": torch.tensor(value, dtype=torch.float64) for name, value in seen.items()}
        result |= {f"{spec} {name}_T": getattr(signal, f"{name}_T") for name in ("advantages", "weights", "scale")}
    return result


def measured_on_rank(rank: int, folder: Path) -> dict[str, torch.Tensor]:
    return measured(case(0, groups=8), RANKS[rank])


@pytest.mark.processes
def test_batch_on_two_ranks(tmp_path: Path) -> None:
    ranks = on_ranks(measured_on_rank, tmp_path)
    c = case(0, groups=8)
    expected = measured(c, range(8))
    assert all(len(expected[f"{spec} weights_T"].unique()) > 1 for spec in CHOOSING)
    for name, alone in expected.items():
        together = alone.new_zeros(alone.shape)
        for rank, groups in enumerate(RANKS):
            if name.endswith("_T"):
                together[tokens_of(c, groups)] = ranks[rank][name]
            else:
                assert torch.equal(ranks[0][name], ranks[rank][name])
                together = ranks[rank][name]
        torch.testing.assert_close(together, alone, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    "read", [lambda x: x == -1, lambda x: x.abs(), lambda x: torch.zeros(2) - x, lambda x: x[0].item()]
)
@pytest.mark.parametrize("column", ["answers_B", "base_right_B", "behaviour_logp_T"])
def test_of_lengths_absent_column(column: str, read: Callable[[torch.Tensor], object]) -> None:
    lengths_B, groups_B = torch.tensor([1, 2]), torch.tensor([0, 0])
    rewards_B = torch.tensor([1.0, 0.0])
    batch = TokenBatch.of_lengths(lengths_B, groups_B, rewards_B, rewards_B > 0, rewards_B > 0, 4)
    for part in (batch, batch.take([1])):
        with pytest.raises(UserError, match="declare reads_answers = True, reads_base = True or reads_s"):
            read(vars(part)[column])
