"""A training step of registered methods, against one that computes each copy of a response alone, in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from float64 import compute_in_float64
from portions import one_in
from torch import Tensor, nn
from trainers import asked, build

import baselines
from harness.base.task import Answer, Judged, Verdict
from harness.conformance.probe import stats_of
from harness.methods.batch import Rollout, TokenBatch, TokenStats
from harness.methods.composition import Method
from harness.tokens.metrics import Stopwatch
from harness.train.collect import Answered, Collected
from harness.train.policy import Policy, ValueModel
from harness.train.trainer import Trainer

GROUPS, SIZE, LONGEST = 4, 8, 9
# The number of each response's text: many copies, copies alone, no copies, and one text that is most of the group.
TEXTS = [[0, 1, 0, 2, 2, 0, 3, 0], [0] * 8, [0, 1, 2, 3, 4, 5, 6, 7], [1, 1, 0, 1, 2, 1, 1, 1]]
# The texts that are right, and the answers of texts: some texts have equal answers, and some have none.
RIGHT = [{3}, {0}, {1, 4, 5}, {1}]
ANSWERS = ["1", "2", "2", "1", "3", None, "2", None]
# Settings at which a control changes something on these responses; the published ones rarely do on so few tokens.
STRENGTHS = [
    "grpo(kl_coef=0.1)+entropy_bonus",
    "ppo(kl_coef=0.1)+clip_v(share=0.3)",
    "ce_gppo+clip_b(share=0.3)",
    "grpo+clip_cov(fraction=0.3)",
    "grpo+kl_cov(fraction=0.3)",
]


def responses(trainer: Trainer, group: int) -> list[list[int]]:
    """Return the texts of a group: of different lengths and first tokens.

    Texts that begin alike have equal statistics at these tokens up to rounding. A method that takes the largest of
    them could then take any, and would be compared by chance.
    """
    generator = torch.Generator().manual_seed(group)
    vocabulary, eos = trainer.policy.vocabulary, trainer.parts.tokenizer.eos_token_id
    tokens = [token for token in range(vocabulary) if token != eos]
    texts = []
    for text in range(SIZE):
        rest = torch.randint(len(tokens), (LONGEST - 1,), generator=generator).tolist()
        whole = [tokens[(5 * group + text) % len(tokens)], *(tokens[place] for place in rest)]
        end = 1 + (3 * text + group) % LONGEST
        texts.append(whole[:end] if end == LONGEST else [*whole[:end], eos])
    return texts


def collected_copies(trainer: Trainer) -> Collected:
    """Return groups with copies, whose log-probabilities by the engine differ."""
    eos, answered = trainer.parts.tokenizer.eos_token_id, []
    for group, problem in enumerate(asked(trainer, 1)):
        texts, prompt = responses(trainer, group), trainer.collector.prompt(problem)
        rollouts, judged = [], []
        for text in TEXTS[group]:
            response, answer = texts[text], ANSWERS[text]
            rollouts.append(Rollout(prompt, response, [0.0] * len(response), finished=response[-1] == eos))
            verdict = Verdict.RIGHT if text in RIGHT[group] else Verdict.WRONG
            judged.append(Judged(verdict, None if answer is None else Answer(answer, len(answer)), goes_on=False))
        answer_tokens = [len(rollout.response) for rollout in rollouts]
        answered.append(Answered(group, problem, rollouts, judged, answer_tokens, TEXTS[group]))
    rollouts = [rollout for group in answered for rollout in group.rollouts]
    batch = TokenBatch.of([group.rollouts for group in answered], [0.0] * len(rollouts), LONGEST, "cpu")
    logp_T = trainer.policy.stats(batch).logp
    noise_T = 0.3 * torch.randn(len(logp_T), generator=torch.Generator().manual_seed(0))
    for rollout, logp in zip(rollouts, (logp_T + noise_T).split(batch.lengths_B.tolist()), strict=True):
        rollout.logp[:] = logp.tolist()
    return Collected(answered, generated=100, lag=1, record={})


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A trainer in float64 with a critic and a reference model, whose step trains on given responses."""
    shape = [f"train.prompts={GROUPS}", f"train.group={SIZE}", f"rollout.max_new_tokens={LONGEST}"]
    settings = ["hardware.micro_tokens=256", "dynamics.every=1", "correction.kind=truncated"]
    trainer = build(tmp_path_factory.mktemp("trainer"), "ppo(kl_coef=0.1)", *shape, *settings)
    critic, reference = trainer.critic, trainer.parts.reference
    assert critic is not None
    assert reference is not None
    torch.manual_seed(1)
    nn.init.normal_(critic.module.head.weight, std=0.02)  # a head of zeros would give the body no gradient
    with torch.no_grad():
        for weight in reference.module.parameters():
            weight.mul_(1.01)
    for learner in (trainer.policy, critic, reference):
        compute_in_float64(learner.network)
    for learner in (trainer.policy, critic):
        # AdamW divides by the root of the squared gradient, which makes a difference of rounding a large one. The
        # learning rate is one at which the second update meets ratios far from 1.
        learner.lr = 0.2
        learner.optimizer = torch.optim.SGD(learner.masters.values(), lr=learner.lr)
    collected = collected_copies(trainer)
    trainer.collector.collect = lambda step, watch: collected  # type: ignore[method-assign]
    trainer.synchronise = lambda step: None  # type: ignore[method-assign]
    return trainer


