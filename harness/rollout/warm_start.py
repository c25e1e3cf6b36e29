"""The settings of a warm start: supervised steps on traces before any method trains; imports no torch."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import tasks
from harness.base import identities
from harness.base.errors import UserError, short, shown
from harness.base.schema import TEMPERATURES, choice, number
from harness.base.task import Problem, Solving, Task
from harness.cells.source_digest import source_digest
from harness.rollout import digests

VERSION = 1  # of harness/train/warm_start.py; a new version makes new models from the same settings
OWN, SOLUTIONS, SUFFIX = "own", "solutions", ".jsonl"


class Trace(NamedTuple):
    """A prompt with a response that a model is to give."""

    problem: Problem
    response: str


@dataclass(frozen=True)
class WarmStart:
    """Supervised steps on traces of a task's training problems, or of a file."""

    task: str = ""  # a specification, such as lists(most=3)
    # own: right samples of the model itself; solutions: those of the task; or the path of a .jsonl file
    source: str = OWN
    plugins: list[str] = field(default_factory=list)  # modules that have the task
    traces: int = number(400, least=1)  # at most
    shots: bool = False  # keep the task's worked examples before the prompts of the traces
    problems: int = number(72, least=1)  # that own samples are drawn for
    samples: int = number(16, least=1)  # of each problem
    temperature: float = number(1.0, **TEMPERATURES)
    steps: int = number(50, least=1)
    batch: int = number(16, least=1)
    lr: float = number(2e-5, above=0)
    warmup_steps: int = number(5, least=0)
    seed: int = number(0, least=0)
    dtype: str = choice("float32", ("float32", "bfloat16"))
    # auto: a GPU if there is one. Only a CPU makes bitwise the same model each time.
    device: str = choice("cpu", ("auto", "cpu", "cuda"))

    @property
    def file(self) -> Path | None:
        """The file of the traces, if they are in one."""
        return Path(self.source) if self.source.endswith(SUFFIX) else None

    def built_task(self) -> Task | None:
        """Return the task that has the training problems; UserError if it cannot give traces from the source."""
        if self.file is None and self.source not in (OWN, SOLUTIONS):
            raise UserError(
                f"warm_start.source is {shown(self.source)}; allowed: {OWN}, {SOLUTIONS}, or the path of a .jsonl file"
            )
        if not self.task:
            if self.file is None:
                raise UserError(f"warm_start.task is missing; only a source that is a {SUFFIX} file needs none")
            return None
        task = tasks.build_task(self.task, self.plugins)
        if "train" not in task.splits:
            raise UserError(f"warm_start.task is {shown(self.task)}, which has no training problems")
        if self.source == SOLUTIONS and not isinstance(task, Solving):
            raise UserError(
                f"warm_start.source is {SOLUTIONS!r}, but the task {task.name} cannot solve its problems; allowed: "
                f"{OWN}, or the path of a .jsonl file"
            )
        return task

    def identity(self) -> dict[str, Any]:
        """Return the definition of the traces and of the training; UserError if no traces can come of it."""
        definition = dataclasses.asdict(self)
        del definition["plugins"]  # the digest of the task's source says which task it is
        task = self.built_task()
        if task is not None:
            problems = tasks.problem_digests(self.task, [], "train", lambda spec: task)
            definition["task"] = [identities.component_identity(task), source_digest(type(task)), problems]
        if self.file is not None:
            traces = len(read_traces(self.file))
            if traces < self.batch:
                raise UserError(f"warm_start.batch is {self.batch}, but {short(str(self.file))} has {traces} traces")
            definition["source"] = digests.file_digest(self.file)
        return definition

    def summary(self) -> str:
        """Return a description in one line."""
        of_task = f" of {self.task}" if self.task else ""
        origin = {OWN: f"its own samples{of_task}", SOLUTIONS: f"solutions{of_task}"}.get(self.source, self.source)
        return f"after {self.steps} supervised steps on {origin}"


def read_traces(path: Path) -> list[Trace]:
    """Return the traces of a file with `{"prompt": ..., "response": ...}` on each line; other keys are ignored."""
    if not path.is_file():
        raise UserError(f"warm_start.source is {shown(str(path))}, which does not exist or is not a file")
    traces = []
    for place, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{short(str(path))}, line {place}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where} is not valid JSON ({short(str(error))})") from error
        texts = record if isinstance(record, dict) else {}
        prompt, response = texts.get("prompt"), texts.get("response")
        if not (isinstance(prompt, str) and isinstance(response, str) and prompt and response):
            raise UserError(f'{where} is {shown(record)}; it must be {{"prompt": "...", "response": "..."}}')
        try:
            f"{prompt}{response}".encode()
        except UnicodeEncodeError:
            raise UserError(f"{where} has a broken character: half a surrogate pair") from None
        traces.append(Trace(Problem(id=f"line {place}", prompt=prompt, answer=""), response))
    if not traces:
        raise UserError(f"{short(str(path))} is empty; it must have a prompt and a response on each line")
    return traces
