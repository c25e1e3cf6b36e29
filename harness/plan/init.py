"""A first configuration for a model and data of one's own, with sizes that fit the machine and the time."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import shlex
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from math import ceil
from pathlib import Path
from typing import Any

import tasks
from harness import config as configs
from harness.base import files
from harness.base.errors import UserError
from harness.base.task import Described
from harness.base.units import about_duration, gib
from harness.config import Config
from harness.config.sections import LOOK_PROBLEMS, LOOK_SAMPLES
from harness.launch.machine import this_machine
from harness.matrix import cells, settle_auto
from harness.plan.estimate import Plan, plan_for
from harness.plan.lacks import fits_of
from harness.plan.probe import StepProbe, measured_step
from harness.rollout import models
from harness.runs.look import Look, look
from harness.table.columns import format_estimate
from tasks import Task

METHODS = ("grpo", "clip_b")
GROUP = 8  # responses to a prompt
FEWEST, MOST = 20, 200  # steps
PROMPTS, SEEDS = (16, 8, 4), ((0, 1, 2), (0, 1), (0,))  # the first that leave time for the fewest steps
SILENT = 10  # steps: with a signal in one group of ten, ten steps of 8 prompts have none once in 4,600 times
PROBLEMS, SAMPLES, K = 64, 16, 8  # of an evaluation, of which there are two
RATE = 1e-5  # of so few steps: 1e-6 needs hundreds of prompts in each
ADAPTERS, RATE_OF_ADAPTERS = "{rank: 16}", 1e-4  # docs/evidence/laptop.md
SMALL, RATE_OF_SMALL = 10**7, 3.5e-4  # parameters of models that are made here
WIDTH = 117  # of comments
HUB = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?", re.ASCII)


@dataclass(frozen=True)
class Own:
    """A model and data of somebody's own, and the hours that training and evaluation may take."""

    model: str
    data: str  # a file with problems and answers, owner/name on the hub, or a task
    device: str
    hours: float
    lora: bool = False
    tokens: int | None = None  # of a response, at most; None: the task's number
    plugins: Sequence[str] = ()

    @property
    def task(self) -> str:
        is_folder = "/" in self.data and os.path.isdir(self.data)  # without a slash it may have the name of a task
        if is_folder or self.data.startswith(models.LOCAL) or tasks.names_file(self.data):
            return f"problems(file={written(self.data)})"
        if HUB.fullmatch(self.data):
            return f"problems(hub={written(self.data)})"
        return self.data


@dataclass(frozen=True)
class Draft:
    """A configuration, and what its comments say."""

    own: Own
    max_new_tokens: int
    lr: float
    problems: int
    steps: int = FEWEST
    prompts: int = PROMPTS[0]
    seeds: Sequence[int] = SEEDS[0]
    hardware: dict[str, Any] = field(default_factory=dict)
    findings: Sequence[str] = ()

    def config(self) -> Config:
        """Return the configuration as every command reads it."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "init.yaml"
            files.write_text(path, self.text(path.name))
            return configs.load_config(str(path))

    def text(self, name: str) -> str:
        lines = [part for line in self.findings for part in textwrap.wrap(line, WIDTH, subsequent_indent="  ")]
        findings = "\n".join(f"# {line}" for line in lines)
        plugins = f"plugins: {written([*self.own.plugins])}\n" if self.own.plugins else ""
        file = shlex.quote(name)
        adapters = f"  lora: {ADAPTERS}  # adapters are trained, and not the model\n" if self.own.lora else ""
        return f"""\
# GRPO and Clip_B on a model and data of one's own, written on {date.today():%d %B %Y}: change what you like
#
#     entrobench plan {file}      # what it costs, and what is missing
#     entrobench run {file}       # the same command continues after an interruption
#     entrobench report {file}    # a page with curves and answers
#
{findings}
methods: [{", ".join(METHODS)}]  # `entrobench list methods` has more
method_options:
  clip_b: {{share: 0.02}}  # of the tokens, which it drops; `entrobench explain clip_b {file}` shows which
tasks: [{written(self.own.task)}]
models: [{written(self.own.model)}]
seeds: {written([*self.seeds])}  # one alone cannot tell how much seeds differ
{plugins}train:
  steps: {self.steps}
  prompts: {self.prompts}
  group: {GROUP}  # responses to each prompt
  updates: 2  # of each batch; with one, no ratio is ever clipped
  lr: {self.lr:.1e}
{adapters}rollout:
  max_new_tokens: {self.max_new_tokens}
eval:
  problems: {self.problems}
  samples: {SAMPLES}
  k: {K}
