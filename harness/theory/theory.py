"""The theory of entropy dynamics, measured on a model and a task: each experiment gives a table of plain numbers.

`masks`: training on one quadrant of tokens alone moves the entropy as the theory predicts (Theorem 3.2).
`logit_steps`, `optimiser_steps`: the range in which its first-order prediction holds (Theorem 3.3).
`corollaries`: S* - N has mean 0 on policy; off policy only after weighting by the importance ratio.
"""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from pandas import DataFrame
from rich.console import Console
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from baselines.quadrant import QUADRANTS
from harness.base import terminal
from harness.base.errors import UserError, at_least
from harness.base.terminal import Column
from harness.config import Config
from harness.methods.batch import TokenBatch
from harness.theory.explain import PLAIN, batch_of, build_trainer, copy_from
from harness.tokens import dynamics
from harness.tokens.metrics import Stopwatch
from harness.train.hidden import hidden_states, response_tokens
from harness.train.policy import Policy, head_of
from harness.train.trainer import Trainer
from harness.verify.pool import VerifierPool

Rows = list[dict[str, Any]]

ALPHAS = (1e-3, 1e-2, 1e-1, 0.3, 1.0)
RATES = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3)
OTHER_TEMPERATURE = 1.5  # of an off-policy sampler
CONTEXTS, DRAWS = 64, 20_000  # tokens at which S* - N is drawn again, and the draws at each
DENSE = 2**14  # the largest vocabulary for which all probabilities of a batch fit into memory


def measure(config: Config, steps: int) -> dict[str, Rows]:
    """Run all experiments; return their tables by name."""
    at_least(1, **{"--steps": steps})
    with tempfile.TemporaryDirectory() as folder, VerifierPool.of(config.verify) as verifier:
        # First: its trainers have been deleted when the next one is built, and a process has only one vLLM engine.
        entropies = masks(config, steps, folder, verifier)
        trainer = build_trainer(config, PLAIN, folder, verifier)
        batch = batch_of(trainer, 1)
        return {
            "masks": entropies,
            "logit_steps": logit_steps(trainer, batch),
            "optimiser_steps": optimiser_steps(trainer, batch),
            "corollaries": corollaries(trainer, batch),
        }


def masks(config: Config, steps: int, folder: str, verifier: VerifierPool) -> Rows:
    """Return the entropy before each step, by quadrant and seed; `all` is plain GRPO."""
    rows: Rows = []
    for seed in config.seeds:
        for keep in ("all", *QUADRANTS):
            spec = PLAIN if keep == "all" else f"{PLAIN}+quadrant(keep=[{keep}], by=s_star)"
            trainer = build_trainer(dataclasses.replace(config, seeds=[seed]), spec, folder, verifier)
            check_dense(trainer)  # before all these steps
            for step in range(1, steps + 1):
                entropy = trainer.train_step(step, Stopwatch())["entropy/mean"]
                rows.append({"keep": keep, "seed": seed, "step": step, "entropy": entropy})
            del trainer  # with its engine, since a process can have only one vLLM engine
    return rows


def distributions(policy: Policy, batch: TokenBatch) -> Tensor:
    """Return all probabilities at each token, in float64."""
    head = head_of(policy.module)
    assert head.bias_V is None
    assert head.softcap is None
    p_TV = torch.empty(len(batch.index_T), len(head.weight_VD), dtype=torch.float64)
    with torch.no_grad():
        for part in policy.micro_batches(batch):
            once, place_T = part.without_copies()
            hidden_TD = hidden_states(policy.module.base_model, once, policy.device)
            logits_TV = (hidden_TD.float() @ head.weight_VD.T).double() / policy.temperature
            p_TV[part.index_T.cpu()] = logits_TV.softmax(dim=-1)[place_T].cpu()
    return p_TV


def correlation(x: Tensor, y: Tensor) -> float:
    return torch.corrcoef(torch.stack([x, y]))[0, 1].item()


def slope(x: Tensor, y: Tensor) -> float:
    """Return the slope of y = slope x, by least squares."""
    return (x @ y / (x @ x)).item()


def check_dense(trainer: Trainer) -> None:
    """Refuse a vocabulary of which `logit_steps` cannot hold all probabilities of a batch."""
    vocabulary = len(head_of(trainer.policy.module).weight_VD)
    if vocabulary > DENSE:
        raise UserError(f"the vocabulary has {vocabulary} tokens; logit_steps is measured up to {DENSE}")


def logit_steps(trainer: Trainer, batch: TokenBatch) -> Rows:
    """Compare predicted and exact changes of entropy for a step of each token's logits along alpha A log p_y."""
    temperature = trainer.policy.temperature
    p_TV, y_T = distributions(trainer.policy, batch), response_tokens(batch, "cpu")
    method = trainer.method
    advantages_T = method.signal(trainer.stats_before(batch, method.needs), batch, [batch]).advantages_T.double().cpu()
    rows = []
    for alpha in ALPHAS:
        dz_TV = dynamics.gradient_step(p_TV, y_T, alpha * advantages_T, temperature)
        first_T = dynamics.first_order(p_TV, dz_TV, temperature)
        both_T = first_T + dynamics.second_order(p_TV, dz_TV, temperature)
        exact_T = dynamics.exact(p_TV, dz_TV, temperature)
        size = exact_T.norm()
        rows.append(
            {
                "alpha": alpha,
                "slope": slope(first_T, exact_T),
                "correlation": correlation(first_T, exact_T),
                "error_first": ((exact_T - first_T).norm() / size).item(),
                "error_second": ((exact_T - both_T).norm() / size).item(),
            }
        )
    return rows


