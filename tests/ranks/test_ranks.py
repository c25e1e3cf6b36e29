"""Cells of several ranks, as real processes: the same results as one process, and no orphans."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from companions import forkserver, on_ranks, run_ranks
from known import known
from launched import ONE, check_lines, divided, lines, write_launched
from patience import at_work, wait_until
from safetensors.torch import load_file
from tiny import SIZES
from trainers import build, sampled
from transformers import Qwen3Config, Qwen3ForCausalLM

from harness import ranks
from harness.base import files
from harness.base.errors import short
from harness.cells.checksums import CHECKPOINTS
from harness.cells.state import State
from harness.config import Hardware, Train
from harness.launch import cell
from harness.methods import batch
from harness.methods.batch import Rollout, TokenBatch, TokenStats
from harness.rollout import models
from harness.tokens import metrics
from harness.tokens import statistics as tokenstats
from harness.tokens.metrics import Stopwatch
from harness.train.collect import Answered, Collected, shared_out
from harness.train.policy import Critic, Policy
from tasks import Problem, Verdict, Verifier
from tasks.countdown import Countdown


@pytest.mark.processes
@pytest.mark.long
def test_work_by_one_two_and_one_ranks(tmp_path: Path) -> None:
    """Also where activations are computed again and moments are offloaded, and with a checkpoint of each handed to the
    other. Two processes end where the entropy is too low, and not at the step that was asked for."""
    shared = ["train.steps=3", "eval.every=1"]
    write_launched(tmp_path / "whole", *shared)
    cell.work(tmp_path / "whole")
    whole = lines(tmp_path / "whole")
    first, second = (whole[step]["entropy/mean"] for step in (1, 2))
    # The rounding of some processors lets the entropy rise, and no bound on it can end the second step.
    falls = second < 0.99 * first
    end = f"stop.entropy_below={(first + second) / 2}" if falls else "train.steps=2"

    write_launched(tmp_path / "relay", *shared, "train.steps=1", key=ONE)
    cell.work(tmp_path / "relay")
    write_launched(tmp_path / "relay", *shared, end, "hardware.ranks=2", *SAVING, key=ONE)
    assert run_ranks(tmp_path / "relay") == 0
    state = State.read(tmp_path / "relay")
    assert (state.state, state.collapsed, state.durable_step) == ("done", 2 if falls else None, 2)
    assert list(lines(tmp_path / "relay")) == [0, 1, 2]
    of_two = load_file(tmp_path / "relay" / "model" / "model.safetensors")
    write_launched(tmp_path / "relay", *shared, key=ONE)
    cell.work(tmp_path / "relay")
    assert "step 0" not in (tmp_path / "relay" / "log.txt").read_text(), "each goes on from an earlier checkpoint"

    check_lines(tmp_path / "whole", tmp_path / "relay", steps=3)
    for step in whole:
        name = f"evals/countdown-{step:06d}.json"
        one, other = (files.read_json(tmp_path / run / name) for run in ("whole", "relay"))
        assert one["problems"] == other["problems"]
        assert one["right"] == other["right"]
    one, other = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("whole", "relay"))
    assert one.keys() == other.keys() == of_two.keys()
    for name, weight in one.items():
        # Adam makes steps of the learning rate, 1e-3, out of gradients that are almost nothing but rounding.
        torch.testing.assert_close(other[name], weight, rtol=1e-4, atol=1e-4)


SAVING = ["hardware.recompute=true", "hardware.offload=true"]
if shutil.which("g++"):
    SAVING += ["hardware.compile=true"]
RESAMPLE = ["train.resample.multiplier=1.5", "train.resample.max_batches=2"]
AHEAD, FEW = ["rollout.lag=2", *RESAMPLE], ["rollout.lag=1", "train.group=4", *RESAMPLE]


@pytest.mark.processes
@pytest.mark.long
def test_work_on_rollouts_in_flight_of_killed_ranks(tmp_path: Path) -> None:
    """Kill the process of the cell alone, with which its ranks end."""
    write_launched(tmp_path / "whole", *AHEAD)
    cell.work(tmp_path / "whole")

    write_launched(tmp_path / "relay", *AHEAD, "hardware.ranks=2")
    parent = forkserver().Process(target=cell.divide, args=(tmp_path / "relay", 2))
    parent.start()
    try:
        wait_until(lambda: State.read(tmp_path / "relay").durable_step >= 2)
        assert len(at_work(tmp_path / "relay")) == 2
    finally:
        parent.kill()
        parent.join()
    wait_until(lambda: not at_work(tmp_path / "relay"))
    assert State.read(tmp_path / "relay").durable_step < 6, "otherwise nothing is left for one process"
    write_launched(tmp_path / "relay", *AHEAD)
    cell.work(tmp_path / "relay")
    assert "step 0" not in (tmp_path / "relay" / "log.txt").read_text(), "it goes on from their checkpoint"

    check_lines(tmp_path / "whole", tmp_path / "relay", steps=6)
    one, other = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("whole", "relay"))
    for name, weight in one.items():
        # Adam makes steps of the learning rate, 1e-3, out of gradients that are almost nothing but rounding.
        torch.testing.assert_close(other[name], weight, rtol=1e-3, atol=1e-4)


def collect_on_rank(rank: int, folder: Path) -> tuple[Any, ...]:
    """Return what a rank trains on, what all have in flight, and that of one process as this rank has it; and which
    problems of an evaluation it has judged."""
    trainer = build(folder / str(rank), "grpo", "hardware.ranks=2", *FEW)
    collector = trainer.collector
    collected = collector.collect(1, Stopwatch())
    collector.finish(Stopwatch())
    state = collector.state()
    collector.load_state(torch.load(folder / "alone.pt"))
    judged: set[str] = set()

    def verdicts(task: Countdown, pairs: Sequence[tuple[Problem, str]], _: Verifier) -> list[Verdict]:
        judged.update(problem.id for problem, _ in pairs)
        return [task.verdict(*pair) for pair in pairs]

    with mock.patch.object(Countdown, "verdicts", verdicts):
        scores = trainer.evaluate(0)
    return collected, state, collector.in_flight, judged, scores


@pytest.mark.processes
@pytest.mark.slow
def test_collect_on_two_ranks(tmp_path: Path) -> None:
    trainer = build(tmp_path / "alone", "grpo", *FEW)
    alone = trainer.collector
    whole = alone.collect(1, Stopwatch())
    alone.finish(Stopwatch())
    state = alone.state()
    torch.save(state, tmp_path / "alone.pt")
    shares = on_ranks(collect_on_rank, tmp_path)
    evaluated = [problem.id for problem in trainer.parts.task.problems("test")[:8]]
    assert [judged for *_, judged, _ in shares] == [set(evaluated[::2]), set(evaluated[1::2])]
    assert [scores for *_, scores in shares] == [trainer.evaluate(0), {}]
    for rank, (collected, theirs, taken_over, *_) in enumerate(shares):
        assert list(map(plain, collected.answered)) == list(map(plain, of_rank(rank, whole)))
        assert (collected.generated, collected.record) == (whole.generated, whole.record)
        assert {step: answered.answered for step, answered in taken_over.items()} == {
            step: of_rank(rank, answered) for step, answered in alone.in_flight.items()
        }
        assert theirs["generated"] == state["generated"]
        assert theirs["in_flight"].keys() == state["in_flight"].keys() == {2}
        for step, packed in state["in_flight"].items():
            other = theirs["in_flight"][step]
            assert torch.equal(other.pop("tokens"), packed["tokens"])
            # The same tokens in other company are computed by other products of matrices.
            torch.testing.assert_close(other.pop("logp"), packed["logp"], rtol=1e-5, atol=1e-5)
            assert other == {name: value for name, value in packed.items() if name not in ("tokens", "logp")}


def log_on_rank(rank: int, folder: Path) -> dict[str, float]:
    """Return the means that a rank logs of its own tokens, of which it has none in one part."""
    parts = [[{"x": torch.tensor([1.0, 2.0])}, {"x": torch.tensor([6.0])}], [{"x": torch.tensor([])}]]
    return metrics.of_updates(parts[rank] + [{"x": torch.tensor([9.0 + rank])}])


@pytest.mark.processes
def test_of_updates_on_two_ranks(tmp_path: Path) -> None:
    expected = (1 + 2 + 6 + 9 + 10) / 5
    assert on_ranks(log_on_rank, tmp_path) == [{"updates/x": expected}] * 2


def of_rank(rank: int, whole: Collected) -> list[Answered]:
    """Return half of each of two mini-batches, with about half of its tokens."""
    owners = shared_out([answered.tokens for answered in whole.answered], 2, 2)
    assert owners != [0, 0, 1, 1, 0, 0, 1, 1], "otherwise no group moves to another rank than the one that sampled it"
    return [answered for answered, owner in zip(whole.answered, owners, strict=True) if owner == rank]


def plain(answered: Answered) -> tuple[object, ...]:
    """Return all but the log-probabilities, which rounding may change."""
    return (
        answered.place,
        answered.problem,
        answered.verdicts,
        [(r.prompt, r.response, r.finished) for r in answered.rollouts],
    )


@pytest.mark.processes
@pytest.mark.long
def test_divide_with_a_failing_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one_rank_fails.py").write_text(
        "from dataclasses import dataclass\n"
        "from harness import ranks\n"
        "from harness.methods.verbs import Control\n"
        "from harness.train.policy import CellFailure\n"
        "@dataclass(frozen=True)\n"
        "class Failing(Control):\n"
        "    def weights(self, old, advantages_T, batch):\n"
        "        if ranks.own_rank() == 1:\n"
        "            raise CellFailure('the second rank has had enough')\n"
        "        return 1.0\n"
        "METHODS = {'failing': Failing}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    write_launched(tmp_path / "cell", "hardware.ranks=2", "plugins=[one_rank_fails]", method="failing")
    assert divided(tmp_path / "cell", 2) == 1
    state = files.read_json(tmp_path / "cell" / "state.json")
    assert (state["state"], state["reason"]) == ("failed", "the second rank has had enough (in stats of step 1)")


def cut_tensors(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-40])


def change_width(folder: Path) -> None:
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stated | {"intermediate_size": stated["intermediate_size"] + 1}))


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "start", "end"),
    [
        (cut_tensors, "model {} cannot be read: model.safetensors: ", "(in loading the model)"),
        (change_width, "the tensors in {} cannot be read: ValueError: Size mismatch ", "(in loading the model)"),
    ],
)
def test_work_with_an_unreadable_model(harm: Callable[[Path], None], start: str, end: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(models.resolve("countdown-tiny").folder(), model)
    harm(model)
    write_launched(tmp_path / "cell", "hardware.ranks=2", f"models=[{model}]", model=str(model))
    assert run_ranks(tmp_path / "cell") == 1
    state, log = State.read(tmp_path / "cell"), (tmp_path / "cell" / "log.txt").read_text()
    reason = str(state.reason)
    assert state.state == "failed"
    assert reason.startswith(start.format(short(str(model))))
    assert reason.endswith(end)
    assert [line for line in log.splitlines() if "cannot be read" in line] == [f"failed: {reason}"]
    assert "Traceback" not in log


@pytest.mark.processes
@pytest.mark.long
def test_work_with_a_damaged_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "cell"
    write_launched(folder, "train.steps=1", "eval.every=0", key=ONE)
    cell.work(folder)
    [shard] = (folder / CHECKPOINTS / "step-000001").glob("shard-*")
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    write_launched(folder, "train.steps=2", "eval.every=0", "hardware.ranks=2", key=ONE)
    assert run_ranks(folder) == 0
    assert State.read(folder).state == "done"
    log = (folder / "log.txt").read_text()
    assert log.count(f"warning: the checkpoint {shard.parent} is damaged ({shard.name})\n") == 1
    assert log.count("warning: no checkpoint is whole; training starts at step 0\n") == 1
    assert "Traceback" not in log


# The vocabulary is odd, and large enough for the streaming statistics.
LARGE = {**SIZES, "vocab_size": 5003, "num_hidden_layers": 3, "tie_word_embeddings": False}


def responses(group: int) -> list[Rollout]:
    """Longer ones in later groups."""
    generator = torch.Generator().manual_seed(group)
    lengths = (3 + group, *[5 * group + 3] * 3)
    prompt, *tails = (torch.randint(1, 5000, (n,), generator=generator).tolist() for n in lengths)
    return [Rollout(prompt, tail, [-1.0] * len(tail), True) for tail in tails]


def trained(folder: Path, groups: Sequence[int], recompute: bool) -> dict[str, torch.Tensor]:
    """Gradient norms, statistics and weights of three updates on these groups, in micro-batches of one or two."""
    policy = Policy(folder, Train(lr=1e-2), 0.9, "cpu", torch.float32, Hardware(micro_tokens=90, recompute=recompute))
    batch = TokenBatch.of([responses(group) for group in groups], [0.0] * 3 * len(groups), 100, "cpu")
    result = {"idle": torch.tensor([len(part.index_T) == 0 for part in policy.micro_batches(batch)])}
    for update in range(3):
        stats = policy.stats(batch, frozenset({"sum_p2"}))
        result[f"deviation {update}"] = batch.global_mean(stats.discriminator - stats.expected_discriminator)
        for part in policy.micro_batches(batch):
            current = policy.current(part, frozenset({"entropy_grad"}))
            policy.backward((0.1 * known(current.entropy) - 0.5 * current.logp).sum() / 500)
        result[f"norm {update}"] = torch.tensor(policy.step(1))
    return result | {name: ranks.whole_weight(weight.detach()) for name, weight in policy.module.named_parameters()}


UNEQUAL = ([0, 1, 2], [3, 4, 5, 6, 7])


def train_on_rank(rank: int, folder: Path) -> list[dict[str, torch.Tensor]]:
    results = []
    for batch.LONG, recompute in ((10**6, False), (0, True)):  # with padding, and without
        results.append(trained(folder / "model", UNEQUAL[rank], recompute))
    return results


@pytest.mark.processes
def test_policy_with_unequal_shares(tmp_path: Path) -> None:
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**LARGE)).save_pretrained(tmp_path / "model")
    by_rank = on_ranks(train_on_rank, tmp_path)
    alone = trained(tmp_path / "model", range(8), recompute=False)
    for rank, results in enumerate(by_rank):
        for together in results:
            assert together.pop("idle").any() == (rank == 0)
            for name, value in together.items():
                # Adam makes steps of the learning rate, 1e-2, out of the few gradients that are nothing but rounding:
                # of one weight in 600 with AVX2.
                close = torch.isclose(value, alone[name], rtol=2e-5, atol=2e-5).double().mean()
                assert close > 0.995, name
                torch.testing.assert_close(value, alone[name], rtol=2e-5, atol=2e-3, msg=name)


Passed = dict[str, Any]  # tensors and types


def passed(folder: Path, groups: Sequence[int], dtype: torch.dtype) -> Passed:
    """Return statistics and gradients of policy and critic on these groups, and the types that their weights have."""
    hardware = Hardware(micro_tokens=90, recompute=0.5)
    policy = Policy(folder, Train(), 0.9, "cpu", dtype, hardware)
    critic = Critic(folder, Train(), 1e-3, "cpu", dtype, hardware)
    with torch.no_grad():
        ranks.here(critic.module.head.weight).fill_(0.1)
    result: Passed = {}
    for name, module in (("layer", policy.module.model.layers[0].mlp.up_proj), ("head", critic.module.head)):
        module.register_forward_pre_hook(lambda module, _, name=name: result.update({name: module.weight.dtype}))
    batch = TokenBatch.of([responses(group) for group in groups], [0.0] * 3 * len(groups), 100, "cpu")
    result |= {"logp": policy.stats(batch).logp, "values": critic.values(batch)}
    for part in policy.micro_batches(batch):
        policy.backward(policy.current(part, frozenset()).logp.sum() / 500)
    for part in critic.micro_batches(batch):
        critic.backward((critic.current(part) - 1).square().sum() / 500)
    for learner in (policy, critic):
        gradients = []
        for weight in learner.weights.values():
            gradients.append(ranks.whole_weight(known(weight.grad)).flatten())
        result[f"gradient of the {type(learner).__name__.lower()}"] = torch.cat(gradients)
    return result


def pass_on_rank(rank: int, folder: Path) -> Passed:
    return passed(folder / "model", UNEQUAL[rank], torch.bfloat16)


@pytest.mark.processes
@pytest.mark.long
def test_shards_in_bfloat16_are_as_near_to_float32_as_autocast(tmp_path: Path) -> None:
    """Weights are gathered in bfloat16, except a critic's head; gradients are summed in float32."""
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**LARGE)).save_pretrained(tmp_path / "model")
    by_rank = on_ranks(pass_on_rank, tmp_path)
    together = dict(by_rank[0])
    for name in ("logp", "values"):
        together[name] = torch.cat([result[name] for result in by_rank])
    exact = passed(tmp_path / "model", range(8), torch.float32)
    autocast = passed(tmp_path / "model", range(8), torch.bfloat16)
    assert (together.pop("layer"), together.pop("head")) == (torch.bfloat16, torch.float32)
    for name, actual in together.items():
        assert actual.dtype == torch.float32
        error, accepted = ((x - exact[name]).norm() / exact[name].norm() for x in (actual, autocast[name]))
        assert error < 1.5 * accepted + 1e-3, name
        assert error < 0.02, name


