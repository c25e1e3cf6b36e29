"""A real trainer in miniature: the loop of every cell, on a tiny random model that is told what to sample.

Its responses are drawn by a script and not by the model, so that no rounding decides which tokens a step is about: all
methods, and all machines, see the same ones. What is right depends on the prompt and on the tokens alone.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging

from harness.base import seeds
from harness.base.task import Answer, Problem, Verdict, Verifier
from harness.batch import Rollout
from harness.composition import STANDS_ON, Method, Table
from harness.config import Config, Dynamics, Hardware, RolloutConfig, Train
from harness.rollout.protocol import OnGroup
from harness.rollout.rendering import PLAIN
from harness.tokens.metrics import Stopwatch
from harness.train.filter import TrainingPool
from harness.train.hidden import padded
from harness.train.policy import Critic, Policy
from harness.trainer import Parts, Trainer


@dataclass(frozen=True)
class Size:
    """The measures of a miniature: of the model, and of a step."""

    vocabulary: int = 29
    hidden: int = 32
    layers: int = 2
    prompts: int = 8
    group: int = 4
    longest: int = 12  # tokens of a response
    updates: int = 2
    lr: float = 1e-2
    dtype: torch.dtype = torch.float32


def write_model(folder: Path, size: Size) -> None:
    """Writes a random model, the same on every machine: its weights are numpy's."""
    logging.disable_progress_bar()
    heads = size.hidden // 16
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=size.vocabulary,
            hidden_size=size.hidden,
            intermediate_size=2 * size.hidden,
            num_hidden_layers=size.layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=64,
            tie_word_embeddings=True,
        )
    )
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            drawn = torch.from_numpy(rng.standard_normal(tuple(weight.shape)))
            weight.copy_(float("norm" in name) + 0.2 * drawn)
    model.save_pretrained(folder)


class Script:
    """An engine that samples what it is told, and says what the model thinks of it."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.model: PreTrainedModel | None = None

    def load(self, model: PreTrainedModel) -> None:
        self.model = model

    def weights(self, columns: Mapping[str, slice]) -> dict[str, Tensor]:
        assert self.model is not None
        held = dict(self.model.named_parameters(remove_duplicate=False))
        return {name: held[name].detach()[..., part] for name, part in columns.items()}

    def rest(self) -> None:
        """Holds nothing."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        *,
        seeds: Sequence[int],
        temperature: float,
        max_new_tokens: int,
        on_group: OnGroup | None = None,
    ) -> list[list[Rollout]]:
        groups = []
        for number, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            rng = np.random.default_rng(seed)
            tails = [rng.integers(1, self.vocabulary, rng.integers(2, max_new_tokens + 1)).tolist() for _ in range(n)]
            groups.append(self.scored(list(prompt), tails, temperature, max_new_tokens))
            if on_group is not None:
                on_group(number, groups[-1])
        return groups

    @torch.no_grad()
    def scored(self, prompt: list[int], tails: list[list[int]], temperature: float, longest: int) -> list[Rollout]:
        assert self.model is not None
        rows = padded([torch.tensor(prompt + tail) for tail in tails], "cpu")
        logp_BLV = (self.model(input_ids=rows).logits / temperature).log_softmax(-1)
        found = []
        for row, tail in enumerate(tails):
            places = torch.arange(len(tail)) + len(prompt) - 1
            logp = logp_BLV[row, places, torch.tensor(tail)].tolist()
            found.append(Rollout(prompt, tail, logp, len(tail) < longest))
        return found


class Tokens:
    """A tokenizer whose texts are the numbers of the tokens."""

    eos_token = "<eos>"  # is in no text: the last token of a response counts as any other

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [int(number) for number in text.split()]}

    def batch_decode(self, rows: Sequence[Sequence[int]], **_: Any) -> list[str]:
        return [" ".join(map(str, row)) for row in rows]


