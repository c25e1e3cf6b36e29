"""A real trainer in miniature: the loop of every cell, on a tiny random model with scripted responses.

A script draws the responses, not the model, so that rounding cannot change the tokens of a step: all methods, and all
machines, train on the same ones. A verdict depends only on the prompt and on the tokens.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging

from harness.base import seeds
from harness.base.task import Answer, Problem, Verdict, Verifier
from harness.config import Config, Dynamics, Hardware, RolloutConfig, Train
from harness.methods.batch import Rollout
from harness.methods.composition import DEFAULT_OBJECTIVE, Method, Table
from harness.rollout.protocol import OnGroup
from harness.rollout.rendering import PLAIN
from harness.tokens.metrics import Stopwatch
from harness.train.base_responses import BaseResponses
from harness.train.filter import TrainingPool
from harness.train.hidden import padded
from harness.train.policy import Critic, Policy
from harness.train.trainer import Parts, Trainer


@dataclass(frozen=True)
class Size:
    """The sizes of a miniature's model and of its steps."""

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
    """Write a random model; numpy draws its weights, which are the same on every machine."""
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
            noise = torch.from_numpy(rng.standard_normal(tuple(weight.shape)))
            weight.copy_(float("norm" in name) + 0.2 * noise)  # norms are near 1, all other weights near 0
    model.save_pretrained(folder)


