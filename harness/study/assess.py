"""Avg@K and Pass@K of any model, without training; what was sampled is kept with its verdicts, never sampled again."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from transformers import AutoConfig, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

import tasks
from harness.base import files, identities
from harness.base.schema import check_value, number
from harness.base.shape import read_model_config, shape_of_config
from harness.batch import Rollout
from harness.cells import provenance
from harness.cells.provenance import Made
from harness.cells.source_digest import SourceDigests, edited_components
from harness.config import Config, Hardware, Verify
from harness.data.cache import find_card
from harness.data.sets import SETS
from harness.matrix import settle_auto
from harness.rollout import choice, engines, templates
from harness.rollout.embedded import EmbeddedEngine
from harness.rollout.models import Model
from harness.rollout.proof import check_engine_weights
from harness.rollout.protocol import Sampling
from harness.rollout.rendering import with_instruction
from harness.statistics import Estimate, Floats, mean_interval, near_bound, pass_at_k
from harness.table.columns import format_estimate
from harness.terminal import layout
from harness.terminal.layout import Column
from harness.tracking.evaluation import Evaluated
from harness.train.evaluate import EvaluationResult, Sampler, evaluate_task
from harness.train.parts import training_device
from harness.train.policy import context_of
from harness.train.weights import load_model, opened
from tasks import Task, Verifier
from tasks.scoring import powers_of_two

MOST_TOGETHER = 512  # sequences that are decoded side by side
# Responses that are sampled as one batch and kept when it is done; a killed process loses the batch it was at. A batch
# waits for its longest response, so those of vLLM hold many times what it decodes side by side.
BATCH = {"embedded": MOST_TOGETHER, "vllm": 16 * MOST_TOGETHER}
DIVERSITY = ("distinct right", "solutions found", "text after answer")
PROMPT = 2048  # tokens that a prompt is thought to have when memory is shared out


@dataclass(frozen=True)
class Wanted:
    """The sampling that the command line asks for; None leaves a setting to the task's own file."""

    samples: int | None = number(None, least=1)
    temperature: float | None = number(None, least=0)
    max_new_tokens: int | None = number(None, least=1)
    problems: int | None = number(None, least=1)  # None: all
    seed: int = number(0, least=0)
    beyond_context: bool = False

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            check_value(each, getattr(self, each.name), f"--{each.name.replace('_', '-')}")

    def of(self, task: Task) -> dict[str, Any]:
        """Returns the sampling of a task."""
        said = tasks.lm_eval_settings(task)
        generation = said["generation_kwargs"]
        return {
            "split": said["test_split"],
            "samples": self.samples or said["repeats"],
            "temperature": generation["temperature"] if self.temperature is None else self.temperature,
            "max_new_tokens": self.max_new_tokens or generation["max_gen_toks"],
        }


@dataclass(frozen=True)
class Assessment:
    evaluation: EvaluationResult
    settings: dict[str, Any]
    identity: dict[str, Any]  # of all that decides what is sampled
    made: Made
    dataset: dict[str, str]  # fingerprints, as tags
    folder: Path
    flags: list[str]  # what a reader must know of the problems
    notes: list[str]  # and of how the model reads them

    def avg(self) -> Estimate:
        """Averages over all samples, with an interval over problems."""
        return over_problems(np.array(self.evaluation.right, dtype=float).mean(axis=1))

    def pass_at_k(self, k: int) -> Estimate:
        """Estimates Pass@k, with an interval over problems."""
        right_JN = np.array(self.evaluation.right, dtype=int)
        return over_problems(pass_at_k(right_JN.shape[1], right_JN.sum(axis=1), k))

    def record(self) -> dict[str, Any]:
        kept = {key: value for key, value in vars(self.evaluation).items() if key != "samples"}
        kept |= {"flags": self.flags, "settings": self.settings, "notes": self.notes}
        return kept | {"folder": self.folder.name}

    def metrics(self) -> dict[str, float]:
        """Returns its numbers by the names that cells give them, with the bounds of their intervals where they have
        some."""
        where = f"eval/{self.evaluation.task}"
        estimates = {"avg": self.avg()}
        estimates |= {f"pass@{k}": self.pass_at_k(k) for k in powers_of_two(self.settings["samples"]) if k > 1}
        bounds = {
            f"{where}/{name}.{end}": bound
            for name, estimate in estimates.items()
            for end, bound in (("low", estimate.low), ("high", estimate.high))
            if bound is not None
        }
        return {f"{where}/{name}": value for name, value in self.evaluation.metrics.items()} | bounds

    def told(self, model: Model) -> Evaluated:
        """Returns what MLflow is told."""
        identity, task = self.identity, self.evaluation.task
        options = {key: value for key, value in identity["task"].items() if key != "component"}
        params = {"model": model.name, "task": task, "seed": identity["seed"]}
        params |= {f"task.{key}": value for key, value in options.items()}
        params |= {f"eval.{key}": self.settings[key] for key in ("split", "samples", "temperature", "max_new_tokens")}
        params |= {"eval.problems": len(self.evaluation.problems), "rollout.engine": identity["engine"]}
        tags = {"model": model.name, "task": task, "device": self.made.device, **self.dataset}
        tags |= {"model.identity": json.dumps(identity["model"]), "model.digest": identity["digest"]}
        tags |= {"notes": "; ".join(self.flags + self.notes)}
        return Evaluated(
            key=identities.hash_of([identity, self.made.sources, self.dataset, self.evaluation.right]),
            name=f"{model.name} {task}",
            folder=self.folder,
            made=self.made,
            params=params,
            tags=tags,
            metrics=self.metrics(),
        )