def optimiser_steps(trainer: Trainer, batch: TokenBatch) -> Rows:
    """Measure the change of a batch's mean entropy by one real update, at several learning rates.

    It is compared with the directional derivative along the step of the parameters, and with the token-wise formula.
    """
    policy, method = trainer.policy, trainer.method
    old = trainer.stats_before(batch, method.needs | dynamics.NEEDS)
    assert old.entropy is not None
    signal = method.signal(old, batch, [batch])
    predicted_T = dynamics.push_of(method, signal, old, [batch]).predicted(old, old.logp, policy.temperature)
    gradient = entropy_gradient(policy, batch)
    start = copy.deepcopy(policy.state())
    before = parameters_to_vector(policy.weights.values()).detach().clone()
    rows = []
    for rate in RATES:
        for part in policy.micro_batches(method.contributing(batch, signal)):
            policy.backward(method.loss(trainer.stats_during(part, old), signal.at(part.index_T), part))
        policy.apply(rate)
        after = policy.stats(batch).entropy
        assert after is not None
        moved = parameters_to_vector(policy.weights.values()).detach() - before
        rows.append(
            {
                "lr": rate,
                "measured": batch.global_mean(after - old.entropy).item(),
                "derivative": (gradient.double() @ moved.double()).item(),
                "token_wise": batch.global_mean(predicted_T).item(),
                "correlation": correlation(predicted_T.double(), (after - old.entropy).double()),
            }
        )
        policy.load_state(start, partial(copy_from, start))
    return rows


def entropy_gradient(policy: Policy, batch: TokenBatch) -> Tensor:
    """Return the gradient of the batch's mean entropy with respect to all weights that are trained."""
    for part in policy.micro_batches(batch):
        entropy_T = policy.current(part, frozenset({"entropy_grad"})).entropy
        assert entropy_T is not None
        policy.backward(entropy_T.sum() / len(batch.index_T))
    gradient = torch.cat([p.grad.flatten() for p in policy.weights.values() if p.grad is not None]).clone()
    policy.network.zero_grad(set_to_none=True)  # not the optimizer, which with offload has other tensors
    return gradient


def corollaries(trainer: Trainer, batch: TokenBatch) -> Rows:
    """Return means of S* - N with their standard errors.

    They are taken over many draws at the same contexts, over an on-policy batch, and over a batch sampled at another
    temperature, without and with the importance ratio.
    """
    generator = torch.Generator().manual_seed(0)
    p_TV = distributions(trainer.policy, batch)[:CONTEXTS]
    s_TV = dynamics.discriminators(p_TV)
    n_T = (p_TV * s_TV).sum(-1)
    draws_TN = p_TV.multinomial(DRAWS, replacement=True, generator=generator)
    deviations_TN = s_TV.gather(1, draws_TN) - n_T[:, None]
    errors_T = deviations_TN.std(dim=1) / DRAWS**0.5
    # Where the policy is certain, all draws are equal and the standard error is 0.
    z_T = (deviations_TN.mean(dim=1) / errors_T)[errors_T > 1e-9]
    inside = (z_T.abs() < 1.96).double()
    rows = [{"what": "contexts whose mean is within 1.96 standard errors", **mean_of(inside)}]

    on_T = dynamics.deviation(trainer.policy.stats(batch, dynamics.NEEDS))
    rows.append({"what": "on policy", **mean_of(on_T)})
    other = batch_of(trainer, 1, OTHER_TEMPERATURE)
    stats = trainer.policy.stats(other, dynamics.NEEDS)
    off_T = dynamics.deviation(stats)
    ratio_T = (stats.logp - other.behaviour_logp_T).exp()
    rows.append({"what": f"sampled at temperature {OTHER_TEMPERATURE}", **mean_of(off_T)})
    rows.append({"what": "the same, with the importance ratio", **mean_of(ratio_T * off_T)})
    return rows


def mean_of(x: Tensor) -> dict[str, float]:
    """Return the mean of independent values with its standard error."""
    x = x.double()
    mean, error = x.mean().item(), (x.std() / len(x) ** 0.5).item()
    return {"mean": mean, "standard_error": error}


# Output


def cell_text(x: str | float) -> str:
    """Return the text of a cell: integers with thousands separators, other numbers with 4 digits."""
    if isinstance(x, str):
        return x
    return f"{x:,}" if float(x).is_integer() else f"{x:.4g}"


def print_measurements(console: Console, measurements: Mapping[str, Rows]) -> None:
    """Print a table of each experiment; of `masks` only the change from the first step to the last."""
    tables = {**measurements, "masks": entropy_changes(measurements["masks"])}
    for name, rows in tables.items():
        columns = [Column(key, folds=True) for key in rows[0]]
        texts = [list(map(cell_text, row.values())) for row in rows]
        terminal.show_table(console, columns, texts, title=name.replace("_", " "))
        console.print()


def entropy_changes(masks: Rows) -> Rows:
    """Return the change of entropy from the first step to the last, over the seeds, by quadrant."""
    of_seeds = DataFrame(masks).groupby(["keep", "seed"], sort=False)["entropy"]  # the steps of a seed are in order
    changes = (of_seeds.last() - of_seeds.first()).groupby("keep", sort=False).agg(["mean", "min", "max"])
    changes.columns = ["change of entropy", "lowest", "highest"]
    return changes.reset_index().to_dict("records")