class Script:
    """An engine whose responses come from the seed alone, with log p by the model."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.model: PreTrainedModel | None = None

    def load(self, model: PreTrainedModel) -> None:
        self.model = model

    def expected(self, module: nn.Module) -> Mapping[str, Tensor]:
        return dict(module.named_parameters(remove_duplicate=False))  # tied weights under both of their names

    def weights(self, columns: Mapping[str, slice]) -> dict[str, Tensor]:
        assert self.model is not None
        parameters = self.expected(self.model)
        return {name: parameters[name].detach()[..., part] for name, part in columns.items()}

    def rest(self) -> None:
        """Keep nothing: this engine has no cache to free."""

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
            lengths = (rng.integers(2, max_new_tokens + 1) for _ in range(n))  # each is drawn before its response
            responses = [rng.integers(1, self.vocabulary, length).tolist() for length in lengths]
            groups.append(self.rollouts(list(prompt), responses, temperature, max_new_tokens))
            if on_group is not None:
                on_group(number, groups[-1])
        return groups

    @torch.no_grad()
    def rollouts(
        self, prompt: list[int], responses: list[list[int]], temperature: float, longest: int
    ) -> list[Rollout]:
        """Return the responses to a prompt with their log p."""
        assert self.model is not None
        sequences = [torch.tensor(prompt + response) for response in responses]
        input_ids = padded(sequences, "cpu")
        logp_BLV = (self.model(input_ids=input_ids).logits / temperature).log_softmax(-1)
        group = []
        for row, response in enumerate(responses):
            places = torch.arange(len(response)) + len(prompt) - 1  # each token is predicted at the place before it
            logp = logp_BLV[row, places, torch.tensor(response)].tolist()
            group.append(Rollout(prompt, response, logp, len(response) < longest))
        return group


class Tokens:
    """A tokenizer whose texts are the numbers of the tokens."""

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [int(number) for number in text.split()]}

    def decode(self, row: Sequence[int]) -> str:
        """Return a text of an end token that no response ends with: its last token counts like the others."""
        return "<end>"

    def batch_decode(self, rows: Sequence[Sequence[int]], **_: Any) -> list[str]:
        return [" ".join(map(str, row)) for row in rows]


@dataclass(frozen=True)
class Low:
    """A task of mean tokens below a limit, which some problems reach nearly always and others nearly never."""

    name: ClassVar[str] = "low"
    splits: ClassVar[tuple[str, ...]] = ("train",)
    vocabulary: int = 29

    def problems(self, split: str) -> list[Problem]:
        # Limits as shares of the vocabulary, most of them around the mean of random tokens, where groups are mixed.
        limits = (0.2, 0.42, 0.47, 0.5, 0.52, 0.55, 0.6, 0.8)
        problems = []
        for number, limit in enumerate(limits * 2):
            tokens = [str(1 + (3 * number + place) % (self.vocabulary - 1)) for place in range(2 + number % 3)]
            problems.append(Problem(f"{number}", " ".join(tokens), f"{limit}"))
        return problems

    def verdicts(self, pairs: Sequence[tuple[Problem, str]], verifier: Verifier) -> list[Verdict]:
        verdicts = []
        for problem, response in pairs:
            tokens = [int(token) for token in response.split()]
            right = sum(tokens) < float(problem.answer) * self.vocabulary * len(tokens)
            verdicts.append(Verdict.RIGHT if right else Verdict.WRONG)
        return verdicts

    def answers(self, pairs: Sequence[tuple[Problem, str]]) -> list[Answer | None]:
        """Return each response as its own answer."""
        return [Answer(response, len(response)) for _, response in pairs]

    def flags(self, trained_on: str | None) -> list[str]:
        return []


def miniature_trainer(method: Method, model: Path, folder: Path, size: Size, steps: int) -> Trainer:
    """Return the trainer of a method before its first step, on the model that `write_model` has written."""
    train = Train(
        steps=steps,
        prompts=size.prompts,
        group=max(size.group, method.min_group),
        updates=size.updates,
        lr=method.learning_rate(size.lr),
        dtype="float32",
    )
    config = Config(
        train=train,
        rollout=RolloutConfig(max_new_tokens=size.longest),
        dynamics=Dynamics(every=0),
        hardware=Hardware(device="cpu", micro_tokens=1024),
    )
    common = (train, config.rollout.temperature, "cpu", torch.float32, config.hardware)
    policy, critic, reference = Policy(model, *common), None, None
    policy.network.to(size.dtype)
    if "values" in method.needs:
        critic = Critic(model, train, 1e-2, "cpu", torch.float32, config.hardware)
    if "ref_logp" in method.needs:
        reference = Policy(model, *common)
        reference.network.to(size.dtype)
    task, engine, base_responses = Low(size.vocabulary), Script(size.vocabulary), None
    if method.base_share:
        engine.load(policy.module)
        prompts = [Tokens()(problem.prompt)["input_ids"] for problem in task.problems("train")]
        groups = engine.generate(
            prompts, 1, seeds=range(len(prompts)), temperature=config.rollout.temperature, max_new_tokens=size.longest
        )
        base_responses = BaseResponses.of([response for (response,) in groups], policy, 0)
    parts = Parts(
        cell="miniature",
        config=config,
        seed=0,
        method=method,
        task=task,
        evaluation_tasks={},
        pool=TrainingPool(task.problems("train"), {}, {problem.id: 0.5 for problem in task.problems("train")}),
        policy=policy,
        critic=critic,
        reference=reference,
        base_responses=base_responses,
        engine=engine,
        tokenizer=Tokens(),
        ends=(),
        verifier=cast(Verifier, None),  # the task judges its responses alone
        chat=PLAIN,
    )
    trainer = Trainer(parts, folder)
    torch.manual_seed(seeds.derive("miniature"))
    trainer.synchronise(0)
    return trainer


ROUNDS = 5
COSTLY = Size(vocabulary=512, hidden=64, group=8, longest=24)  # a step of some 1,000 tokens


def relative_cost(spec: str, table: Table) -> float:
    """Return the CPU time of a method's training step relative to plain GRPO's, by the quickest step of each."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # CPU time of several threads includes their waiting
    try:
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model"
            write_model(model, COSTLY)
            grpo, checked = Method.of(DEFAULT_OBJECTIVE, table), Method.of(spec, table)
            trainers = {
                "grpo": miniature_trainer(grpo, model, Path(folder), COSTLY, ROUNDS),
                "checked": miniature_trainer(checked, model, Path(folder), COSTLY, ROUNDS),
            }
            quickest = dict.fromkeys(trainers, float("inf"))
            for step in range(1, ROUNDS + 1):
                # The first of a pair finds other caches than the second, so they take turns.
                names = list(trainers)
                if step % 2 == 0:
                    names.reverse()
                for name in names:
                    start = time.process_time()
                    trainers[name].train_step(step, Stopwatch())
                    quickest[name] = min(quickest[name], time.process_time() - start)
    finally:
        torch.set_num_threads(threads)
    return quickest["checked"] / quickest["grpo"]
