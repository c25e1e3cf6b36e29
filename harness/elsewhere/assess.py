"""Avg@K and Pass@K of any model, without training; samples are kept with their verdicts and never sampled again."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from transformers import AutoConfig, AutoTokenizer

import tasks
from harness.base import files, identities, terminal
from harness.base.devices import resolve_device
from harness.base.errors import Damaged, UserError
from harness.base.schema import TEMPERATURES, check_value, number
from harness.base.shape import read_model_config, shape_of_config
from harness.base.terminal import Column
from harness.cells.evaluations import pass_at_k, powers_of_two
from harness.cells.provenance import Made
from harness.cells.source_digest import source_digest
from harness.config import Config, Hardware, RolloutConfig
from harness.matrix import settle_auto
from harness.methods.batch import Rollout
from harness.rollout.choice import EMBEDDED_SEQUENCES
from harness.rollout.ends import end_tokens
from harness.rollout.models import Model
from harness.rollout.protocol import Sampling
from harness.rollout.rendering import count_unread, with_instruction
from harness.table.columns import format_estimate
from harness.table.statistics import over_problems
from harness.train.evaluate import Evaluator, Record, record_of_judging
from harness.train.parts import record_attempt
from harness.train.policy import context_of
from harness.train.untrained import untrained_engine
from harness.train.weights import opened
from tasks import Problem, Task, Verifier
from tasks.scoring import judged

# Responses in a batch, which is kept when it is complete; a killed process loses its current batch. A batch waits for
# its longest response. vLLM starts a new response as soon as one ends, so its batches are larger by far.
BATCH = {"embedded": EMBEDDED_SEQUENCES, "vllm": 16 * EMBEDDED_SEQUENCES}
DIVERSITY = ("distinct right", "solutions found", "text after answer")


@dataclass(frozen=True)
class Wanted:
    """The sampling that the command line sets; None leaves a setting to the task's own file."""

    samples: int | None = number(None, least=1)
    temperature: float | None = number(None, also=0, **TEMPERATURES)
    max_new_tokens: int | None = number(None, least=1)
    problems: int | None = number(None, least=1)  # None: all
    seed: int = number(0, least=0)
    beyond_context: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_value(field, getattr(self, field.name), f"--{field.name.replace('_', '-')}")

    def of(self, task: Task) -> dict[str, Any]:
        defaults = tasks.lm_eval_settings(task)
        generation, split = defaults["generation_kwargs"], defaults["test_split"]
        if self.problems is not None and self.problems > (available := len(task.problems(split))):
            name = tasks.evaluation_name(task)
            raise UserError(f"--problems is {self.problems}, but {name} has {available} in its {split} split")
        return {
            "split": split,
            "samples": self.samples or defaults["repeats"],
            # Not `or`: a temperature of 0 is given too, and is greedy.
            "temperature": generation["temperature"] if self.temperature is None else self.temperature,
            "max_new_tokens": self.max_new_tokens or generation["max_gen_toks"],
        }


class EngineOnDemand:
    """An engine that loads its weights at the first request, which never comes if all samples were kept."""

    def __init__(self, folder: Path, tokenizer: Any, ends: Sequence[int], *, beyond_context: bool) -> None:
        self.folder, self.tokenizer, self.ends = folder, tokenizer, ends
        # vLLM refuses prompts and responses beyond a model's context.
        rollout = RolloutConfig(engine="embedded" if beyond_context else "auto")
        present = Hardware(device=resolve_device("auto"))
        self.config = settle_auto(Config(rollout=rollout, hardware=present), shape_of_config(read_model_config(folder)))
        self.name = self.config.rollout.engine

    @cached_property
    def engine(self) -> Sampling:
        """The engine with its weights."""
        return untrained_engine(self.folder, self.tokenizer, self.ends, self.config)

    def generate(self, prompts: Sequence[Sequence[int]], n: int, **settings: Any) -> list[list[Rollout]]:
        return self.engine.generate(prompts, n, **settings)