def over_problems(x_J: Floats) -> Estimate:
    """Return the mean share of one model, with Student's interval over problems."""
    return near_bound(mean_interval(x_J), len(x_J)) if len(x_J) > 1 else mean_interval(x_J)


class EngineOnDemand:
    """An engine that reads its weights when something is to be sampled; it may all have been kept."""

    def __init__(self, folder: Path, eos: int, budget: int, *, beyond_context: bool) -> None:
        self.folder, self.eos, self.budget = folder, eos, budget
        shape = shape_of_config(read_model_config(folder))
        self.device, self.dtype = training_device(settle_auto(Config(), shape))
        # vLLM has no room beyond a model's context.
        self.name = choice.resolve_engine("embedded" if beyond_context else "auto", self.device, shape)

    @cached_property
    def engine(self) -> Sampling:
        if self.name == "vllm":  # which reads the folder itself
            return engines.build_engine(self.name, self.folder, self.eos, self.device, self.dtype, Hardware())
        model = load_model(self.folder, self.dtype)
        together = side_by_side(model.config, self.device, self.dtype, self.budget)
        engine = EmbeddedEngine(self.eos, self.device, self.dtype, together)
        engine.load(model)
        check_engine_weights(engine, model, self.dtype, seed=0)
        return engine

    def generate(self, prompts: Sequence[Sequence[int]], n: int, **settings: Any) -> list[list[Rollout]]:
        return self.engine.generate(prompts, n, **settings)


