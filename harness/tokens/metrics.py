"""The metrics of a training step, from the data that flows; means are over valid tokens unless named otherwise."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from harness import ranks
from harness.base.task import Judged
from harness.cells.lease import Heartbeat
from harness.config import Correction
from harness.methods.batch import TokenBatch
from harness.methods.composition import Signal
from harness.methods.verbs import LARGEST_LOG_RATIO
from harness.tokens.correction import beyond, log_ratios


class Stopwatch:
    """Measures the seconds of each phase of a step, and names the phase in the heartbeat."""

    def __init__(self, heartbeat: Heartbeat | None = None) -> None:
        self.heartbeat = heartbeat or Heartbeat()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        with self.heartbeat.at(name):
            yield
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()  # kernels run asynchronously, and would count in the next phase
        key = f"time/{name}_s"
        self.seconds[key] = self.seconds.get(key, 0.0) + time.perf_counter() - start


def share_of_true(mask: Tensor) -> float:
    return mask.double().mean().item()


def of_rollouts(batch: TokenBatch, verdicts: list[str]) -> dict[str, float]:
    """Return the metrics of rewards, responses and verdicts, before any method shapes rewards."""
    rewards_GN = batch.grouped(batch.rewards_B)
    copy_of_GN = batch.grouped(batch.copy_of_B)
    distinct = [len(set(copies)) / len(copies) for copies in copy_of_GN.tolist()]
    record = {
        "reward/mean": batch.rewards_B.mean().item(),
        "reward/groups_without_signal": share_of_true((rewards_GN == rewards_GN[:, :1]).all(dim=1)),
        "responses/distinct": sum(distinct) / len(distinct),
        "responses/length": batch.lengths_B.double().mean().item(),
        "responses/truncated": 1 - int(batch.finished_B.sum()) / len(batch),
    }
    record |= {f"verdicts/{name}": verdicts.count(name) / len(verdicts) for name in sorted(set(verdicts))}
    return ranks.averaged(record)  # a plain mean, since all ranks have equally many groups


def of_answers(
    judged: Sequence[Sequence[Judged]], answer_tokens: Sequence[int], signal: Signal, batch: TokenBatch
) -> dict[str, float]:
    """Return the metrics of the answers in responses, without the text around them.

    `entropy/answer` is the mean over the tokens up to the end of each answer. All tokens of a response without an
    answer count: it has no end after which tokens are idle.
    """
    assert signal.old.entropy is not None
    shares, goes_on = [], []
    for group in judged:
        answers = {response.text for response in group} - {None}
        shares.append(len(answers) / len(group))
        goes_on += [response.goes_on for response in group]
    record = {
        "responses/distinct_answers": sum(shares) / len(shares),
        "responses/after_answer": sum(goes_on) / len(goes_on),
    }
    ends_B = torch.tensor(answer_tokens, device=batch.lengths_B.device)
    within_T = batch.within_T < ends_B[batch.sequence_T]
    entropy = batch.global_sum(signal.old.entropy * within_T) / batch.global_sum(within_T)
    # The entropy is a mean over all ranks already: the ranks have different numbers of tokens.
    return ranks.averaged(record) | {"entropy/answer": entropy.item()}


def p99(values: Tensor) -> float:
    """Return the smallest value that 99 % of the values do not exceed, and NaN if one of them is not finite."""
    if not torch.isfinite(values).all():
        return math.nan  # a sort has NaN and infinity last, where they would pass as the one percent
    return values.kthvalue(math.ceil(0.99 * len(values))).values.item()


def of_mismatch(batch: TokenBatch, logp_T: Tensor, correction: Correction) -> dict[str, float]:
    """Return the metrics of engine against trainer log-probabilities, on all ranks, before any correction."""
    by_level = {level: ranks.gather(log_ratios(batch, logp_T, level)) for level in ("token", "sequence")}
    difference_T = by_level["token"]
    size_T = difference_T.abs()
    record = {
        "mismatch/mean": size_T.mean().item(),
        "mismatch/p99": p99(size_T),
        "mismatch/max": size_T.max().item(),
        "mismatch/k3": (difference_T.clamp(max=LARGEST_LOG_RATIO).exp() - difference_T - 1).mean().item(),
        "mismatch/beyond": share_of_true(beyond(by_level[correction.level].exp(), correction)),
    }
    for level, differences in by_level.items():
        ratios = differences.clamp(max=LARGEST_LOG_RATIO).exp()
        record |= {
            f"mismatch/{level}_ratio_mean": ratios.mean().item(),
            f"mismatch/{level}_ratio_p99": p99(ratios),
            f"mismatch/{level}_ratio_max": ratios.max().item(),
            # The effective sample size, as a share of all tokens or responses.
            f"mismatch/{level}_ess": (ratios.mean() ** 2 / (ratios**2).mean()).item(),
        }
    return record


def of_signal(signal: Signal, batch: TokenBatch) -> dict[str, float]:
    """Return the metrics of entropy before the update, advantages, and dropped tokens."""
    assert signal.old.entropy is not None
    dropped_T = signal.weights_T == 0
    positive_T, negative_T = signal.advantages_T > 0, signal.advantages_T < 0
    record = {
        "entropy/mean": batch.global_mean(signal.old.entropy).item(),
        "advantages/std": batch.global_std(signal.advantages_T).item(),
        "advantages/zero": batch.global_mean(signal.advantages_T == 0).item(),
        "weights/mean": batch.global_mean(signal.weights_T).item(),
        "weights/dropped": batch.global_mean(dropped_T).item(),
        "weights/dropped_positive": batch.global_mean(dropped_T & positive_T).item(),
        "weights/dropped_negative": batch.global_mean(dropped_T & negative_T).item(),
    }
    if signal.old.sum_p2 is not None:
        peak_T = signal.old.logp.exp() >= signal.old.sum_p2
        for sign, of_sign_T in (("positive", positive_T), ("negative", negative_T)):
            record[f"peaks/{sign}"] = batch.global_mean(of_sign_T & peak_T).item()
            record[f"valleys/{sign}"] = batch.global_mean(of_sign_T & ~peak_T).item()
    record |= gradient_mass(signal, batch)
    for name, factor_T in signal.weights_by.items():
        record[f"weights/{name}/dropped"] = batch.global_mean(factor_T == 0).item()
    return record


def gradient_mass(signal: Signal, batch: TokenBatch) -> dict[str, float]:
    """Return the weighted advantages above 0 and below 0, each as a mean over all tokens; also those of hard problems.

    A problem is hard if at most half of its responses are right.
    """
    # P problems with G responses each.
    pass_rate_P1 = batch.grouped(batch.right_B.double()).mean(1, keepdim=True)
    hard_PG = (pass_rate_P1 <= 0.5).expand(-1, len(batch) // len(pass_rate_P1))
    hard_T = hard_PG.flatten()[batch.sequence_T]
    weighted_T = signal.weights_T * signal.advantages_T
    record = {}
    for sign, part_T in (("positive", weighted_T.clamp(min=0)), ("negative", (-weighted_T).clamp(min=0))):
        record[f"mass/{sign}"] = batch.global_mean(part_T).item()
        record[f"mass/{sign}_hard"] = batch.global_mean(part_T * hard_T).item()
    return record


def of_updates(logged: list[dict[str, Tensor]]) -> dict[str, float]:
    """Return the mean of each column of `Method.update_metrics`, over the tokens of all updates of a step."""
    means = {}
    for name in logged[0]:
        column_T = torch.cat([part[name] for part in logged]).double()
        tokens = ranks.sum_over_ranks(torch.tensor(float(len(column_T)), dtype=torch.float64, device=column_T.device))
        means[f"updates/{name}"] = (ranks.sum_over_ranks(column_T.sum()) / tokens).item()
    return means


def of_ratios(log_ratios: list[Tensor], touched: list[dict[str, Tensor]]) -> dict[str, float]:
    """Return the metrics of the importance ratio, of clips, and of gates, over the tokens of all updates of a step."""
    ratio_T = ranks.gather(torch.cat(log_ratios)).exp()
    shares = {}
    for name in touched[0]:
        mask_T = torch.cat([part[name] for part in touched])
        shares[name] = share_of_true(ranks.gather(mask_T))
    record = {
        "ratio/mean": ratio_T.double().mean().item(),
        "ratio/max": ratio_T.max().item(),
        "ratio/min": ratio_T.min().item(),
        "ratio/clipped_low": shares.pop("clipped_low"),
        "ratio/clipped_high": shares.pop("clipped_high"),
    }
    return record | {f"gates/{name}": closed for name, closed in shares.items()}
