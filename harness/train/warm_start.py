"""The making of a warm-started model: supervised steps on traces, with the cross-entropy of their responses."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

import tasks
from harness import ranks
from harness.base import devices, seeds, terminal
from harness.base.errors import CellFailure, UserError, short, shown
from harness.base.task import Problem, Relabeling, Solving, Task, Verdict, Verifier
from harness.config import Hardware, Train
from harness.methods.batch import Rollout
from harness.rollout import digests, engines
from harness.rollout.choice import EMBEDDED
from harness.rollout.ends import end_of_answer, end_tokens
from harness.rollout.gguf import IMPORTS, WEIGHT
from harness.rollout.protocol import Engine
from harness.rollout.rendering import Chat, chat_template, render_prompt, with_instruction
from harness.rollout.warm_start import SOLUTIONS, Trace, WarmStart, read_traces
from harness.train.base_responses import batch_of
from harness.train.evaluate import Evaluator
from harness.train.policy import Policy, check_vocabulary, context_of
from harness.train.weights import opened, shapes_in
from harness.verify.pool import VerifierPool
from tasks.data.clean import fold

TRACES = "traces.jsonl"  # in the folder of the model, for readers
PER_WEIGHT = 4 * WEIGHT  # bytes in memory: the weight, its gradient and AdamW's two moments
SAID_EVERY = 10  # steps


def make(settings: WarmStart, base: Path, chat: Chat, folder: Path, say: Callable[[str], None]) -> None:
    """Train the model in a folder on traces, and save it in another one; on a CPU, the same bits each time."""
    weights = sum(map(prod, shapes_in(base).values()))
    devices.check_room("make a warm start", folder.parent, disk=WEIGHT * weights, memory=PER_WEIGHT * weights + IMPORTS)
    with as_one_quiet_process():
        policy = policy_of(settings, base)
        tokenizer = opened(AutoTokenizer, base)
        check_vocabulary(tokenizer, policy.module, base)
        traces = find_traces(settings, base, chat, policy, tokenizer, say)
        end = end_of_answer(tokenizer, base, chat)
        train(policy, settings, [tokens_of(trace, tokenizer, chat, end) for trace in traces], say)
        policy.module.save_pretrained(folder)
    # The files of the tokenizer as they are: saving it again may add tokens.
    for file in digests.model_files(base):
        if not (folder / file.name).exists() and "safetensors" not in file.name:
            shutil.copy(file, folder)
    lines = [json.dumps({"prompt": trace.problem.prompt, "response": trace.response}) for trace in traces]
    (folder / TRACES).write_text("".join(f"{line}\n" for line in lines), "utf-8")


@contextmanager
def as_one_quiet_process() -> Iterator[None]:
    """Compute in this process alone, with one thread, in which the order of additions is the same on all machines."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ranks.as_only_rank(), terminal.without_bars():
            yield
    finally:
        torch.set_num_threads(threads)


def policy_of(settings: WarmStart, base: Path) -> Policy:
    train = Train(lr=settings.lr, warmup_steps=settings.warmup_steps)
    device, dtype = devices.resolve_device(settings.device), getattr(torch, settings.dtype)
    return Policy(base, train, 1.0, device, dtype, Hardware(device=device))


def find_traces(
    settings: WarmStart, base: Path, chat: Chat, policy: Policy, tokenizer: Any, say: Callable[[str], None]
) -> list[Trace]:
    """Return the traces in random order; their prompts have no worked examples unless the settings keep them."""
    rng = random.Random(seeds.derive("traces", settings.seed))
    task = settings.built_task()
    if task is not None:
        task = with_instruction(task, chat)
    if settings.file is not None:
        found = traces_of_file(settings.file, task)
    else:
        assert task is not None  # only a file needs none
        with VerifierPool() as verifier:
            if settings.source == SOLUTIONS:
                found = solutions(settings, task, verifier, rng, plain=not chat_template(tokenizer, chat))
            else:
                context = context_of(policy.module.config)
                evaluator = Evaluator(engine_of(policy, base, tokenizer, chat), tokenizer, verifier, chat, context)
                found = right_samples(settings, task, evaluator, rng, say)
    chosen = rng.sample(found, min(settings.traces, len(found)))
    if settings.shots:
        return chosen
    return [Trace(dataclasses.replace(trace.problem, shots=()), trace.response) for trace in chosen]


def engine_of(policy: Policy, base: Path, tokenizer: Any, chat: Chat) -> Engine:
    ends, hardware = end_tokens(tokenizer, base, chat), Hardware(device=policy.device)
    engine = engines.build_engine(EMBEDDED, base, ends, policy.device, policy.dtype, hardware)
    engine.load(policy.module)
    return engine


def tokens_of(trace: Trace, tokenizer: Any, chat: Chat, end: int) -> Rollout:
    """Return a trace as tokens, with the end of the response."""
    response = tokenizer(trace.response, add_special_tokens=False, verbose=False)["input_ids"]
    prompt = render_prompt(tokenizer, trace.problem, chat)
    return Rollout(prompt, [*response, end], logp=[0.0] * (len(response) + 1), finished=True)


def train(policy: Policy, settings: WarmStart, traces: Sequence[Rollout], say: Callable[[str], None]) -> None:
    """Take the steps; all traces come once before any comes again."""
    longest = max(len(trace.prompt) + len(trace.response) for trace in traces)
    context = context_of(policy.module.config)
    if context is not None and longest > context:
        raise UserError(f"a trace has {longest} tokens, and the model's max_position_embeddings is {context}")
    say(f"warm start: {settings.steps} steps of {settings.batch} from {len(traces)} traces")
    losses = []
    for step, rows in enumerate(batches(len(traces), settings), 1):
        try:
            losses.append(supervised_step(policy, step, [traces[row] for row in rows]))
        except CellFailure as failure:
            raise UserError(f"the warm start failed in step {step}: {failure}; lower warm_start.lr") from failure
        if step % SAID_EVERY == 0 or step == settings.steps:
            recent = losses[(step - 1) // SAID_EVERY * SAID_EVERY :]
            say(f"warm start: step {step} of {settings.steps}, loss {sum(recent) / len(recent):.3f}")


def batches(traces: int, settings: WarmStart) -> Iterator[list[int]]:
    """Yield the numbers of the traces of each step."""
    rng = random.Random(seeds.derive("batches", settings.seed))
    order: list[int] = []
    for _ in range(settings.steps):
        while len(order) < settings.batch:
            order += rng.sample(range(traces), traces)
        yield order[: settings.batch]
        order = order[settings.batch :]


def supervised_step(policy: Policy, step: int, traces: Sequence[Rollout]) -> float:
    """Take an optimizer step; return the cross-entropy before it, in nats per token of the responses."""
    longest = max(len(trace.response) for trace in traces)
    batch = batch_of(traces, longest, policy.device)
    total = 0.0
    for part in policy.micro_batches(batch):
        total += policy.backward(-policy.current(part, frozenset()).logp.sum() / len(batch.index_T))
    policy.step(step)
    return total


# Traces: their problems are training problems, and the prompt of any other problem of the task is refused


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
    for (problem, response), verdict in zip(traces, task.verdicts(traces, verifier), strict=True):
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
    solved = [(task.hindsight(*trace), trace.response) for trace in traces]
    found = [Trace(known[other.id], response) for other, response in solved if other is not None and other.id in known]
    verdicts = task.verdicts(found, verifier)
    return [trace for trace, verdict in zip(found, verdicts, strict=True) if verdict == Verdict.RIGHT]
