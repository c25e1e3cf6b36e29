"""How the rollouts that a step trains on come to be: who is asked what, which groups are kept, when they are due.

    superset = the step's places in an endless row of shuffled problems           # fixed by the seed and the step
    for candidates in superset, in order:                                         # all at once without train.resample
        sample and judge a group of responses to each, every rank its share
        enough groups with signal: stop
    keep train.prompts groups, and share them out over mini-batches, in order, and over ranks, by tokens
    train on them rollout.lag steps later

Who is asked depends neither on what ran before nor on the number of ranks, and every response has a seed of its own:
from the seed of the cell, the step that trains on it, and its place in that step's superset. So methods are paired.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from harness.base import files, seeds
from harness.base.task import Answer, Judged
from harness.batch import Rollout
from harness.dist import ranks
from harness.rollout.rendering import render_prompt
from harness.tokens.metrics import Stopwatch
from harness.train.parts import Parts
from harness.verify.background import BackgroundJudge, judge_rollouts
from harness.verify.pool import TooManyFailures, check_failures
from tasks import Problem, Verdict

T = TypeVar("T")

KEPT = 8  # problems of a step whose samples are kept for people, at most


@dataclass(frozen=True)
class Answered:
    """A problem and a group of responses to it, judged."""

    place: int  # in the superset of the step
    problem: Problem
    rollouts: list[Rollout]
    judged: list[Judged]
    answer_tokens: list[int]  # of each response, up to the end of its answer

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdicts on the responses."""
        return [each.verdict for each in self.judged]

    @property
    def rewards(self) -> list[float]:
        """Returns the rewards as the task gives them, before any method reshapes them."""
        return [float(verdict == Verdict.RIGHT) for verdict in self.verdicts]

    @property
    def has_signal(self) -> bool:
        """Says whether its responses earn different rewards: otherwise none is better than another."""
        return len(set(self.rewards)) > 1

    @property
    def tokens(self) -> int:
        return sum(len(rollout.response) for rollout in self.rollouts)


@dataclass(frozen=True)
class Collected:
    """Holds what a step trains on, this rank's share of it in order of places, and how it came to be."""

    answered: list[Answered]
    generated: int  # tokens that were sampled for it on all ranks, those of groups that were set aside too
    lag: int  # steps that the policy is ahead of the one that sampled this
    record: dict[str, float]  # of the resampling

    @property
    def places(self) -> list[int]:
        return [each.place for each in self.answered]

    @property
    def problems(self) -> list[Problem]:
        return [each.problem for each in self.answered]

    @property
    def groups(self) -> list[list[Rollout]]:
        return [each.rollouts for each in self.answered]

    @property
    def verdicts(self) -> list[Verdict]:
        """Returns the verdicts on all responses, one group after the other."""
        return [verdict for each in self.answered for verdict in each.verdicts]

    @property
    def judged(self) -> list[list[Judged]]:
        """The judgments on the responses of each group."""
        return [each.judged for each in self.answered]

    @property
    def answer_tokens(self) -> list[int]:
        """The tokens of all responses up to the ends of their answers, one group after the other."""
        return [tokens for each in self.answered for tokens in each.answer_tokens]