def side_by_side(config: Any, device: str, dtype: torch.dtype, budget: int) -> int:
    """Returns how many sequences fill half of the memory with their keys and values.

    Half of all memory, not of what is free, since that varies from run to run.
    """
    heads = config.num_key_value_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    each = 2 * config.num_hidden_layers * heads * size * dtype.itemsize * (PROMPT + budget)
    total = (
        torch.cuda.get_device_properties(0).total_memory
        if device == "cuda"
        else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    )
    return int(min(max(total // 2 // each, 1), MOST_TOGETHER))


def default_folder(model: Model, say: Callable[[str], None]) -> Path:
    """Returns where the results of a model go: by its name, how it is spoken to, and its digest.

    A name alone would not do, since every folder that training leaves is called `model`.
    """
    key = identities.key([model.chat.identity(), model.digest(model.folder(say=say))])
    return Path("results") / "eval" / f"{model.name}-{key}"


def assess(
    model: Model, asked: Sequence[Task], wanted: Wanted, verifier: Verifier, out: Path, say: Callable[[str], None]
) -> list[Assessment]:
    names = [tasks.evaluation_name(task) for task in asked]
    asked = [with_instruction(task, model.chat) for task in asked]
    folder = model.folder(say=say)
    digest = model.digest(folder)
    disable_progress_bar()
    templates.warm_up(folder)
    tokenizer = opened(AutoTokenizer, folder)
    context = None if wanted.beyond_context else context_of(opened(AutoConfig, folder))
    sampling = [wanted.of(task) for task in asked]
    budget = max(each["max_new_tokens"] for each in sampling)
    engine = EngineOnDemand(folder, tokenizer.eos_token_id, budget, beyond_context=wanted.beyond_context)
    found = []
    for name, task, settings in zip(names, asked, sampling, strict=True):
        identity = {
            "model": model.identity(),
            "digest": digest,
            "task": identities.component_identity(task),
            "seed": wanted.seed,
            "engine": engine.name,
            **settings,
        }
        key = identities.key(identity)
        kept = out / f"{name}-{key}"
        files.write_json(kept / "settings.json", identity)

        def heard(done: int, of: int, name: str = name) -> None:
            say(f"{name}: {done} of {of} problems sampled")

        together = BATCH[engine.name]
        sampler = Sampler(engine, tokenizer, wanted.seed, model.chat, context, kept / "samples", together, heard)
        most = Verify.max_failures
        evaluation = evaluate_task(task, sampler, verifier, problems=wanted.problems, max_failures=most, **settings)
        evaluation = dataclasses.replace(evaluation, task=name)
        notes = sampler.notes([record["prompt"] for record in evaluation.samples])
        attempt = attempt_at(kept, task, engine, digest)
        dataset = fingerprints(task, settings["split"], len(evaluation.problems))
        flags = task.flags(trained_on=None)
        found.append(Assessment(evaluation, settings, identity, attempt, dataset, kept, flags, notes))
        files.write_json(kept / "result.json", found[-1].record())
    who = {"model": model.name, "summary": model.summary(), "identity": model.identity()}
    record = {**who, "tasks": [each.record() for each in found]}
    files.write_json(out / "results.json", record)
    return found


def attempt_at(kept: Path, task: Task, engine: EngineOnDemand, digest: str) -> Made:
    """Returns the record of what made an evaluation: that of the first time, unless the task was edited since."""
    sources = {task.name: SourceDigests().of(type(task))}
    earlier = Made.read(kept)
    if earlier is not None and not edited_components(earlier.sources, sources):
        return earlier
    gpu = torch.cuda.get_device_name() if engine.device == "cuda" else None
    packages = choice.DISTRIBUTIONS if engine.name == "vllm" else ()
    return provenance.begin_attempt(kept, sources, engine.device, gpu, packages, base_model=digest)


def fingerprints(task: Task, split: str, number: int) -> dict[str, str]:
    """Returns the hash of the problems that were asked, and that of their whole set if one was prepared."""
    asked = [[problem.id, problem.prompt, problem.answer] for problem in task.problems(split)[:number]]
    card = find_card(task.name) if task.name in SETS else None
    return {"problems.fingerprint": identities.hash_of(asked)} | (
        {} if card is None else {"dataset.fingerprint": card["fingerprint"]}
    )


def show(console: Console, found: Sequence[Assessment]) -> None:
    """Prints a line for each task; what only some of them have is empty for the others."""
    rows = [(each.evaluation, each.evaluation.metrics, each.settings["samples"]) for each in found]
    ks = [k for k in powers_of_two(max(samples for _, _, samples in rows)) if k > 1]
    numbers = ("problems", "K", "Avg@K", *(f"Pass@{k}" for k in ks), "maj@K", *DIVERSITY, "truncated", "length")
    lines = []
    for each, (evaluation, metrics, samples) in zip(found, rows, strict=True):
        counts = (str(len(evaluation.problems)), str(samples))
        passes = (format_estimate(each.pass_at_k(k)) if k <= samples else "" for k in ks)
        coverage = f"{metrics['coverage']:.1%}" if "coverage" in metrics else ""
        diversity = (f"{metrics['right_distinct']:.2f}", coverage, f"{metrics['after_answer']:.1%}")
        rest = (
            f"{metrics[f'maj@{samples}']:.3f}",
            *diversity,
            f"{metrics['truncated']:.1%}",
            f"{metrics['length']:.0f}",
        )
        lines.append([evaluation.task, *counts, format_estimate(each.avg()), *passes, *rest])
    columns = [Column("task"), *(Column(name, right=True) for name in numbers)]
    between = [[f"Pass@{k}"] for k in ks[:-1]]  # of which the last says the most
    further = [[name] for name in reversed(DIVERSITY)]
    goes = [["length"], ["truncated"], *further, *between, ["problems"]]
    layout.show_table(console, columns, lines, goes, pad_edge=False, where="in a wider terminal, or in results.json")
    console.print("±: 95 % interval over problems, of one model and one seed; Pass@1 is Avg@K; length is in tokens.")
    console.print(
        "distinct right: distinct right answers to a problem; solutions found: the share of all that there are."
    )
    for each in found:
        verdicts = sorted(each.evaluation.verdicts.items(), key=lambda item: -item[1])
        console.print(f"{each.evaluation.task}: {', '.join(f'{number:,} {verdict}' for verdict, number in verdicts)}")
        for note in each.flags + each.notes:
            console.print(f"{each.evaluation.task}: {note}", style="yellow")
