"""A first look at a model on a task: a prompt, some judged samples, and whether training can learn from them."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tasks
from harness.base import files, identities
from harness.base.errors import Damaged, UserError
from harness.base.task import Graded, Verdict
from harness.cells.source_digest import source_digest
from harness.config import Config
from harness.config.sections import LOOK_PROBLEMS, LOOK_SAMPLES
from harness.launch.local import no_script
from harness.rollout import models
from harness.rollout.models import Model
from harness.table.statistics import Estimate, over_problems
from tasks import Task

LOOKS = "looks"  # in the cache
SEED = 0
LEAST_SIGNAL = 0.1  # of groups: with fewer, most steps of a few prompts would teach nothing
WORDS = re.compile(r"[^\W\d_]{2,}")
FEWEST_WORDS = 3  # of a prompt that says what is asked
INSTRUCT = re.compile(r"instruct|chat|(?<![a-z])it(?![a-z])", re.IGNORECASE)  # in the name of a model that was tuned to


@dataclass(frozen=True)
class Look:
    """The findings of a look, as the cache keeps them."""

    model: str
    task: str
    prompt: str  # of one problem, with its special tokens
    shown: list[list[str]]  # the responses to it, each with its verdict
    right: list[list[int]]  # problem by sample
    distinct_right: float  # mean number of distinct right answers to a problem
    ended: float  # share of responses that ended
    unparsed: float  # share of responses without a readable answer
    length: float  # mean tokens of a response
    seconds: float
    max_new_tokens: int
    notes: list[str]
    can_learn: bool
    sentence: str  # whether training can learn from it, or why not and what to do
    scores: list[list[float]] | None = None  # problem by sample, where training rewards them

    @property
    def samples(self) -> int:
        return len(self.right[0])

    @property
    def signals(self) -> int:
        """The number of problems whose responses have different rewards."""
        return sum(len(set(group)) > 1 for group in self.scores or self.right)

    @property
    def hopeless(self) -> bool:
        """Whether no response ended, and none had a reward: more steps will not change that."""
        return self.ended == 0 and not any(map(any, self.scores or self.right))

    def average(self) -> Estimate:
        """Return Avg@K with an interval over problems."""
        return over_problems(np.array(self.right, dtype=float).mean(axis=1))

    def solved(self) -> Estimate:
        """Return Pass@K, of all K samples, with an interval over problems."""
        return over_problems(np.array(self.right, dtype=float).max(axis=1))


def look(name: str, task: Task, config: Config, problems: int, samples: int) -> Look:
    """Return the look at a model, from the cache or from samples; the configuration is settled."""
    return kept(name, task, config, problems, samples) or sampled(name, task, config, problems, samples)


def place(model: Model, task: Task, config: Config, problems: int, samples: int) -> Path:
    """Return the path of a look in the cache, by all that it depends on."""
    parts = {
        "model": {**model.identity(), "digest": model.digest(model.folder())},
        "task": identities.component_identity(task),
        "source": source_digest(type(task)),
        "rollout": [config.rollout.engine, config.rollout.temperature, config.rollout.max_new_tokens],
        "dtype": config.train.dtype,
        "size": [problems, samples],
    }
    if type(task) not in tasks.TASKS.values():  # a plugin may read them from a file, which no digest of code follows
        parts["problems"] = [problem.identity() for problem in task.problems(looked_at_split(task))]
    return files.default_cache() / LOOKS / f"{identities.key(parts)}.json"


def looked_at_split(task: Task) -> str:
    return "train" if "train" in task.splits else task.splits[0]


def kept(name: str, task: Task, config: Config, problems: int, samples: int) -> Look | None:
    """Return the look in the cache; None if there is none, or a damaged one."""
    try:
        record = files.read_sealed(place(models.resolve(name), task, config, problems, samples))
        return Look(**{**record, "model": name})
    except (Damaged, TypeError):  # it is made again
        return None


def sampled(name: str, task: Task, config: Config, problems: int, samples: int) -> Look:
    """Sample and judge responses to the first problems of the training split, and keep the result."""
    from transformers import AutoConfig, AutoTokenizer

    from harness.rollout.ends import end_tokens
    from harness.rollout.rendering import chat_template, count_unread, with_instruction
    from harness.train.evaluate import Evaluator
    from harness.train.policy import context_of
    from harness.train.untrained import untrained_engine
    from harness.train.weights import opened
    from harness.verify.pool import VerifierPool

    tasks.task_table(config.plugins)  # imports them in a process of its own, too
    model = models.resolve(name)
    folder = model.folder()
    tokenizer = opened(AutoTokenizer, folder)
    ends = end_tokens(tokenizer, folder, model.chat)
    longest = config.rollout.max_new_tokens
    engine = untrained_engine(folder, tokenizer, ends, config)
    context = None if config.eval.beyond_context else context_of(opened(AutoConfig, folder))
    asked = with_instruction(task, model.chat)
    split = looked_at_split(asked)
    available = asked.problems(split)
    begun = time.monotonic()
    with VerifierPool.of(config.verify) as verifier:
        evaluator = Evaluator(engine, tokenizer, verifier, model.chat, context, config.verify.max_failures)
        evaluation = evaluator.evaluate(
            asked,
            SEED,
            split=split,
            problems=min(problems, len(available)),
            samples=samples,
            temperature=config.rollout.temperature,
            max_new_tokens=longest,
        )
        assert evaluation is not None  # there is one rank
        scores: list[list[float]] | None = None
        if isinstance(asked, Graded) and asked.graded:
            scores = []
            for problem, record in zip(available, evaluation.samples, strict=False):
                pairs = [(problem, response) for response in record["responses"]]
                scores.append([score for _, score in asked.scores(pairs, verifier)])
    rewards: Sequence[Sequence[float]] = scores or evaluation.right
    differing = [number for number, group in enumerate(rewards) if len(set(group)) > 1]
    number = (differing or [0])[0]
    record, problem = evaluation.samples[number], available[number]
    prompt = tokenizer.decode(evaluator.rendered(problem))
    chats = bool(chat_template(tokenizer, model.chat))
    notes = []
    if not chats and INSTRUCT.search(f"{model.name} {model.path or ''}"):
        notes.append("its name is that of a model for chats, and it has no chat template: it reads plain text")
    prompts = [problem.prompt for problem in available[:problems]]
    if unread := count_unread(tokenizer, prompts, model.chat):
        notes.append(f"the tokenizer leaves letters out of {unread} of {len(prompts)} prompts")
    if scores is not None:
        notes.append("training rewards scores; Avg@K and Pass@K count right responses")
    responses = len(evaluation.right) * samples
    seen = Look(
        model=name,
        task=tasks.evaluation_name(task),
        prompt=prompt,
        shown=[list(pair) for pair in zip(record["responses"], record["verdicts"], strict=True)],
        right=evaluation.right,
        distinct_right=float(np.mean(evaluation.right_distinct)),
        ended=1 - evaluation.metrics["truncated"],
        unparsed=evaluation.verdicts.get(Verdict.UNPARSED, 0) / responses,
        length=evaluation.metrics["length"],
        seconds=time.monotonic() - begun,
        max_new_tokens=longest,
        notes=notes,
        can_learn=False,
        sentence="",
        scores=scores,
    )
    bare = chats and not problem.shots and len(WORDS.findall(problem.prompt)) < FEWEST_WORDS
    can_learn, sentence = conclusion(seen, bare=bare, shots=getattr(task, "shots", None))
    seen = dataclasses.replace(seen, can_learn=can_learn, sentence=sentence)
    # Without a place in the cache it is not lost: the next command looks again.
    with contextlib.suppress(OSError):
        files.write_sealed(place(model, task, config, problems, samples), dataclasses.asdict(seen))
    return seen


def conclusion(seen: Look, *, bare: bool, shots: int | None) -> tuple[bool, str]:
    """Return whether training can learn from such samples, and a sentence about it.

    `bare`: a chat model got a prompt of next to no words; `shots`: worked examples in a prompt, None where the task has
    no such option.
    """
    groups = len(seen.right)
    signal = "right and other responses" if seen.scores is None else "responses with different scores"
    if seen.signals >= LEAST_SIGNAL * groups:
        return True, f"trainable: {seen.signals} of {groups} problems have {signal}"
    if seen.signals:
        rare = f"only {seen.signals} of {groups} problems have {signal}"
        return True, f"trainable, but {rare}, so most steps would teach little; {remedy(bare=bare, shots=shots)}"
    if seen.scores is not None and seen.ended:
        same = "all responses to a problem have the same score"
        return False, f"not trainable: {same}; raise rollout.temperature, or take other problems"
    if all(map(all, seen.right)):
        return False, "not trainable: every response is right; take harder problems"
    if any(map(any, seen.right)):
        return False, "not trainable: each problem is always right or never; raise rollout.temperature, or take others"
    if not seen.ended:
        return False, (
            f"not trainable: no response ended within {seen.max_new_tokens} tokens, and none was right; raise "
            "rollout.max_new_tokens, or correct the model's end_tokens"
        )
    return (
        False,
        f"not trainable: no response is right ({seen.unparsed:.0%} unreadable); {remedy(bare=bare, shots=shots)}",
    )


def remedy(*, bare: bool, shots: int | None) -> str:
    """Return what may help where hardly any response is right."""
    if bare:
        return (
            "the prompt does not say what to do, which a chat model needs: take a task with an instruction or with "
            'worked examples, or plain text (template: "" in a model file)'
        )
    if shots == 0:
        return "let worked examples show the form of an answer (shots=4)"
    return "take easier problems, a larger model, or a warm start (warm_start in a model file)"


# Before a run


def look_first(config: Config, name: str, task: Task, say: Callable[[str], None]) -> Look | None:
    """Return the look at a model before its first cell on a task; None for a model that was made for this task."""
    made_for = getattr(models.resolve(name).recipe, "task", None)  # of a recipe that trains from scratch
    if made_for is not None and tasks.build_task(made_for).name == task.name:
        return None
    known = kept(name, task, config, LOOK_PROBLEMS, LOOK_SAMPLES)
    if known is not None:
        return known
    size = f"{LOOK_PROBLEMS} problems, {LOOK_SAMPLES} responses each"
    say(f"looking at {name} on {tasks.evaluation_name(task)}, once: {size}")
    # In a process of its own, which gives back the memory of the model and its device.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        with no_script():
            seen = process.submit(sampled, name, task, config, LOOK_PROBLEMS, LOOK_SAMPLES)
        try:
            return seen.result()
        except BrokenProcessPool as error:
            raise UserError(
                f"the look at {name} was killed, as by a system without enough memory; end other programs, or lower "
                "rollout.max_new_tokens or hardware.cache_gib"
            ) from error
