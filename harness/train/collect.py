"""The rollouts of a training step: which problems are sampled, which groups are kept, and when they are trained on.

    superset = the step's places in an endless row of the problems                # fixed by the seed and the step
    for candidates in superset, in order:                                         # all at once without train.resample
        sample and judge a group of responses to each, every rank its share
        enough groups with signal: stop
    keep train.prompts groups, and share them out over mini-batches, in order, and over ranks, by tokens
    train on them rollout.lag steps later; meanwhile the engine samples for a later step

The problems depend neither on earlier steps nor on the number of ranks, and every response has a seed of its own: from
the seed of the cell, the step that trains on it, and its place in that step's superset. So methods are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from harness import ranks
from harness.base import files, seeds
from harness.base.task import Answer, Judged
from harness.config import GIVEN
from harness.methods.batch import Rollout, TokenBatch
from harness.rollout.rendering import render_prompt
from harness.tokens.metrics import Stopwatch
from harness.verify.background import BackgroundJudge, JudgedRollout, judge_rollouts
from harness.verify.pool import TooManyFailures, check_failures
from tasks import Problem, Verdict

if TYPE_CHECKING:
    from harness.train.parts import Parts

T = TypeVar("T")

SHOWN_PROBLEMS = 8  # of a step, at most, whose samples are written for people


@dataclass(frozen=True)
class Draw:
    """This rank's responses to some problems of a step, which are being sampled and judged, or will be."""

    places: Sequence[int]  # in the superset of the step
    problems: list[Problem]
    judging: BackgroundJudge[JudgedRollout]
    groups: Callable[[], list[list[Rollout]]]  # samples them, or waits for the thread that does


@dataclass(frozen=True)
class Answered:
    """A problem and a group of responses to it, judged."""

    place: int  # in the superset of the step
    problem: Problem
    rollouts: list[Rollout]
    judged: list[Judged]
    answer_tokens: list[int]  # of each response, up to the end of its answer

    @classmethod
    def of(cls, place: int, problem: Problem, rollouts: list[Rollout], results: Sequence[JudgedRollout]) -> Answered:
        assert len(results) == len(rollouts)
        judged = [result.judged for result in results]
        return cls(place, problem, rollouts, judged, [result.answer_tokens for result in results])

    @property
    def verdicts(self) -> list[Verdict]:
        return [response.verdict for response in self.judged]

    @property
    def rewards(self) -> list[float]:
        """The rewards as the task gives them, before any method shapes them."""
        return [response.reward for response in self.judged]

    @property
    def has_signal(self) -> bool:
        """Whether responses have different rewards: otherwise none is better than another."""
        return len(set(self.rewards)) > 1

    @property
    def tokens(self) -> int:
        return sum(len(rollout.response) for rollout in self.rollouts)