stop: {{without_signal: {SILENT}}}  # steps in a row after which a cell ends; remove it to compare methods
checkpoint: {{keep: 1}}
hardware: {written({"device": self.own.device, **self.hardware})}
"""

    def seconds(self, plan: Plan, probe: StepProbe) -> float:
        """Return the time of all cells."""
        return probe.seconds(self.config()) * ceil(len(METHODS) * len(self.seeds) / plan.at_once)


def written(value: Any) -> str:
    """Return a value as JSON, which YAML and specs read alike: their escapes for other letters differ."""
    return json.dumps(value, ensure_ascii=False)


def configuration(own: Own, name: str, say: Callable[[str], None]) -> str:
    """Return the text of a configuration that runs as it is, after a look at the model and a few measured steps."""
    task = tasks.build_task(own.task, list(own.plugins))
    for split, use in (("train", "train"), ("test", "evaluate")):
        tasks.check_split(task, split, f"the split to {use} on")
    model = models.resolve(own.model)
    model.folder(say=say)
    shape = model.shape()
    if shape is None:
        raise UserError(f"nothing can be fitted to {own.model}: its config.json is of a kind whose size is unknown")
    longest = own.tokens or tasks.lm_eval_settings(task)["generation_kwargs"]["max_gen_toks"]
    rate = RATE_OF_ADAPTERS if own.lora else RATE_OF_SMALL if shape.parameters < SMALL else RATE
    draft = Draft(own, longest, rate, min(PROBLEMS, len(task.problems("test"))))
    settled = settle_auto(draft.config(), shape)
    most = f"of at most {longest:,} tokens (--tokens)"
    say(f"looking at {own.model} on {tasks.evaluation_name(task)} with responses {most}")
    seen = look(own.model, task, settled, LOOK_PROBLEMS, LOOK_SAMPLES)
    say(seen.sentence)  # it may say that nothing can be learned, and what follows takes minutes
    draft = dataclasses.replace(draft, hardware=fitting_hardware(planned(draft)))
    # A look only samples, and training takes longer: no more prompts are measured than even it leaves time for.
    response = seen.seconds / (len(seen.right) * seen.samples)
    sampling = StepProbe(own.model, GROUP * response, 1, response, seen.length, start=0.0)
    draft = dataclasses.replace(draft, prompts=in_time(draft, planned(draft), sampling).prompts)
    plan = planned(draft)
    say(f"measuring three steps of {draft.prompts * GROUP} responses {most}")
    probe = measured_step(plan.config, plan)
    draft = in_time(draft, plan, probe)
    findings = [
        f"Model: {shape.parameters:,} parameters, computed in {settled.train.dtype} on {settled.hardware.device}.",
        f"Data: {(tasks.descriptions([own.task], own.plugins) or [data_line(task)])[0]}.",
        f"Look: {look_line(seen)}.",
        f"Time: a step of {probe.prompts} prompts took {probe.step:.3g} s, so that all cells take "
        f"{about_duration(draft.seconds(plan, probe))}; {own.hours:g} h were asked for.",
    ]
    return dataclasses.replace(draft, findings=findings).text(name)


def planned(draft: Draft) -> Plan:
    config = draft.config()
    return plan_for(config, cells(config), this_machine(config))


def fitting_hardware(plan: Plan) -> dict[str, Any]:
    """Return the settings with which the largest cell fits this machine, and no more cells side by side than do."""
    machine = this_machine(plan.config)
    largest = max(plan.footprints, key=lambda footprint: footprint.in_one_memory)
    room = machine.ram if plan.kind == "cpu" else largest.gpu
    here = max(len(machine.devices), 1)
    fits = [fit for fit in fits_of(largest, room) if fit.changes.get("hardware.ranks", 1) <= here]
    if not fits:
        needed = gib(largest.in_one_memory)
        less = "" if plan.config.train.lora else "; --lora needs less"
        raise UserError(f"training {largest.model} needs {needed}, and no setting makes it fit into {gib(room)}{less}")
    # Of the hardware alone: in the first fit, moments are offloaded before another optimizer is taken.
    changes = {key.removeprefix("hardware."): value for key, value in fits[0].changes.items()}
    if plan.kind == "cpu" and plan.at_once * fits[0].needed > room:
        changes["threads"] = machine.cores // (room // fits[0].needed)
    return changes


def in_time(draft: Draft, plan: Plan, probe: StepProbe) -> Draft:
    """Return the draft with as many steps as the time allows: with fewer prompts and seeds if these are too few."""
    for prompts, seeds in itertools.product(PROMPTS, SEEDS):
        sized = dataclasses.replace(draft, prompts=prompts, seeds=seeds)
        one, two = (dataclasses.replace(sized, steps=steps).seconds(plan, probe) for steps in (1, 2))
        steps = 1 + int((3600 * draft.own.hours - one) / (two - one))
        if steps >= FEWEST:
            return dataclasses.replace(sized, steps=min(steps, MOST))
    return dataclasses.replace(sized, steps=FEWEST)


def data_line(task: Task) -> str:
    """Return the number of problems in each split, and what was left out of a data set of one's own."""
    if isinstance(task, Described):
        return task.about()
    return ", ".join(f"{len(task.problems(split)):,} {split}" for split in task.splits) + " problems"


def look_line(seen: Look) -> str:
    k = seen.samples
    scores = f"Avg@{k} {format_estimate(seen.average())}, Pass@{k} {format_estimate(seen.solved())}"
    shares = f"ended {seen.ended:.0%}, unreadable {seen.unparsed:.0%}"
    return "; ".join([f"{seen.sentence}; {scores}, {shares}, {seen.length:.0f} tokens a response", *seen.notes])