@dataclass(frozen=True, kw_only=True)
class KeepingEvaluator(Evaluator):
    """An evaluator that keeps the samples of one task in a folder, batch by batch, and takes none of them twice.

    The division into batches depends on the problems alone, so that kept ones are found again.
    """

    beyond = "--beyond-context"

    folder: Path
    together: int  # responses of a batch
    on_batch: Callable[[int, int], None]  # is called with the number of finished problems and that of all

    def sample(self, task: Task, problems: Sequence[Problem], *, n: int, **settings: Any) -> list[Record]:
        records: list[Record] = []
        together = max(self.together // n, 1)
        for start in range(0, len(problems), together):
            path, batch = self.folder / f"{start // together:04d}.jsonl", problems[start : start + together]
            kept = kept_records(path)
            of_batch = [kept.get(problem.id, {}) for problem in batch]
            if all(map(was_asked, of_batch, batch)):
                for problem, record in zip(batch, of_batch, strict=True):  # the rules of judging may have changed
                    record |= record_of_judging(judged(task, self.verifier, problem, record["responses"]))
                files.write_lines(path, kept.values())  # of more problems than this evaluation may have
            else:
                of_batch = super().sample(task, batch, n=n, **settings)
                files.write_lines(path, of_batch)
            records += of_batch
            self.on_batch(len(records), len(problems))
        return records


def was_asked(record: Record, problem: Problem) -> bool:
    """Return whether a kept record, which may be empty, has the responses to a problem as it is now."""
    return record.get("prompt") == problem.prompt and record.get("shots", []) == list(map(list, problem.shots))


def kept_records(path: Path) -> dict[str, Record]:
    """Return the records in the file of a batch by their problems; none without a file."""
    if not path.exists():
        return {}
    try:
        return {record["problem"]: record for record in files.read_lines(path)}
    except Damaged as damage:
        raise UserError(f"{damage}; remove this file, and the same command asks for its responses again") from damage


def default_folder(model: Model, say: Callable[[str], None]) -> Path:
    """Return the folder for the results of a model, by its name, its chat settings and its digest.

    The name alone does not identify it: every model that training saves is in a folder called `model`.
    """
    key = identities.key([model.chat.identity(), model.digest(model.folder(say=say))])
    return Path("results") / "eval" / f"{model.name}-{key}"


def assess(
    model: Model,
    chosen_tasks: Sequence[Task],
    wanted: Wanted,
    verifier: Verifier,
    out: Path,
    say: Callable[[str], None],
) -> list[Record]:
    """Evaluate a model on tasks; write the samples and results to `out`, and return the results."""
    folder = model.folder(say=say)
    digest = model.digest(folder)
    tokenizer = opened(AutoTokenizer, folder)
    context = None if wanted.beyond_context else context_of(opened(AutoConfig, folder))
    sampling = [wanted.of(task) for task in chosen_tasks]
    ends = end_tokens(tokenizer, folder, model.chat)
    engine = EngineOnDemand(folder, tokenizer, ends, beyond_context=wanted.beyond_context)
    results = []
    for chosen, settings in zip(chosen_tasks, sampling, strict=True):
        name, task = tasks.evaluation_name(chosen), with_instruction(chosen, model.chat)
        identity = {
            "model": model.identity(),
            "digest": digest,
            "task": identities.component_identity(task),
            "seed": wanted.seed,
            "engine": engine.name,
            **settings,
        }
        task_folder = out / f"{name}-{identities.key(identity)}"
        # Before anything is sampled, so that a folder of samples is never without its settings.
        files.write_json(task_folder / "settings.json", identity)

        def on_batch(done: int, of: int, name: str = name) -> None:
            say(f"{name}: {done} of {of} problems sampled")

        evaluator = KeepingEvaluator(
            engine,
            tokenizer,
            verifier,
            model.chat,
            context,
            folder=task_folder / "samples",
            together=BATCH[engine.name],
            on_batch=on_batch,
        )
        evaluation = evaluator.evaluate(task, wanted.seed, problems=wanted.problems, **settings)
        assert evaluation is not None  # there is one rank
        sources = {task.name: source_digest(type(task))}
        earlier = Made.read(task_folder)
        if earlier is None or earlier.sources != sources:
            record_attempt(task_folder, engine.config, sources, digest)
        prompts = [record["prompt"] for record in evaluation.samples]
        some = count_unread(tokenizer, prompts, model.chat)
        result = {
            "task": name,
            **evaluation.counts(),
            "flags": task.flags(trained_on=None),
            "settings": settings,
            "notes": [f"the tokenizer leaves letters out of {some} of {len(prompts)} prompts"] if some else [],
            "folder": task_folder.name,
        }
        files.write_json(task_folder / "result.json", result)
        results.append(result)
    summary = {"model": model.name, "summary": model.summary(), "identity": model.identity(), "tasks": results}
    files.write_json(out / "results.json", summary)
    return results


def print_results(console: Console, results: Sequence[Record]) -> None:
    """Print a line for each task; a number that does not exist for a task is left empty."""
    most_samples = max(result["settings"]["samples"] for result in results)
    ks = [k for k in powers_of_two(most_samples) if k > 1]
    passes = [f"Pass@{k}" for k in ks]
    names = ["problems", "K", "Avg@K", *passes, "maj@K", *DIVERSITY, "truncated", "length"]
    lines = [cells_of(result, ks) for result in results]
    columns = [Column("task"), *(Column(name, right=True) for name in names)]
    # The columns that a narrow terminal drops, first to last. The last Pass@K tells most, so it stays.
    dropped_first = ["length", "truncated", *reversed(DIVERSITY), *passes[:-1], "problems"]
    goes = [[name] for name in dropped_first]
    terminal.show_table(console, columns, lines, goes, pad_edge=False, where="in a wider terminal, or in results.json")
    console.print("±: 95 % interval over problems, of one model and one seed; Pass@1 is Avg@K; length is in tokens.")
    console.print("distinct right: distinct right answers to a problem; solutions found: their share of all solutions.")
    for result in results:
        counts = [f"{count:,} {verdict}" for verdict, count in Counter[str](result["verdicts"]).most_common()]
        console.print(f"{result['task']}: {', '.join(counts)}")
        for note in result["flags"] + result["notes"]:
            console.print(f"{result['task']}: {note}", style="yellow")


def cells_of(result: Record, ks: Sequence[int]) -> list[str]:
    """Return the line of a result in the table, with a column for each k."""
    metrics, right_JN = result["metrics"], np.array(result["right"])
    right_J, samples = right_JN.sum(axis=1), right_JN.shape[1]
    passes = [format_estimate(over_problems(pass_at_k(samples, right_J, k))) if k <= samples else "" for k in ks]
    return [
        result["task"],
        str(len(right_JN)),
        str(samples),
        format_estimate(over_problems(right_JN.mean(axis=1))),
        *passes,
        f"{metrics[f'maj@{samples}']:.3f}",
        f"{metrics['right_distinct']:.2f}",
        f"{metrics['coverage']:.1%}" if "coverage" in metrics else "",
        f"{metrics['after_answer']:.1%}",
        f"{metrics['truncated']:.1%}",
        f"{metrics['length']:.0f}",
    ]
