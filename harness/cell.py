"""The process of one cell: build the parts, train, evaluate, and say how it ended."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from filelock import FileLock
from transformers import AutoTokenizer
from transformers.models.qwen2 import modeling_qwen2  # noqa: F401  loaded once, in the server that cells fork from

import baselines
import tasks
from harness import files, models, rollout, verify
from harness.config import Config, UserError, typed
from harness.filter import Asker, pool
from harness.method import Method
from harness.policy import CellFailure, Critic, Policy, check_vocabulary
from harness.rendering import instructed
from harness.tracking import MetricsLog
from harness.trainer import Trainer


def device_of(config: Config) -> tuple[str, torch.dtype]:
    device = config.hardware.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("hardware.device is 'cuda', but torch sees no CUDA device here; allowed: auto, cpu")
    if config.train.dtype == "auto":
        return device, torch.bfloat16 if device == "cuda" else torch.float32
    return device, getattr(torch, config.train.dtype)


def build(record: dict[str, Any], folder: Path, say: Callable[[str], None] = print) -> tuple[Trainer, str]:
    config: Config = typed(Config(), record["config"], "")
    device, dtype = device_of(config)
    torch.set_num_threads(config.hardware.threads)
    verify.choose(config.verify)
    torch.manual_seed(record["seed"])
    method = Method.of(record["method"], baselines.table(config.plugins), config.method_options)
    model = models.resolve(record["model"])
    base = model.folder()
    common = (config.train, config.rollout.temperature, device, dtype, config.hardware.micro_tokens)
    policy = Policy(base, *common)
    critic = None
    if "values" in method.needs:
        critic_lr = vars(method.objective)["critic_lr"]  # every objective that needs values has one
        critic = Critic(base, config.train, critic_lr, device, dtype, config.hardware.micro_tokens)
    tokenizer = AutoTokenizer.from_pretrained(base)
    check_vocabulary(tokenizer, policy.module, base)
    chosen = rollout.resolve(config.rollout.engine, device, model.shape())
    engine = rollout.build(chosen, base, tokenizer.eos_token_id, device, dtype, config.hardware)
    task = instructed(tasks.build(record["task"]), model.chat)
    if config.train.filter is not None:
        engine.load(policy.module)  # which has not been trained yet
    asker = Asker(model.identity(), task, engine, tokenizer, config.rollout, config.verify.max_failures, model.chat)
    trainer = Trainer(
        config,
        method,
        task,
        [instructed(tasks.build(spec), model.chat) for spec in config.eval.tasks or [record["task"]]],
        pool(asker, config.train.filter, models.default_cache(), config.train.prompts, say),
        policy,
        critic,
        Policy(base, *common) if "ref_logp" in method.needs else None,
        engine,
        tokenizer,
        model.chat,
        record["seed"],
        folder,
    )
    return trainer, device


def check_complete(trainer: Trainer) -> None:
    """Done means that the work is there: every step, and every answer of the last evaluation."""
    steps = [line["step"] for line in MetricsLog(trainer.folder).read()]
    expected = list(range(trainer.config.train.steps + 1))
    if steps != expected:
        raise CellFailure(f"metrics.jsonl holds {len(steps)} steps where {len(expected)} were expected")
    for task in trainer.evaluation_tasks:
        samples = trainer.config.eval.of(task.name).samples
        result = files.read_json(trainer.folder / "evals" / f"{task.name}-{expected[-1]:06d}.json")
        if not result["right"] or {len(row) for row in result["right"]} != {samples}:
            raise CellFailure(f"the last evaluation of {task.name} lacks samples")


def run(folder: Path) -> None:
    record = yaml.safe_load((folder / "config.yaml").read_text())
    started, launcher = time.time(), os.getppid()
    earlier = files.read_json(folder / "state.json").get("seconds", 0.0) if (folder / "state.json").exists() else 0.0
    state: dict[str, Any] = {"state": "running", "reason": None, "durable_step": -1}

    def save(**changes: Any) -> None:
        state.update(changes, seconds=earlier + time.time() - started)  # of work, over all lives of the cell
        files.write_json(folder / "state.json", state)

    def durable(**changes: Any) -> None:
        """What was done so far is safe."""
        save(**changes)
        if os.getppid() != launcher:
            sys.exit("stopped: the launcher is gone; the next run goes on from here")

    def say(text: str) -> None:
        print(text, flush=True)
        durable(reason=text)

    save()
    try:
        trainer, state["device"] = build(record, folder, say)
        save(reason=None)
        trainer.run(lambda step: durable(durable_step=step))
        check_complete(trainer)
        if trainer.config.checkpoint.save_model:
            trainer.policy.module.save_pretrained(folder / "model")
            trainer.tokenizer.save_pretrained(folder / "model")
    except (CellFailure, verify.TooManyFailures, UserError) as failure:
        save(state="failed", reason=str(failure))
        sys.exit(f"failed: {failure}")
    except Exception as error:  # whatever it is, it ends this cell alone, with its name and the full story in the log
        traceback.print_exc()
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
        save(state="failed", reason=reason)
        sys.exit(1)
    save(state="done")


def main(folder: str) -> None:
    """In a process of its own: everything printed goes to the cell's log."""
    log = os.open(Path(folder) / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    transformers.utils.logging.disable_progress_bar()
    # Another process may hold the cell: an orphan of a killed run ends at its next checkpoint, another run finishes it.
    with FileLock(Path(folder) / "lock"):
        state = Path(folder) / "state.json"
        if not state.exists() or files.read_json(state)["state"] != "done":
            run(Path(folder))


if __name__ == "__main__":
    main(sys.argv[1])
