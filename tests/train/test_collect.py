"""The rollouts of a step: the same as from a plain loop over all candidates, each from its own policy."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from patience import HANG
from trainers import build, records, same, sample_in_turn, trained, weights

from harness.base import seeds
from harness.base.errors import UserError
from harness.cells.log import MetricsLog
from harness.methods.batch import Rollout
from harness.tokens.metrics import Stopwatch
from harness.train.collect import Collected, kept_places, shared_out
from harness.train.trainer import Trainer
from tasks import Verdict

pytestmark = pytest.mark.slow

RESAMPLE = ["train.resample.multiplier=1.5", "train.resample.max_batches=3"]  # of 8 prompts: 12, 24, 36 candidates


def tokens(groups: Sequence[Sequence[Rollout]]) -> list[list[list[int]]]:
    return [[rollout.response for rollout in group] for group in groups]


# Who trains on what


def test_ranks_get_equally_many_groups_of_each_minibatch_and_about_equally_many_tokens() -> None:
    assert shared_out([5, 1, 1, 1, 9, 2, 3, 4], updates=2, world=2) == [0, 1, 1, 0, 0, 0, 1, 1]
    assert shared_out([90, 9, 1, 8, 2, 7], updates=1, world=2) == [0, 1, 0, 1, 0, 1], "the rest cannot make up for one"
    sizes = np.random.default_rng(0).lognormal(7.0, 0.6, 256).astype(int).tolist()
    for updates, world in ((1, 8), (2, 4), (4, 8), (2, 1)):
        owners = np.array(shared_out(sizes, updates, world)).reshape(updates, -1)
        load = np.zeros((updates, world))
        for update, rank in itertools.product(range(updates), range(world)):
            assert (owners[update] == rank).sum() == 256 // updates // world
            load[update, rank] = np.array(sizes).reshape(updates, -1)[update][owners[update] == rank].sum()
        assert (load.max(1) < 1.05 * load.mean(1)).all()


# Who is asked, and what is kept


def one_by_one(trainer: Trainer, step: int, size: int, batches: int, every: bool) -> dict[str, Any]:
    """Sample and judge one candidate after the other, and choose groups as the documentation describes."""
    parts, prompts, superset = trainer.parts, trainer.config.train.prompts, size * batches
    problems = parts.pool.problems
    order = (i for number in itertools.count() for i in permutation(parts.seed, number, len(problems)))
    row = [problems[i] for i in itertools.islice(order, (step - 1) * superset, step * superset)]
    candidates = []
    for batch in range(batches):
        for place in range(batch * size, (batch + 1) * size):
            (group,) = parts.engine.generate(
                [parts.tokenizer(row[place].prompt)["input_ids"]],
                trainer.config.train.group,
                seeds=[seeds.derive("rollout", parts.seed, step, place)],
                temperature=1.0,
                max_new_tokens=20,
            )
            texts = parts.tokenizer.batch_decode([r.response for r in group], skip_special_tokens=True)
            verdicts = parts.task.verdicts([(row[place], text) for text in texts], parts.verifier)
            candidates.append((place, row[place], group, verdicts))
        able = [candidate for candidate in candidates if 0 < candidate[3].count(Verdict.RIGHT) < len(candidate[3])]
        if len(able) >= prompts:
            break
    kept = candidates if every else able[:prompts]
    idle = [candidate for candidate in candidates if candidate not in kept][: prompts - len(kept)]
    kept = sorted(kept + idle, key=lambda candidate: candidate[0])
    return {
        "places": [place for place, *_ in kept],
        "problems": [problem for _, problem, *_ in kept],
        "tokens": tokens([group for *_, group, _ in kept]),
        "verdicts": [verdict for *_, verdicts in kept for verdict in verdicts],
        "generated": sum(len(rollout.response) for *_, group, _ in candidates for rollout in group),
        "batches": batch + 1,
        "filled": len(idle),
        "reward": [verdict == Verdict.RIGHT for *_, verdicts in candidates for verdict in verdicts],
    }


def permutation(seed: int, number: int, size: int) -> list[int]:
    order: list[int] = np.random.default_rng(seeds.derive("order", seed, number)).permutation(size).tolist()
    return order


def of(collected: Collected) -> dict[str, Any]:
    return {
        "places": [group.place for group in collected.answered],
        "problems": [group.problem for group in collected.answered],
        "tokens": tokens(collected.groups),
        "verdicts": collected.verdicts,
        "generated": collected.generated,
    }


def test_collect_by_a_loop_over_candidates(tmp_path: Path) -> None:
    trainer = build(tmp_path, "grpo", "train.group=2", *RESAMPLE)
    ends = set()
    for step in range(1, 9):
        expected = one_by_one(trainer, step, 12, 3, every=False)
        collected = trainer.collector.sample(step, Stopwatch())
        assert of(collected).items() <= expected.items(), step
        record, reward = collected.record, expected["reward"]
        assert record == {
            "resample/batches": expected["batches"],
            "resample/filled": expected["filled"],
            "resample/reward_mean": sum(reward) / len(reward),
        }
        ends.add((expected["batches"], expected["filled"] > 0))
    assert ends >= {(2, False), (3, True)}, "a test of one way to end would be half a test"


def test_without_resampling_a_step_trains_on_its_own_part_of_the_row(tmp_path: Path) -> None:
    trainer = build(tmp_path, "grpo", "train.group=2")
    for step in (1, 2, 5):
        collected = trainer.collector.sample(step, Stopwatch())
        assert of(collected).items() <= one_by_one(trainer, step, 8, 1, every=True).items()
        assert collected.record == {}


def test_collect_takes_prompts_in_a_row(tmp_path: Path) -> None:
    collector = build(tmp_path, "grpo", "train.prompts=64", "train.resample.max_batches=4").collector
    size = len(collector.parts.pool.problems)
    seen = [p.id for step in range(1, 2 * size // 256 + 2) for p in collector.problems(step, range(256))]
    first, second = seen[:size], seen[size : 2 * size]
    assert len(set(first)) == size, "a pass shows every problem once"
    assert set(second) == set(first)
    assert second != first


def test_collect_in_the_given_order(tmp_path: Path) -> None:
    collector = build(tmp_path, "grpo", "train.prompts=64", "train.order=given").collector
    problems = collector.parts.pool.problems
    steps = 2 * len(problems) // 64 + 1  # more than two passes
    seen = [problem for step in range(1, steps + 1) for problem in collector.problems(step, range(64))]
    assert seen == (problems * 3)[: 64 * steps]


@pytest.mark.parametrize("prompts", [1, 2, 3, 4])
def test_kept_places(prompts: int) -> None:
    """For all ways in which 6 candidates may have a signal."""
    for signals in itertools.product((False, True), repeat=6):
        given = dict(reversed(list(enumerate(signals))))
        kept, filled = kept_places(given, prompts)
        assert kept == sorted(kept)
        able = [place for place in range(6) if signals[place]]
        assert len(kept) == prompts
        assert [place for place in kept if signals[place]] == able[:prompts]
        assert filled == max(prompts - len(able), 0)
        idle = [place for place in kept if not signals[place]]
        assert idle == [place for place in range(6) if not signals[place]][:filled]


def test_collect_of_just_enough_candidates(tmp_path: Path) -> None:
    plain = build(tmp_path / "plain", "grpo+clip_b(share=0.1)")
    once = build(tmp_path / "once", "grpo+clip_b(share=0.1)", "train.resample.max_batches=1")
    for step in (1, 2):
        one, other = plain.train_step(step, Stopwatch()), once.train_step(step, Stopwatch())
        assert other.pop("resample/batches") == 1
        assert other.pop("resample/filled") == 8 * one["reward/groups_without_signal"] > 0
        assert other.pop("resample/reward_mean") == pytest.approx(one["reward/mean"], rel=1e-6)
        assert one == other
    assert same(weights(plain), weights(once))


def test_tokens_are_counted_whether_or_not_they_are_trained_on(tmp_path: Path) -> None:
    trainer = build(tmp_path, "grpo", "train.group=2", *RESAMPLE)
    total = 0.0
    for step in (1, 2):
        collected = trainer.collector.sample(step, Stopwatch())
        record = trainer.train_step(step, Stopwatch())  # which samples the very same
        total += collected.generated
        assert record["tokens/trained"] == sum(len(r.response) for group in collected.groups for r in group)
        assert record["tokens/generated"] == collected.generated > record["tokens/trained"]
        assert record["tokens/generated_total"] == total


# Which policy sampled


def test_collect_with_a_lag(tmp_path: Path) -> None:
    few = ["train.steps=5", "train.group=4", "checkpoint.every=9"]
    trainer = build(tmp_path, "grpo", "rollout.lag=2", "train.lr=3e-2", *few)
    policies, trained = [], {}
    train_step, collect = trainer.train_step, trainer.collector.collect

    def remembered(step: int, watch: Stopwatch) -> dict[str, float]:
        policies.append(copy.deepcopy(trainer.policy.module.state_dict()))
        return train_step(step, watch)

    def heard(step: int, watch: Stopwatch) -> Collected:
        trained[step] = collect(step, watch)
        return trained[step]

    trainer.train_step, trainer.collector.collect = remembered, heard  # type: ignore[method-assign]
    trainer.run(lambda step: None)
    assert not trainer.collector.in_flight, "nothing is sampled for steps that there are not"
    logged = records(tmp_path)[1:]
    assert [line["rollout/lag"] for line in logged] == [0, 1, 2, 2, 2]
    assert logged[0]["mismatch/p99"] < 1e-4
    assert min(line["mismatch/p99"] for line in logged[1:]) > 0.01, "which stops a cell where no lag explains it"
    for step, collected in trained.items():
        same_as = []
        for policy in policies:
            trainer.policy.module.load_state_dict(policy)
            trainer.engine.load(trainer.policy.module)
            same_as.append(of(trainer.collector.sample(step, Stopwatch())) == of(collected))
        assert [number for number, equal in enumerate(same_as) if equal] == [max(step - 3, 0)]


@pytest.mark.parametrize("resample", [[], RESAMPLE])
def test_sampling_beside_training_changes_no_bit(resample: list[str], tmp_path: Path) -> None:
    settings = ["rollout.lag=1", "train.lr=3e-2", "train.group=2", "eval.every=1", "train.steps=3", *resample]
    in_turn = build(tmp_path / "in-turn", "ppo+clip_b(share=0.2)", *settings)
    sample_in_turn(in_turn)
    in_turn.run(lambda step: None)
    meanwhile = trained(tmp_path / "meanwhile", "ppo+clip_b(share=0.2)", *settings)
    steps = records(tmp_path / "in-turn")
    assert records(tmp_path / "meanwhile") == steps
    assert [step["rollout/lag"] for step in steps[1:]] == [0, 1, 1]
    assert same(weights(meanwhile), weights(in_turn))
    if resample:
        assert max(step["resample/batches"] for step in steps[1:]) > 1, "the thread samples the first batch alone"
    timed = [
        [{key for key in line["metrics"] if key.startswith("time/")} for line in MetricsLog(tmp_path / name).read()]
        for name in ("in-turn", "meanwhile")
    ]
    assert timed[0] == timed[1]


def test_the_engine_samples_while_the_policy_is_updated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = build(tmp_path, "grpo", "rollout.lag=1", "train.steps=2")
    sampling, updated = threading.Event(), threading.Event()
    generate, step, rested = trainer.engine.generate, trainer.policy.step, list[int]()

    def slow(*given: Any, **named: Any) -> list[list[Rollout]]:
        if threading.current_thread() is not threading.main_thread():
            sampling.set()
            assert updated.wait(HANG)
        return generate(*given, **named)

    def stepped(number: int) -> float:
        assert sampling.wait(HANG) or number > 1, "it samples for step 2 in step 1"
        norm = step(number)
        updated.set()
        return norm

    monkeypatch.setattr(trainer.engine, "generate", slow)
    monkeypatch.setattr(trainer.policy, "step", stepped)
    monkeypatch.setattr(trainer.engine, "rest", lambda: rested.append(trainer.parts.heartbeat.step))
    trainer.run(lambda step: None)
    assert rested == [2], "an engine that samples keeps its memory"


def test_a_failure_of_the_thread_is_one_of_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = build(tmp_path, "grpo", "rollout.lag=2")
    generate = trainer.engine.generate

    def failing(*given: Any, **named: Any) -> list[list[Rollout]]:
        if threading.current_thread() is not threading.main_thread():
            raise UserError("no room")
        return generate(*given, **named)

    monkeypatch.setattr(trainer.engine, "generate", failing)
    monkeypatch.setattr(trainer.engine, "load", None)  # which must not be called
    with pytest.raises(UserError, match=r"^no room$"):
        trainer.train_step(1, Stopwatch())


def test_methods_share_all_that_the_untrained_policy_samples(tmp_path: Path) -> None:
    settings = ["rollout.lag=2", "train.group=2", *RESAMPLE]
    one, other = (build(tmp_path / name, name, *settings) for name in ("grpo", "clip_b(share=0.2)"))
    for trainer in (one, other):
        trainer.train_step(1, Stopwatch())
        assert list(trainer.collector.in_flight) == [2, 3]
    assert not same(weights(one), weights(other))
    assert one.collector.in_flight == other.collector.in_flight


def test_collect_resumed_in_flight(tmp_path: Path) -> None:
    settings = ["rollout.lag=3", "train.group=2", *RESAMPLE]
    trainer = build(tmp_path / "one", "grpo", *settings)
    trainer.collector.collect(1, Stopwatch())
    trainer.collector.finish(Stopwatch())
    torch.save(trainer.collector.state(), tmp_path / "state.pt")
    other = build(tmp_path / "other", "grpo", *settings).collector
    other.load_state(torch.load(tmp_path / "state.pt", weights_only=True))
    assert list(other.in_flight) == [2, 3, 4]
    assert other.in_flight == trainer.collector.in_flight
    assert other.generated == trainer.collector.generated > 0