@dataclass(frozen=True)
class Collected:
    """This rank's share of the groups that a step trains on, in order of places, and how they were sampled."""

    answered: list[Answered]
    generated: int  # tokens sampled for the step on all ranks, groups that were not kept included
    lag: int  # steps from the policy that sampled them to the policy that trains on them
    record: dict[str, float]  # of the resampling

    @property
    def groups(self) -> list[list[Rollout]]:
        return [group.rollouts for group in self.answered]

    @property
    def judged(self) -> list[list[Judged]]:
        return [group.judged for group in self.answered]

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdicts on all responses, one group after the other."""
        return flattened(group.verdicts for group in self.answered)

    @property
    def answer_tokens(self) -> list[int]:
        """The tokens of all responses up to the ends of their answers, one group after the other."""
        return flattened(group.answer_tokens for group in self.answered)

    def batch(
        self, budget: int, device: str, base_right: Mapping[str, float] | None = None, **draws: Any
    ) -> TokenBatch:
        """Return the groups as a token batch.

        `budget`: of a response, `base_right`: that of the training pool, `draws`: its seed and progress.
        """
        return TokenBatch.of(
            self.groups,
            flattened(group.rewards for group in self.answered),
            budget,
            device,
            right=[verdict == Verdict.RIGHT for verdict in self.verdicts],
            base_right=None if base_right is None else [base_right[group.problem.id] for group in self.answered],
            answers=[response.text for group in self.judged for response in group],
            places=[group.place for group in self.answered],
            **draws,
        )


class Collector:
    """Samples the rollouts of each step, and holds the ones that were sampled ahead of their step."""

    def __init__(self, parts: Parts, folder: Path) -> None:
        self.parts, self.folder, self.config = parts, folder, parts.config
        train = parts.config.train
        self.slots = numbers_of_rank(train.prompts, train.updates, ranks.own_rank(), ranks.count())
        self.in_flight: dict[int, Collected] = {}  # by the step that trains on them
        self.generated = 0  # tokens, for all steps trained so far
        device = torch.cuda.current_device() if parts.policy.device == "cuda" else None
        self.thread = ThreadPoolExecutor(1, "sampling", set_up_sampling, (device,))
        self.begun: tuple[int, Iterator[Draw]] | None = None  # the step for which the thread samples

    def collect(self, step: int, watch: Stopwatch) -> Collected:
        """Return the rollouts of a step, and begin to sample with the present policy for the step `rollout.lag` ahead.

        At the first step it also samples for all steps before that one.
        """
        lag = self.config.rollout.lag
        last = min(step + lag, self.config.train.steps)
        for due in range(step, max(step, last) + 1):  # `max`: a single step may be asked for beyond the last one
            if due in self.in_flight:
                continue
            if lag and due == step + lag:
                self.begin(due, watch)
            else:
                self.in_flight[due] = self.sample(due, watch, lag=due - step)
        if self.begun is None:
            with watch.phase("rollout"):
                self.parts.engine.rest()  # gives its memory to the update, until the next load
        collected = self.in_flight.pop(step)
        self.generated += collected.generated
        if ranks.own_rank() == 0 and (step == 1 or step % self.config.checkpoint.every == 0):
            self.keep_samples(step, collected.answered)
        return collected

    def begin(self, step: int, watch: Stopwatch) -> None:
        """Let the thread sample the first candidates of a step, until `finish`."""
        draws = self.draws(step, watch)
        first = next(draws)  # a phase, which waits for the kernels that load the weights; the thread's stream does not
        first = replace(first, groups=self.thread.submit(first.groups).result)
        self.begun = step, chain([first], draws)

    def finish(self, watch: Stopwatch) -> None:
        """Wait for what the thread samples, if anything: only then is the engine free.

        The exchange with other ranks is here, so that no two threads use collectives; so are further candidates.
        """
        if self.begun is not None:
            (step, draws), self.begun = self.begun, None
            self.in_flight[step] = self.sample(step, watch, lag=self.config.rollout.lag, draws=draws)

    def record_of(self, collected: Collected) -> dict[str, float]:
        """Return the numbers to log of how a step's rollouts were sampled."""
        record = {
            "tokens/generated": float(collected.generated),
            "tokens/generated_total": float(self.generated),
            **collected.record,
        }
        if self.config.rollout.lag:
            record["rollout/lag"] = float(collected.lag)
        return record

    def sample(
        self,
        step: int,
        watch: Stopwatch,
        *,
        lag: int = 0,
        temperature: float | None = None,
        draws: Iterator[Draw] | None = None,
    ) -> Collected:
        """Sample for a step with the engine's policy, at the configured temperature unless another one is given.

        `draws`: of all candidates, of which some may have been sampled already.
        """
        prompts, resample = self.config.train.prompts, self.config.train.resample
        drawn: list[Answered] = []  # by this rank
        signal: dict[int, bool] = {}  # whether each place drawn by any rank has signal
        batches = 0
        for draw in draws or self.draws(step, watch, temperature):
            new = self.answer(draw, watch)
            drawn, batches = drawn + new, batches + 1
            signal |= of_all([(group.place, group.has_signal) for group in new])
            # Over the draws of all ranks, so that all of them stop after the same batch.
            if sum(signal.values()) >= prompts:
                break
        self.check_verdicts(step, drawn)
        tokens = dict(of_all([(group.place, group.tokens) for group in drawn]))
        kept, filled = kept_places(signal, prompts)
        record = {}
        if resample is not None:
            rewards = of_all(flattened(group.rewards for group in drawn))
            record = {
                "resample/batches": float(batches),
                "resample/filled": float(filled),
                "resample/reward_mean": sum(rewards) / len(rewards),
            }
        # A rank need not train on the groups that it sampled: they are shared out by tokens, and then moved.
        tokens_of_kept = [tokens[place] for place in kept]
        mine = [kept[slot] for slot in self.own_slots(tokens_of_kept)]
        moving = of_all(groups_at(drawn, set(kept).difference(mine)))
        share = groups_at([*drawn, *moving], mine)
        assert len(share) == len(self.slots)
        return Collected(share, sum(tokens.values()), lag, record)

    def own_slots(self, tokens: Sequence[int]) -> list[int]:
        """Return this rank's numbers among the groups that a step trains on, given the tokens of each group."""
        owners = shared_out(tokens, self.config.train.updates, ranks.count())
        return [slot for slot, rank in enumerate(owners) if rank == ranks.own_rank()]

    def candidates(self) -> Iterator[list[int]]:
        """Yield this rank's places in the superset of a step, batch by batch."""
        resample = self.config.train.resample
        if resample is None:
            yield self.slots
            return
        size = int(resample.candidates(self.config.train.prompts))
        for start in range(0, resample.max_batches * size, size):
            yield list(range(start + ranks.own_rank(), start + size, ranks.count()))

    def problems(self, step: int, places: Sequence[int]) -> list[Problem]:
        """Return the problems at some places of a step's superset.

        Supersets are consecutive parts of an endless row of passes over all problems, each of them in an order of its
        own by the seed, or with `train.order=given` in the task's.
        """
        train, problems = self.config.train, self.parts.pool.problems
        superset = train.prompts if train.resample is None else train.resample.superset(train.prompts)
        size, in_all = len(problems), [(step - 1) * superset + place for place in places]
        if train.order == GIVEN:
            return [problems[place % size] for place in in_all]
        return [problems[number] for number in seeds.in_passes(in_all, size, "order", self.parts.seed)]

    def draws(self, step: int, watch: Stopwatch, temperature: float | None = None) -> Iterator[Draw]:
        """Yield draws of a step's candidates, batch by batch, none of them sampled yet."""
        parts, rollout = self.parts, self.config.rollout
        for places in self.candidates():
            with watch.phase("rollout"):
                problems = self.problems(step, places)
                judging = BackgroundJudge(
                    partial(judge_rollouts, parts.task, parts.verifier, parts.tokenizer, problems)
                )
                generate = partial(
                    parts.engine.generate,
                    [self.prompt(problem) for problem in problems],
                    self.config.train.group,
                    seeds=[seeds.derive("rollout", parts.seed, step, place) for place in places],
                    temperature=rollout.temperature if temperature is None else temperature,
                    max_new_tokens=rollout.max_new_tokens,
                    on_group=judging.add,
                )
            yield Draw(places, problems, judging, generate)

    def answer(self, draw: Draw, watch: Stopwatch) -> list[Answered]:
        """Return the responses of a draw, judged while others are sampled."""
        with draw.judging as judging:
            with watch.phase("rollout"):
                groups = draw.groups()
            with watch.phase("verify"):  # only the part of judging that was not done during sampling
                judged = judging.results()
        before = watch.seconds.get("time/judging_s", 0.0)
        watch.seconds["time/judging_s"] = before + judging.seconds  # during sampling and after it
        of_groups = zip(draw.places, draw.problems, groups, judged, strict=True)
        return [Answered.of(*of_group) for of_group in of_groups]

    def prompt(self, problem: Problem) -> list[int]:
        return render_prompt(self.parts.tokenizer, problem, self.parts.chat)

    def check_verdicts(self, step: int, drawn: Sequence[Answered]) -> None:
        """Raise TooManyFailures where the verifier failed on too many of a step's responses, on all ranks."""
        verdicts = of_all(flattened(group.verdicts for group in drawn))
        try:
            check_failures(verdicts, self.config.verify.max_failures)
        except TooManyFailures:
            if ranks.own_rank() == 0:
                self.keep_samples(step, drawn)  # they show why
            raise

    def keep_samples(self, step: int, answered: Sequence[Answered]) -> None:
        """Write the texts of a step's first groups, for people."""
        lines = []
        for group in answered[:SHOWN_PROBLEMS]:
            responses = [rollout.response for rollout in group.rollouts]
            texts = self.parts.tokenizer.batch_decode(responses)
            problem = group.problem
            lines.append(
                {"problem": problem.id, "prompt": problem.prompt, "responses": texts, "verdicts": group.verdicts}
            )
        files.write_lines(self.folder / "samples" / f"train-{step:06d}.jsonl", lines)

    # Checkpoints

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, of all ranks; a collective."""
        assert self.begun is None, "a checkpoint has all that is in flight"
        return {
            "generated": self.generated,
            "in_flight": {step: packed_groups(collected) for step, collected in self.in_flight.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.generated = state["generated"]
        self.in_flight = {}
        for key, packed in state["in_flight"].items():
            step = int(key)  # JSON has only text for keys
            self.in_flight[step] = self.unpacked(step, packed)

    def unpacked(self, step: int, packed: Mapping[str, Any]) -> Collected:
        """Return this rank's share of the packed groups of all ranks, of which there may have been fewer or more."""
        n = self.config.train.group
        ends = list(accumulate(packed["lengths"], initial=0))
        # Responses are stored one after the other, n for each group.
        tokens_of_groups = [end - start for start, end in pairwise(ends[::n])]
        mine = self.own_slots(tokens_of_groups)
        places = [packed["places"][slot] for slot in mine]
        problems = self.problems(step, places)
        answered = []
        for slot, place, problem in zip(mine, places, problems, strict=True):
            prompt, group, judged = self.prompt(problem), [], []
            rows = slice(slot * n, (slot + 1) * n)
            for row in range(slot * n, (slot + 1) * n):
                own = slice(ends[row], ends[row + 1])
                response, logp = packed["tokens"][own].tolist(), packed["logp"][own].tolist()
                group.append(Rollout(prompt, response, logp, packed["finished"][row]))
                judged.append(unpacked_judged(*packed["judged"][row]))
            answered.append(Answered(place, problem, group, judged, packed["answer_tokens"][rows]))
        return Collected(answered, packed["generated"], packed["lag"], packed["record"])


