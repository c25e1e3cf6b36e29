"""The model card of an exported cell: what was trained, how it compares, and how to repeat its answers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import baselines
import tasks
from harness.base import files, seeds
from harness.base.errors import Damaged
from harness.cells.evaluations import all_evaluations, pass_at_k
from harness.cells.log import MetricsLog
from harness.cells.provenance import Made
from harness.cells.spec import CellSpec
from harness.methods.composition import Method
from harness.rollout import digests
from harness.rollout.gguf import PACKAGE, GgufFile, read_header
from harness.rollout.models import Model, Warmed
from harness.rollout.rendering import render_prompt
from harness.table.leaderboard import LeaderboardRow
from harness.table.render import as_markdown, as_prose, render_rows
from harness.train.parts import evaluation_tasks_of

CARD = "README.md"
MODEL_FILE = "model.yaml"
FENCE = b"---\n"  # before and after the metadata of a card
LICENSE = ("license", "license_name", "license_link")  # the keys of a card's metadata
COLUMNS = ("avg_at_k", "pass_at_k", "delta_to_baseline", "delta_pass_at_k", "verdict", "seeds_done")
SNIPPET = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({place!r})
model = AutoModelForCausalLM.from_pretrained({place!r})
prompt = {prompt!r}
inputs = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
output = model.generate(**inputs, {sampling}, max_new_tokens={longest}, eos_token_id={ends})
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))"""


@dataclass(frozen=True)
class Standing:
    """The rows of the leaderboard that a cell belongs to: its method's, the baseline's and the base model's."""

    method: str  # by its name in the table
    rows: Sequence[LeaderboardRow]

    @property
    def own(self) -> list[LeaderboardRow]:
        """The rows of the method, one for each evaluation task."""
        return [row for row in self.rows if row.method == self.method]


def model_card(
    cell: Path, spec: CellSpec, model: Model, tokenizer: Any, ends: Sequence[int], standing: Standing, place: str
) -> str:
    """Return the card of a cell's model; `place`: where it can be loaded from, a folder or a name on the Hub."""
    config, key = spec.config, spec.key
    method = Method.of(key.method, baselines.table(config.plugins), config.method_options)
    license_keys = license_of(model)
    stated = facts(cell, spec, model, method, license_keys, standing)
    last = MetricsLog(cell).read()[-1]["step"]
    task = tasks.evaluation_name(tasks.build_task(key.task, config.plugins))  # which has no path
    rows = [dataclasses.replace(row, model=model.name) for row in standing.rows]  # which name it by its path
    parts = [
        f"---\n{metadata(model, method, license_keys)}\n---",
        f"# {as_prose(key.method)} on {as_prose(task)}, seed {key.seed}",
        f"{as_prose(model.name)} after {last} steps of reinforcement learning with verifiable rewards, one cell of an "
        f"entrobench matrix named {as_prose(spec.matrix)}.",
        "\n".join(f"- **{heading}**: {as_prose(text)}" for heading, text in stated.items()),
        "## Scores",
        f"The method over its seeds, of which this model is seed {key.seed}:",
        render_rows(rows, "md", columns=COLUMNS).rstrip(),
        own_scores(cell, spec, last),
        "## Use",
        f"A prompt of the evaluation, as this model was trained to read it:\n\n```python\n"
        f"{snippet(spec, model, tokenizer, ends, place)}\n```",
    ]
    in_entrobench = place
    # The folder has the other two.
    unsaved = {name: value for name, value in model.chat.identity().items() if name not in ("template", "end_tokens")}
    if unsaved:
        in_entrobench = MODEL_FILE
        settings = {"path": place, **unsaved}
        # YAML has no pairs of escapes, as JSON writes them for an emoji.
        lines = "\n".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in settings.items())
        parts.append(f"In entrobench its prompts need a model file, here `{MODEL_FILE}`:\n\n```yaml\n{lines}\n```")
    parts.append(repeating(spec, in_entrobench, last))
    return "\n\n".join(filter(None, parts)) + "\n"


def metadata(model: Model, method: Method, license_keys: Mapping[str, str]) -> str:
    """Return the keys by which the Hub finds a model."""
    from huggingface_hub import ModelCardData

    keys: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation", **license_keys}
    tags = ["entrobench", "reinforcement-learning", *method.named]
    return ModelCardData(base_model=hub_name(model), tags=tags, **keys).to_yaml()


def hub_name(model: Model) -> str | None:
    """Return the name on the Hub of the model that training, or its warm start, began from; None for all others."""
    origin = model.origin_model
    return origin.path if origin.path is not None and origin.local is None else None


def license_of(model: Model) -> dict[str, str]:
    """Return the license that the base model's card or GGUF file states, by the keys of a card."""
    origin = model.origin_model
    stated: Any = {}
    if isinstance(origin.recipe, GgufFile):
        settings = read_header(origin.recipe.path).settings
        stated = {name: settings.get(f"general.{name.replace('_', '.')}") for name in LICENSE}
    elif (folder := origin.present_folder()) is not None and (folder / CARD).is_file():
        text = files.read_bytes(folder / CARD).replace(b"\r\n", b"\n")
        if text.startswith(FENCE):
            with contextlib.suppress(Damaged):  # a card that cannot be read states none
                stated = files.parse_yaml(text.removeprefix(FENCE).partition(b"\n---")[0], folder / CARD)
    return {name: stated[name] for name in LICENSE if isinstance(stated, dict) and isinstance(stated.get(name), str)}