def alone(batch: TokenBatch) -> Iterator[tuple[Tensor, int]]:
    """Yield each response with the length of its prompt."""
    yield from zip(batch.sequences, batch.prompt_lengths_B.tolist(), strict=True)


def plain_statistics(
    policy: Policy,
    batch: TokenBatch,
    *,
    entropy: bool,
    entropy_grad: bool = False,
    sum_p2: bool = False,
    min_p: bool = False,
) -> tuple[Tensor | None, ...]:
    """Return the columns of TokenStats from the logits of each response alone."""
    parts = []
    for sequence, prompt in alone(batch):
        logits_TV = policy.module(sequence[None]).logits[0, prompt - 1 : -1] / policy.temperature
        parts.append(stats_of(logits_TV, sequence[prompt:]))
    stats = TokenStats.cat(parts)
    assert stats.entropy is not None
    entropy_T = stats.entropy if entropy_grad else stats.entropy.detach()
    wanted = dataclasses.replace(
        stats,
        entropy=entropy_T if entropy or entropy_grad else None,
        sum_p2=stats.sum_p2 if sum_p2 else None,
        sum_p2_logp=stats.sum_p2_logp if sum_p2 else None,
        min_p_logp=stats.min_p_logp if min_p else None,
    )
    return tuple(vars(wanted).values())


def plain_values(module: ValueModel, batch: TokenBatch) -> Tensor:
    parts = []
    for sequence, prompt in alone(batch):
        hidden_TD = module.body(sequence[None]).last_hidden_state[0, prompt - 1 : -1]
        parts.append(module.head(hidden_TD)[:, 0])
    return torch.cat(parts)


def compute_alone(trainer: Trainer, patch: pytest.MonkeyPatch) -> None:
    """Let the trainer know of no copies, and compute each response alone."""
    for policy in (trainer.policy, trainer.parts.reference):
        assert policy is not None
        patch.setattr(policy.network, "forward", partial(plain_statistics, policy))
    if trainer.critic is not None:
        patch.setattr(trainer.critic.network, "forward", partial(plain_values, trainer.critic.module))
    batch_of = trainer.batch_of

    def without_labels(collected: Collected, step: int) -> TokenBatch:
        batch = batch_of(collected, step)
        return dataclasses.replace(batch, copy_of_B=torch.arange(len(batch)))

    patch.setattr(trainer, "batch_of", without_labels)


def keep_gradients(
    kept: list[Tensor], weights: Mapping[str, Tensor], apply: Callable[[float], float], lr: float
) -> float:
    """Keep a copy of the gradient before an update."""
    for weight in weights.values():
        if weight.grad is not None:
            kept.append(weight.grad.clone())
    return apply(lr)


def step(trainer: Trainer, spec: str, patch: pytest.MonkeyPatch) -> tuple[dict[str, float], list[Tensor]]:
    """Return the record of a step of a method from the first weights, and the gradients of its updates."""
    trainer.method = Method.of(spec, baselines.METHODS)
    if "values" not in trainer.method.needs:
        patch.setattr(trainer, "critic", None)
    gradients: list[Tensor] = []
    stats_before = trainer.stats_before

    def stats_before_drift(*given: Any) -> TokenStats:
        """Move the policy, so that no ratio is 1 in the first update: rounding would put it above 1 or below."""
        old = stats_before(*given)
        with torch.no_grad():
            for weight in trainer.policy.module.parameters():
                weight.mul_(1.01)
        return old

    patch.setattr(trainer, "stats_before", stats_before_drift)
    patch.setattr("harness.train.trainer.first_pass", lambda *_: None)  # its policy has not moved
    patch.setattr("harness.train.invariants.check_first_ratio", lambda log_ratios, dtype: None)
    learners = list(trainer.learners().values())
    starts = [{name: x.detach().clone() for name, x in learner.weights.items()} for learner in learners]
    for learner in learners:
        patch.setattr(learner, "apply", partial(keep_gradients, gradients, learner.weights, learner.apply))
    record = trainer.train_step(1, Stopwatch())
    with torch.no_grad():
        for learner, start in zip(learners, starts, strict=True):
            for name, x in learner.weights.items():
                x.copy_(start[name])
    return record, gradients


@pytest.mark.slow
@pytest.mark.parametrize("spec", [*STRENGTHS, *one_in(8, baselines.METHODS)])
def test_copies_change_no_gradient_and_no_metric(spec: str, trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        record, gradients = step(trainer, spec, patch)
    with monkeypatch.context() as patch:
        compute_alone(trainer, patch)
        expected_record, expected_gradients = step(trainer, spec, patch)

    assert record.pop("responses/distinct") == (4 / 8 + 1 / 8 + 1 + 3 / 8) / 4
    assert expected_record.pop("responses/distinct") == 1
    assert record["mass/positive_hard"] + record["mass/negative_hard"] > 0
    # In which direction the second update finds them far from 1 depends on the base model of this processor.
    assert max(record["ratio/max"] - 1, 1 - record["ratio/min"]) > 0.01
    assert record == pytest.approx(expected_record, rel=1e-12, abs=1e-12, nan_ok=True)
    updates = 2 if "values" not in trainer.method.needs else 4
    assert len(gradients) == len(expected_gradients) > 10 * updates
    for one, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