@pytest.mark.parametrize("backend", ["dense", "torch"])
def test_current_of_an_idle_batch(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenstats, "SMALL", 10**6 if backend == "dense" else 0)
    trainer = build(tmp_path, "grpo", "rollout.temperature=0.7")
    groups = sampled(trainer, 1)
    batch = TokenBatch.of(groups, [0.0, 1.0] * 32, 20, "cpu")
    idle = batch.idle()
    assert len(idle) == 1
    current = trainer.policy.current(idle, frozenset({"entropy_grad"}))
    assert current.logp.shape == (0,)
    (current.logp.sum() + known(current.entropy).sum()).backward()
    gradients = [weight.grad for weight in trainer.policy.module.parameters()]
    assert all(grad is not None and not grad.any() for grad in gradients)
    stats = [trainer.policy.stats(part, frozenset({"sum_p2"})) for part in (batch, idle)]
    joined = TokenStats.cat(stats)
    assert torch.equal(joined.logp, stats[0].logp)


# Work that rank 0 alone asks for


def tenfold(items: list[int], *, plus: int) -> list[int]:
    assert items, "nobody is asked for nothing"
    return [10 * item + plus + ranks.own_rank() for item in items]


def share_on_rank(rank: int, folder: Path) -> list[list[int]] | None:
    with ranks.on_all_ranks(tenfold) as work:
        return None if work is None else [work([1, 2, 3], plus=4), work([7], plus=0)]


@pytest.mark.processes
def test_on_all_ranks_of_two(tmp_path: Path) -> None:
    assert on_ranks(share_on_rank, tmp_path) == [[[14, 25, 34], [70]], None]


def test_on_all_ranks_of_one_process() -> None:
    with ranks.on_all_ranks(lambda items: [-item for item in items]) as work:
        assert known(work)([1, 2]) == [-1, -2]