@dataclass(frozen=True)
class Low:
    """Right are responses whose mean token is below what the problem asks for: some problems nearly always, some
    nearly never."""

    name: ClassVar[str] = "low"
    splits: ClassVar[tuple[str, ...]] = ("train",)
    vocabulary: int = 29

    def problems(self, split: str) -> list[Problem]:
        shares = (0.2, 0.42, 0.47, 0.5, 0.52, 0.55, 0.6, 0.8)
        return [
            Problem(
                f"{i}", " ".join(str(1 + (3 * i + j) % (self.vocabulary - 1)) for j in range(2 + i % 3)), f"{share}"
            )
            for i, share in enumerate(shares * 2)
        ]

    def verdicts(self, pairs: Sequence[tuple[Problem, str]], verifier: Verifier) -> list[Verdict]:
        def right(problem: Problem, response: str) -> bool:
            tokens = [int(token) for token in response.split()]
            return sum(tokens) < float(problem.answer) * self.vocabulary * len(tokens)

        return [Verdict.RIGHT if right(*pair) else Verdict.WRONG for pair in pairs]

    def answers(self, pairs: Sequence[tuple[Problem, str]]) -> list[Answer | None]:
        """Return each response as its own answer."""
        return [Answer(response, len(response)) for _, response in pairs]

    def flags(self, trained_on: str | None) -> list[str]:
        """Has none."""
        return []


class Unasked:
    """A verifier for a task that asks it nothing."""

    def verdicts(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        raise AssertionError("nothing is to be verified")


def trainer(method: Method, model: Path, folder: Path, size: Size, steps: int) -> Trainer:
    """Returns the trainer of a method before its first step, on the model that `write_model` has written."""
    train = Train(
        steps=steps,
        prompts=size.prompts,
        group=max(size.group, method.min_group),
        updates=size.updates,
        lr=size.lr,
        dtype="float32",
    )
    config = Config(
        train=train,
        rollout=RolloutConfig(max_new_tokens=size.longest),
        dynamics=Dynamics(every=0),
        hardware=Hardware(device="cpu", micro_tokens=1024),
    )
    common = (train, config.rollout.temperature, "cpu", torch.float32, config.hardware)
    policy, critic = Policy(model, *common), None
    if "values" in method.needs:
        critic = Critic(model, train, 1e-2, "cpu", torch.float32, config.hardware)
    reference = Policy(model, *common) if "ref_logp" in method.needs else None
    for each in (policy, reference):
        if each is not None:
            each.network.to(size.dtype)
    task = Low(size.vocabulary)
    parts = Parts(
        cell="miniature",
        config=config,
        seed=0,
        method=method,
        task=task,
        evaluation_tasks={},
        pool=TrainingPool(task.problems("train"), {}),
        policy=policy,
        critic=critic,
        reference=reference,
        engine=Script(size.vocabulary),
        tokenizer=Tokens(),
        verifier=Unasked(),
        chat=PLAIN,
    )
    built = Trainer(parts, folder)
    torch.manual_seed(seeds.derive("miniature"))
    built.synchronise(0)
    return built


ROUNDS = 5
COSTLY = Size(vocabulary=512, hidden=64, group=8, longest=24)  # a step of some 1,000 tokens


def cost(spec: str, table: Table) -> float:
    """Returns the CPU time of a method's training step over that of plain GRPO: whole steps, taken by turns, the
    quickest of each."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model"
            write_model(model, COSTLY)
            plain, own = (
                trainer(Method.of(each, table), model, Path(folder), COSTLY, ROUNDS) for each in (STANDS_ON, spec)
            )
            seconds: dict[Trainer, list[float]] = {plain: [], own: []}
            for step in range(1, ROUNDS + 1):
                for each in (plain, own) if step % 2 else (own, plain):
                    start = time.process_time()
                    each.train_step(step, Stopwatch())
                    seconds[each].append(time.process_time() - start)
    finally:
        torch.set_num_threads(threads)
    return min(seconds[own]) / min(seconds[plain])