def license_text(model: Model, license_keys: Mapping[str, str]) -> str:
    if license_keys:
        return " ".join(license_keys.values())
    origin = model.origin_model
    if origin.path is not None or isinstance(origin.recipe, GgufFile):
        return "not known here; look it up before you publish this model"
    return "none, as entrobench made it"


def without_paths(model: Model) -> str:
    """Return the summary of a model, with only the last part of a path: it may name a person or a machine."""
    text, origin = model.summary(), model.origin_model
    if origin.local is not None:
        text = text.replace(origin.summary(), f"a Hugging Face folder named {origin.local.name}")
    if isinstance(origin.recipe, GgufFile) and not origin.recipe.written.startswith(PACKAGE):
        text = text.replace(origin.recipe.written, origin.recipe.path.name)
    if isinstance(model.recipe, Warmed) and (file := model.recipe.settings.file):
        text = text.replace(model.recipe.settings.source, file.name)
    return text


def facts(
    cell: Path, spec: CellSpec, model: Model, method: Method, license_keys: Mapping[str, str], standing: Standing
) -> dict[str, str]:
    """Return what a reader must know of a model, by headings."""
    config, train = spec.config, spec.config.train
    made = Made.read(cell)
    assert made is not None  # a cell that is done has it
    options = []
    for name in method.named:
        values = [f"{key}={json.dumps(value)}" for key, value in method.options(name).items() if key != "component"]
        options.append(f"`{name}({', '.join(values)})`")
    verdict = "; ".join(f"{row.verdict or 'none'} against {row.baseline} on {row.task}" for row in standing.own)
    if standing.method == standing.own[0].baseline:
        verdict = "none, as this is the baseline"
    updates, adapters = train.updates * train.epochs, ""
    if train.lora is not None:
        layers = ", ".join(train.lora.targets)
        adapters = f"; adapters (LoRA) of rank {train.lora.rank} and alpha {train.lora.alpha} for {layers}, merged"
    changed = ", with files that differ from it" if made.dirty else ""
    return {
        "Base model": f"{without_paths(model)}, digest {(made.base_model or '')[: digests.SHOWN]}",
        "License of the base model": license_text(model, license_keys),
        "Method": f"`{spec.key.method}`: {' + '.join(options)}",
        "Training": f"{train.prompts} prompts x {train.group} responses and {updates} updates a step, learning rate "
        f"{method.learning_rate(train.lr):g}, temperature {config.rollout.temperature:g}, up to "
        f"{config.rollout.max_new_tokens} tokens, {train.dtype}{adapters}",
        "Verdict": verdict,
        "Ruleset": config.ruleset,
        "Seeds": f"{standing.own[0].seeds_done} of {standing.own[0].seeds_expected} done",
        "Code": f"entrobench {made.version or 'of no version'}, commit {made.commit or 'unknown'}{changed}",
        "Cell": spec.id,
    }


def own_scores(cell: Path, spec: CellSpec, last: int) -> str:
    """Return the scores of this model alone, by its last evaluation."""
    lines = [["task", "problems", "K", "Avg@K", "k", "Pass@k"]]
    for _, record in all_evaluations(cell):
        if record["step"] != last:
            continue
        name, right_JN = record["task"], np.array(record["right"])
        problems, samples = right_JN.shape
        k = spec.config.eval.of(name).k
        passed = pass_at_k(samples, right_JN.sum(axis=1), k).mean()
        lines.append([name, str(problems), str(samples), f"{right_JN.mean():.3f}", str(k), f"{passed:.3f}"])
    return as_markdown("This model alone", lines).rstrip()


def snippet(spec: CellSpec, model: Model, tokenizer: Any, ends: Sequence[int], place: str) -> str:
    """Return a program that answers the first problem of the evaluation with transformers alone."""
    name, task = next(iter(evaluation_tasks_of(spec.config, spec.key.task, model.chat).items()))
    settings = spec.config.eval.of(name)
    prompt = tokenizer.decode(render_prompt(tokenizer, task.problems(settings.split)[0], model.chat))
    sampling = "do_sample=False"
    if settings.temperature:
        sampling = f"do_sample=True, temperature={settings.temperature:g}, top_k=0, top_p=1.0"
    longest = spec.config.rollout.max_new_tokens
    return SNIPPET.format(place=place, prompt=prompt, sampling=sampling, longest=longest, ends=list(ends))


def repeating(spec: CellSpec, place: str, last: int) -> str:
    """Return the commands that sample the answers of the last evaluation again; empty if `eval` has other problems."""
    config = spec.config
    commands = []
    for written in config.eval.tasks or [spec.key.task]:
        task = tasks.build_task(written, config.plugins)
        settings = config.eval.of(tasks.evaluation_name(task))
        if settings.split != tasks.lm_eval_settings(task)["test_split"]:
            continue
        words = ["entrobench", "eval", "--model", place, "--tasks", written, "--samples", str(settings.samples)]
        words += ["--temperature", f"{settings.temperature:g}", "--max-new-tokens", str(config.rollout.max_new_tokens)]
        words += ["--seed", str(seeds.derive("evaluate", spec.key.seed, last))]
        if settings.problems is not None:
            words += ["--problems", str(settings.problems)]
        if settings.beyond_context:
            words.append("--beyond-context")
        for plugin in config.plugins:
            words += ["--plugin", plugin]
        commands.append(f"    {shlex.join(words)}")
    if not commands:
        return ""
    return "\n".join(["The answers of its last evaluation, to the digit on the same kind of machine:\n", *commands])
