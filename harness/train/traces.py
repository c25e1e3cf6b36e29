"""The traces of a warm start: solutions of a task, right samples of the model itself, or the lines of a file.

Their problems are training problems; a line of a file with the prompt of another problem of the task is refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import tasks
from harness.base.errors import UserError, short, shown
from harness.base.task import Problem, Relabeling, Solving, Task, Verdict, Verifier
from harness.rollout.rendering import Chat, with_instruction
from harness.rollout.warm_start import Trace, WarmStart, read_traces
from harness.train.evaluate import Evaluator
from tasks.data.clean import fold


def traces_of_file(file: Path, task: Task | None) -> list[Trace]:
    """Return the traces of a file; refuse problems of the task that are held out."""
    traces = read_traces(file)
    if task is None:
        return traces
    held_out = held_out_prompts(task)
    for trace in traces:
        prompt = fold(trace.problem.prompt)
        if prompt in held_out:
            raise UserError(
                f"{short(str(file))}, {trace.problem.id} has the prompt of a problem of {task.name} in its "
                f"{held_out[prompt]} split; allowed: its training problems, and prompts that are not the task's"
            )
    return traces


def held_out_prompts(task: Task) -> dict[str, str]:
    """Return the splits of the prompts that are not for training, with the task's instruction and without it.

    White space does not count: a file may have other line ends.
    """
    splits: dict[str, str] = {}
    for variant in (task, with_instruction(task, Chat(instruction=""))):
        for split in variant.splits:
            if split != "train":
                splits |= {fold(problem.prompt): split for problem in variant.problems(split)}
    return splits


def solutions(settings: WarmStart, task: Task, verifier: Verifier, rng: random.Random, *, plain: bool) -> list[Trace]:
    """Return solutions of training problems, each problem before any comes again."""
    assert isinstance(task, Solving)
    space = " " if plain else ""  # in plain text, as between the prompt and the response of a worked example
    problems = task.problems("train")
    traces: list[Trace] = []
    while len(traces) < settings.traces:
        for problem in rng.sample(problems, min(len(problems), settings.traces - len(traces))):
            traces.append(Trace(problem, space + task.solution(problem, rng)))
    pairs = [(trace.problem, trace.response) for trace in traces]
    for (problem, response), verdict in zip(pairs, task.verdicts(pairs, verifier), strict=True):
        if verdict != Verdict.RIGHT:
            raise UserError(
                f"the solution {shown(response)} of {task.name} to its problem {shown(problem.id)} is judged {verdict}"
            )
    return traces


def right_samples(
    settings: WarmStart, task: Task, evaluator: Evaluator, rng: random.Random, say: Callable[[str], None]
) -> list[Trace]:
    """Return the model's samples that are right, if only for another training problem; each pair once."""
    training = task.problems("train")
    problems = rng.sample(training, min(settings.problems, len(training)))
    say(f"warm start: {settings.samples} samples of each of {len(problems)} problems of {task.name}")
    length = tasks.lm_eval_settings(task)["generation_kwargs"]["max_gen_toks"]
    evaluator.check_room(task.name, problems, length)
    records = evaluator.sample(
        task,
        problems,
        seed=("warm start", settings.seed),
        n=settings.samples,
        temperature=settings.temperature,
        max_new_tokens=length,
    )
    right: list[Trace] = []
    others: list[Trace] = []
    for problem, record in zip(problems, records, strict=True):
        for response, verdict in zip(record["responses"], record["verdicts"], strict=True):
            (right if verdict == Verdict.RIGHT else others).append(Trace(problem, response))
    relabeled = right_in_hindsight(task, others, training, evaluator.verifier)
    found = [*dict.fromkeys([*right, *relabeled])]
    total = len(right) + len(others)
    say(
        f"warm start: {len(right)} of {total} samples are right, and {len(relabeled)} for another training problem; "
        f"{len(found)} differ"
    )
    if len(found) < settings.batch:
        raise UserError(
            f"{len(found)} different samples of {total} for {task.name} are right, and warm_start.batch is "
            f"{settings.batch}; give the task more worked examples (shots), or take another warm_start.source"
        )
    return found


def right_in_hindsight(
    task: Task, traces: Sequence[Trace], training: Sequence[Problem], verifier: Verifier
) -> list[Trace]:
    """Return the responses that are right for another training problem, with that problem."""
    if not isinstance(task, Relabeling):
        return []
    known = {problem.id: problem for problem in training}
    solved = [(task.hindsight(trace.problem, trace.response), trace.response) for trace in traces]
    pairs = [(known[other.id], response) for other, response in solved if other is not None and other.id in known]
    verdicts = task.verdicts(pairs, verifier)
    return [Trace(*pair) for pair, verdict in zip(pairs, verdicts, strict=True) if verdict == Verdict.RIGHT]
