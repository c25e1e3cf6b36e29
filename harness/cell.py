"""The process of one cell: build the parts, train, evaluate, and say how it ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
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
from harness.base import files, ranks
from harness.base.errors import CellFailure, UserError
from harness.base.schema import typed
from harness.config import Config
from harness.method import Method
from harness.record.log import MetricsLog
from harness.rollout import choice, engines, models
from harness.rollout.proof import check_weights
from harness.rollout.rendering import instructed
from harness.rollout.together import led
from harness.train.filter import Asker, pool
from harness.train.policy import Critic, Policy, check_vocabulary
from harness.trainer import Trainer
from harness.verify.pool import Verifier


def device_of(config: Config) -> tuple[str, torch.dtype]:
    device = config.hardware.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("hardware.device is 'cuda', but torch sees no CUDA device here; allowed: auto, cpu")
    if config.train.dtype == "auto":
        return device, torch.bfloat16 if device == "cuda" else torch.float32
    return device, getattr(torch, config.train.dtype)


def build(
    record: dict[str, Any], folder: Path, verifier: Verifier, say: Callable[[str], None] = print
) -> tuple[Trainer, str]:
    config: Config = typed(Config(), record["config"], "")
    device, dtype = device_of(config)
    torch.set_num_threads(config.hardware.threads)
    method = Method.of(record["method"], baselines.table(config.plugins), config.method_options)
    model = models.resolve(record["model"])
    base = model.folder()
    common = (config.train, config.rollout.temperature, device, dtype, config.hardware)
    policy = Policy(base, *common)
    critic = None
    if "values" in method.needs:
        critic_lr = vars(method.objective)["critic_lr"]  # every objective that needs values has one
        critic = Critic(base, config.train, critic_lr, device, dtype, config.hardware)
    tokenizer = AutoTokenizer.from_pretrained(base)
    check_vocabulary(tokenizer, policy.module, base)
    chosen = choice.resolve(config.rollout.engine, device, model.shape())
    engine = engines.build(chosen, base, tokenizer.eos_token_id, device, dtype, config.hardware)
    torch.manual_seed(record["seed"])  # after the engine, since vLLM seeds what all of the process draw from
    task = instructed(tasks.build(record["task"]), model.chat)
    if config.train.filter is not None:
        engine.load(policy.module)  # which has not been trained yet
        check_weights(engine, policy.module, dtype, record["seed"])
    found = None
    with led(engine) as sampling:
        if sampling is not None:
            most = config.verify.max_failures
            asker = Asker(model.identity(), task, sampling, tokenizer, verifier, config.rollout, most, model.chat)
            found = pool(asker, config.train.filter, models.default_cache(), config.train.prompts, say)
    problems = ranks.of_first(found)
    assert problems is not None
    trainer = Trainer(
        config,
        method,
        task,
        [instructed(tasks.build(spec), model.chat) for spec in config.eval.tasks or [record["task"]]],
        problems,
        policy,
        critic,
        Policy(base, *common) if "ref_logp" in method.needs else None,
        engine,
        tokenizer,
        verifier,
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
    """All of the cell, or what this rank does of it."""
    record = yaml.safe_load((folder / "config.yaml").read_text())
    started, launcher, path = time.time(), os.getppid(), folder / "state.json"
    state = files.read_json(path)
    earlier = state["seconds"]

    def so_far() -> float:
        """Seconds of work, over all lives of the cell."""
        return earlier + time.time() - started

    def save(**changes: Any) -> None:
        state.update(changes, seconds=so_far())
        if ranks.number() == 0:
            files.write_json(path, state)

    def fail(reason: str) -> None:
        """The first rank to fail says why: others then fail for want of it, as all do where they are stopped."""
        now = files.read_json(path)
        if now["state"] != "failed" and os.getppid() == launcher:
            files.write_json(path, {**now, "state": "failed", "reason": reason, "seconds": so_far()})

    def durable(**changes: Any) -> None:
        """What was done so far is safe."""
        save(**changes)
        if os.getppid() != launcher:
            sys.exit("stopped: the launcher is gone; the next run goes on from here")

    def say(text: str) -> None:
        print(text, flush=True)
        durable(reason=text)

    try:
        config: Config = typed(Config(), record["config"], "")
        with ranks.joined(config.hardware.ranks, device_of(config)[0]), Verifier.of(config.verify) as verifier:
            trainer, state["device"] = build(record, folder, verifier, say)
            save(reason=None)
            trainer.run(lambda step: durable(durable_step=step))
            if config.checkpoint.save_model:
                trainer.policy.save(folder / "model")
            if ranks.number() == 0:
                if config.checkpoint.save_model:
                    trainer.tokenizer.save_pretrained(folder / "model")
                check_complete(trainer)
                save(state="done")
    except (CellFailure, UserError) as failure:
        fail(str(failure))
        sys.exit(f"failed: {failure}")
    except Exception as error:  # whatever it is, it ends this cell alone, with its name and the full story in the log
        traceback.print_exc()
        fail(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}")
        sys.exit(1)


def divide(folder: Path, count: int) -> None:
    """A process for each rank. They end with this one, and all of them when one fails."""
    launcher = os.getppid()
    loopback = next(name for _, name in socket.if_nameindex() if name in ("lo", "lo0"))
    shared = {"WORLD_SIZE": str(count), "GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}
    with tempfile.TemporaryDirectory() as meeting:
        shared["RENDEZVOUS"] = f"{meeting}/ranks"
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "harness.cell", str(folder)],
                env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,  # which closes when this process ends, however it does
                start_new_session=True,  # Ctrl-C is for this process
            )
            for rank in range(count)
        ]
        codes: list[int | None] = [None]
        while None in codes and not any(codes) and os.getppid() == launcher:
            time.sleep(0.1)
            codes = [process.poll() for process in processes]
        for process in processes:
            process.kill()
            process.wait()
    failed = next(filter(None, codes), 0)
    if failed < 0:
        os.kill(os.getpid(), -failed)  # as the rank did, which the launcher knows how to tell
    sys.exit(failed)


def main(folder: str) -> None:
    """In a process of its own: everything printed goes to the cell's log."""
    log = os.open(Path(folder) / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    transformers.utils.logging.disable_progress_bar()
    # Another process may hold the cell: an orphan of a killed run ends at its next checkpoint, another run finishes it.
    with FileLock(Path(folder) / "lock"):
        path = Path(folder) / "state.json"
        before = files.read_json(path) if path.exists() else {"state": "planned"}
        if before["state"] == "done":
            return
        seconds = before.get("seconds", 0.0)
        files.write_json(path, {"state": "running", "reason": None, "durable_step": -1, "seconds": seconds})
        count = yaml.safe_load((Path(folder) / "config.yaml").read_text())["config"]["hardware"]["ranks"]
        run(Path(folder)) if count == 1 else divide(Path(folder), count)


if __name__ == "__main__":
    ranks.end_with_parent()
    transformers.utils.logging.disable_progress_bar()
    run(Path(sys.argv[1]))