class Collector:
    """Collects the rollouts of each step, and holds those that were sampled ahead of theirs."""

    def __init__(self, parts: Parts, folder: Path) -> None:
        self.parts, self.folder, self.config = parts, folder, parts.config
        self.slots = slots(self.config.train.prompts, self.config.train.updates)
        self.in_flight: dict[int, Collected] = {}  # by the step that trains on them
        self.generated = 0  # tokens, for all steps that were trained so far

    def collect(self, step: int, watch: Stopwatch) -> Collected:
        """Returns what a step trains on; before that the present policy samples for the step `rollout.lag` ahead, and
        before the first step for all others up to that one."""
        ahead = min(step + self.config.rollout.lag, self.config.train.steps)
        for due in range(step, max(step, ahead) + 1):
            if due not in self.in_flight:
                self.in_flight[due] = self.sample(due, watch, lag=due - step)
        with watch.phase("rollout"):
            self.parts.engine.rest()  # its memory is the update's until the next load
        found = self.in_flight.pop(step)
        self.generated += found.generated
        if ranks.number() == 0 and (step == 1 or step % self.config.checkpoint.every == 0):
            self.keep_samples(step, found.answered)
        return found

    def record_of(self, found: Collected) -> dict[str, float]:
        """Returns what is logged of how the rollouts of a step came to be."""
        return {
            "tokens/generated": float(found.generated),
            "tokens/generated_total": float(self.generated),
            **found.record,
            **({"rollout/lag": float(found.lag)} if self.config.rollout.lag else {}),
        }

    def sample(self, step: int, watch: Stopwatch, *, lag: int = 0, temperature: float | None = None) -> Collected:
        """Samples for a step from the policy that the engine has; at another temperature than the configured one where
        it is given."""
        prompts, resample = self.config.train.prompts, self.config.train.resample
        drawn: list[Answered] = []  # by this rank
        signal: dict[int, bool] = {}  # by the places drawn on all ranks
        batches = 0
        for candidates in self.candidates():
            new = self.answer(step, candidates, watch, temperature)
            drawn, batches = drawn + new, batches + 1
            signal |= of_all([(each.place, each.has_signal) for each in new])
            if sum(signal.values()) >= prompts:
                break
        self.check_verdicts(step, drawn)
        tokens = dict(of_all([(each.place, each.tokens) for each in drawn]))
        kept, filled = chosen(signal, prompts)
        record = {}
        if resample is not None:
            rewards = of_all([reward for each in drawn for reward in each.rewards])
            record = {
                "resample/batches": float(batches),
                "resample/filled": float(filled),
                "resample/reward_mean": sum(rewards) / len(rewards),
            }
        mine = [kept[slot] for slot in self.dealt([tokens[place] for place in kept])]
        moving = of_all(at(drawn, set(kept).difference(mine)))
        share = at([*drawn, *moving], mine)
        assert len(share) == len(self.slots)
        return Collected(share, sum(tokens.values()), lag, record)

    def dealt(self, tokens: Sequence[int]) -> list[int]:
        """Returns this rank's numbers among the groups that a step trains on, given how many tokens each has."""
        owners = dealt(tokens, self.config.train.updates, ranks.count())
        return [slot for slot, rank in enumerate(owners) if rank == ranks.number()]

    def candidates(self) -> Iterator[list[int]]:
        """Yields this rank's places in the superset of a step, batch by batch."""
        resample = self.config.train.resample
        if resample is None:
            yield self.slots
            return
        size = int(resample.candidates(self.config.train.prompts))
        for start in range(0, resample.max_batches * size, size):
            yield list(range(start + ranks.number(), start + size, ranks.count()))

    def problems(self, step: int, places: Sequence[int]) -> list[Problem]:
        """Returns the problems of a step at some places of its superset, which is a part of an endless row of shuffled
        passes; the seed and the step fix it."""
        train, problems = self.config.train, self.parts.pool.problems
        superset = train.prompts if train.resample is None else train.resample.superset(train.prompts)
        size, start = len(problems), (step - 1) * superset
        row = [start + place for place in places]
        orders = {
            number: np.random.default_rng(seeds.derive("order", self.parts.seed, number)).permutation(size)
            for number in {place // size for place in row}
        }
        return [problems[orders[place // size][place % size]] for place in row]

    def answer(
        self, step: int, places: Sequence[int], watch: Stopwatch, temperature: float | None = None
    ) -> list[Answered]:
        """Samples responses to the problems at these places, and judges them meanwhile."""
        problems, rollout = self.problems(step, places), self.config.rollout
        parts = self.parts
        with BackgroundJudge(partial(judge_rollouts, parts.task, parts.verifier, parts.tokenizer, problems)) as judging:
            with watch.phase("rollout"):
                groups = self.parts.engine.generate(
                    [self.prompt(problem) for problem in problems],
                    self.config.train.group,
                    seeds=[seeds.derive("rollout", self.parts.seed, step, place) for place in places],
                    temperature=rollout.temperature if temperature is None else temperature,
                    max_new_tokens=rollout.max_new_tokens,
                    on_group=judging.add,
                )
            with watch.phase("verify"):  # what sampling has not hidden
                read_ones = judging.results()
        before = watch.seconds.get("time/judging_s", 0.0)
        watch.seconds["time/judging_s"] = before + judging.seconds  # beside the sampling and after it
        assert len(read_ones) == sum(map(len, groups))
        judged, answer_tokens = [each.judged for each in read_ones], [each.answer_tokens for each in read_ones]
        return grouped(places, problems, groups, judged, answer_tokens)

    def prompt(self, problem: Problem) -> list[int]:
        return render_prompt(self.parts.tokenizer, problem.prompt, self.parts.chat)

    def check_verdicts(self, step: int, drawn: Sequence[Answered]) -> None:
        """Raises TooManyFailures where the verifier fails too often on all that was drawn for a step."""
        verdicts = [verdict for each in drawn for verdict in each.verdicts]
        try:
            check_failures(of_all(verdicts), self.config.verify.max_failures)
        except TooManyFailures:
            if ranks.number() == 0:
                self.keep_samples(step, drawn)  # which show why
            raise

    def keep_samples(self, step: int, answered: Sequence[Answered]) -> None:
        lines = []
        for each in answered[:KEPT]:
            texts = self.parts.tokenizer.batch_decode([rollout.response for rollout in each.rollouts])
            problem = each.problem
            lines.append(
                {"problem": problem.id, "prompt": problem.prompt, "responses": texts, "verdicts": each.verdicts}
            )
        files.write_lines(self.folder / "samples" / f"train-{step:06d}.jsonl", lines)

    # Checkpoints

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps, of all ranks; every rank must come to it."""
        return {
            "generated": self.generated,
            "in_flight": {step: packed(found) for step, found in self.in_flight.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.generated = state["generated"]
        found = {int(step): each for step, each in state["in_flight"].items()}  # JSON has no other keys than text
        self.in_flight = {step: self.unpacked(step, each) for step, each in found.items()}

    def unpacked(self, step: int, found: Mapping[str, Any]) -> Collected:
        """Returns this rank's share of what all ranks, perhaps fewer or more of them, have packed."""
        n = self.config.train.group
        ends = list(accumulate(found["lengths"], initial=0))
        mine = self.dealt([end - start for start, end in pairwise(ends[::n])])
        places = [found["places"][slot] for slot in mine]
        problems = self.problems(step, places)
        groups, judged, answer_tokens = [], [], []
        for slot, problem in zip(mine, problems, strict=True):
            prompt, rows = self.prompt(problem), range(slot * n, (slot + 1) * n)
            parts = [slice(ends[row], ends[row + 1]) for row in rows]
            tokens, logp = ([found[name][part].tolist() for part in parts] for name in ("tokens", "logp"))
            finished = [found["finished"][row] for row in rows]
            groups.append([Rollout(prompt, *each) for each in zip(tokens, logp, finished, strict=True)])
            judged += [unpacked_judged(*found["judged"][row]) for row in rows]
            answer_tokens += [found["answer_tokens"][row] for row in rows]
        answered = grouped(places, problems, groups, judged, answer_tokens)
        return Collected(answered, found["generated"], found["lag"], found["record"])


def of_all(values: Sequence[T]) -> list[T]:
    """Returns the values of all ranks in one row; every rank must come to it."""
    return [value for theirs in ranks.each(values) for value in theirs]


def packed(found: Collected) -> dict[str, Any]:
    """Returns the groups of all ranks in order of places as a few long rows, without what the step and the places say;
    every rank must come to it."""
    answered = sorted(of_all(found.answered), key=lambda each: each.place)
    rollouts = [rollout for each in answered for rollout in each.rollouts]
    return {
        "places": [each.place for each in answered],
        "judged": [packed_judged(judged) for each in answered for judged in each.judged],
        "answer_tokens": [tokens for each in answered for tokens in each.answer_tokens],
        "lengths": [len(rollout.response) for rollout in rollouts],
        "finished": [rollout.finished for rollout in rollouts],
        "tokens": torch.tensor([token for rollout in rollouts for token in rollout.response], dtype=torch.int32),
        "logp": torch.tensor([x for rollout in rollouts for x in rollout.logp], dtype=torch.float32),  # as in a batch
        "generated": found.generated,
        "lag": found.lag,
        "record": found.record,
    }


def packed_judged(judged: Judged) -> tuple[str, tuple[str | None, int] | None, bool]:
    """Return a judgment as plain values."""
    answer = judged.answer
    return str(judged.verdict), None if answer is None else (answer.text, answer.end), judged.goes_on


def unpacked_judged(verdict: str, answer: Sequence[Any] | None, goes_on: bool) -> Judged:
    """Return the judgment that plain values stand for."""
    return Judged(Verdict(verdict), None if answer is None else Answer(*answer), goes_on)


def grouped(
    places: Sequence[int],
    problems: Sequence[Problem],
    groups: Sequence[list[Rollout]],
    judged: Sequence[Judged],
    answer_tokens: Sequence[int],
) -> list[Answered]:
    """Return each group with its problem and its judgments, which come in one row for all groups."""
    ends = list(accumulate(map(len, groups), initial=0))
    rows = [slice(*both) for both in pairwise(ends)]
    return [
        Answered(place, problem, group, list(judged[row]), list(answer_tokens[row]))
        for place, problem, group, row in zip(places, problems, groups, rows, strict=True)
    ]


def at(answered: Sequence[Answered], places: Collection[int]) -> list[Answered]:
    """Returns those that stand at these places, in their order."""
    wanted = set(places)
    return sorted((each for each in answered if each.place in wanted), key=lambda each: each.place)


def chosen(signal: Mapping[int, bool], prompts: int) -> tuple[list[int], int]:
    """Returns the places of the groups that are trained on, in order, and how many of them are without signal.

    The first groups with signal are; the first ones without fill up where there are not enough.
    """
    able = [place for place in sorted(signal) if signal[place]][:prompts]
    idle = [place for place in sorted(signal) if not signal[place]][: prompts - len(able)]
    return sorted(able + idle), len(idle)


def slots(prompts: int, updates: int) -> list[int]:
    """Returns this rank's numbers among the groups that are sampled for a step: an equal part of each mini-batch."""
    share = prompts // (updates * ranks.count())
    starts = (share * (update * ranks.count() + ranks.number()) for update in range(updates))
    return [slot for start in starts for slot in range(start, start + share)]


def dealt(tokens: Sequence[int], updates: int, world: int) -> list[int]:
    """Returns the rank that trains on each group, given how many tokens each has: of each mini-batch all ranks get
    equally many groups and about equally many tokens.

    The larger ones come first, each to the rank with the fewest tokens among those that still lack groups.
    """
    owners = [0] * len(tokens)
    size = len(tokens) // updates
    for start in range(0, len(tokens), size):
        load, lacking = [0] * world, [size // world] * world
        for slot in sorted(range(start, start + size), key=lambda slot: -tokens[slot]):
            rank = min((rank for rank in range(world) if lacking[rank]), key=load.__getitem__)
            owners[slot] = rank
            load[rank] += tokens[slot]
            lacking[rank] -= 1
    return owners