def set_up_sampling(device: int | None) -> None:
    """Give the thread that samples the process's number of CPU threads, and a stream of its own on a CUDA device."""
    # OpenMP has a number for each thread. Torch sets it when it first asks for it; vLLM's operators only read it, and
    # vLLM makes torch.set_num_threads do nothing.
    torch.get_num_threads()
    if device is not None:
        torch.cuda.set_device(device)
        torch.cuda.set_stream(torch.cuda.Stream())


def flattened(lists: Iterable[Sequence[T]]) -> list[T]:
    return list(chain.from_iterable(lists))


def of_all(values: Sequence[T]) -> list[T]:
    """Return the values of all ranks in one list; a collective."""
    return flattened(ranks.each(values))


def packed_groups(collected: Collected) -> dict[str, Any]:
    """Return the groups of all ranks, in order of places, as a few long rows for a checkpoint; a collective.

    Problems and prompts are left out, since step and places determine them.
    """
    answered = sorted(of_all(collected.answered), key=lambda group: group.place)
    rollouts = flattened(group.rollouts for group in answered)
    places = [group.place for group in answered]
    judged = [packed_judged(response) for group in answered for response in group.judged]
    finished = [rollout.finished for rollout in rollouts]
    tokens = flattened(rollout.response for rollout in rollouts)
    logp = flattened(rollout.logp for rollout in rollouts)
    return {
        "places": places,
        "judged": judged,
        "answer_tokens": flattened(group.answer_tokens for group in answered),
        "lengths": [len(rollout.response) for rollout in rollouts],
        "finished": finished,
        "tokens": torch.tensor(tokens, dtype=torch.int32),
        "logp": torch.tensor(logp, dtype=torch.float32),  # the type that a batch has
        "generated": collected.generated,
        "lag": collected.lag,
        "record": collected.record,
    }


def packed_judged(judged: Judged) -> tuple[str, tuple[str | None, int] | None, bool, float | None]:
    """Return a judgment as plain values."""
    answer = None
    if judged.answer is not None:
        answer = (judged.answer.text, judged.answer.end)
    return str(judged.verdict), answer, judged.goes_on, judged.score


def unpacked_judged(verdict: str, answer: Sequence[Any] | None, goes_on: bool, score: float | None = None) -> Judged:
    """Return the judgment of packed values; checkpoints of earlier versions have no scores."""
    unpacked_answer = None if answer is None else Answer(*answer)
    return Judged(Verdict(verdict), unpacked_answer, goes_on, score)


def groups_at(answered: Sequence[Answered], places: Collection[int]) -> list[Answered]:
    """Return the groups at these places, in the order of places."""
    wanted = set(places)
    groups = [group for group in answered if group.place in wanted]
    return sorted(groups, key=lambda group: group.place)


def kept_places(signal: Mapping[int, bool], prompts: int) -> tuple[list[int], int]:
    """Return the places of the groups to train on, in order, and how many of them are without signal.

    The first groups with signal are kept; if there are too few, the first ones without signal fill up.
    """
    signal_first = sorted(signal, key=lambda place: (not signal[place], place))
    kept = sorted(signal_first[:prompts])
    return kept, sum(not signal[place] for place in kept)


def numbers_of_rank(count: int, updates: int, rank: int, world: int) -> list[int]:
    """Return a rank's numbers among the groups or responses of a step: an equal part of each mini-batch."""
    share = count // (updates * world)
    numbers: list[int] = []
    for update in range(updates):
        start = share * (update * world + rank)
        numbers += range(start, start + share)
    return numbers


def shared_out(tokens: Sequence[int], updates: int, world: int) -> list[int]:
    """Return the rank that trains on each group, given the tokens of each group.

    Of each mini-batch all ranks get equally many groups and about equally many tokens, since the slowest rank sets the
    pace: larger groups come first, each to the rank with the fewest tokens among the ranks that still lack groups.
    """
    owners = [0] * len(tokens)
    size = len(tokens) // updates
    for start in range(0, len(tokens), size):
        load, lacking = [0] * world, [size // world] * world
        for slot in sorted(range(start, start + size), key=lambda slot: -tokens[slot]):
            allowed = [rank for rank in range(world) if lacking[rank]]
            rank = min(allowed, key=load.__getitem__)
            owners[slot] = rank
            load[rank] += tokens[slot]
            lacking[rank] -= 1
    return owners
