"""How methods differ, and how surely: tests, ranks and what the experiment could have seen; imports no torch."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.config import told
from harness.statistics import (
    Estimate,
    Floats,
    crossed_p_value,
    detectable,
    difference_interval,
    holm,
    iqm_interval,
    is_near_bound,
    ranks,
    seeds_needed,
    share_interval,
    wins,
    within,
)
from harness.table.columns import MIXED, NEAR_BOUND, marked, shown
from harness.table.leaderboard import BASE_MODEL, Entry, check_comparable, label_of, mixed_of, with_base_models
from harness.table.render import Table, document, doubt_near_bound, two_seeds

ALL_TASKS = "all tasks"


@dataclass(frozen=True)
class Comparison:
    """One method on one task, or on all, by one score. None stands where no seed, or only one, tells."""

    task: str
    model: str
    score: str  # Avg@K, or the headline's Pass@k
    method: str
    baseline: str
    mean: Estimate | None
    iqm: Estimate | None  # over the runs of all seeds, on all tasks
    seeds: int  # that the method and the baseline have both done
    difference: Estimate | None  # to the baseline, paired by seed and problem, as is what follows
    p: float | None
    p_holm: float | None  # adjusted for all methods that are compared with the baseline in this table
    improvement: Estimate | None  # the probability of scoring higher on a problem; equal counts as half
    detectable: float | None  # the least difference that is seen with 80 % power
    rank_best: int | None  # the ranks that the paired intervals leave possible
    rank_worst: int | None
    best: bool  # the highest mean, or not told apart from it
    near_bound: bool = False  # both methods are so near 0 or 1 that the difference's interval may be too short
    seeds_needed: int | None = None  # with two seeds: how many tell such a difference from 0; None: no number does
    setting: str = ""  # the values at the further axes of the matrix
    mixed: list[str] = field(default_factory=list)  # how its cells, or the baseline's, are not of one experiment
    experiment: str | None = None  # where a table holds rows of several

    @property
    def where(self) -> str:
        """The model and the setting, within which methods are compared."""
        return ", ".join(filter(None, (self.model, self.setting)))


@dataclass(frozen=True)
class Contender:
    """A method with its results on one task or several."""

    method: str
    parts: Sequence[tuple[Entry, int | None]]  # with the k of Pass@k; None: Avg@K

    def seeds(self) -> list[int]:
        """Returns the seeds that are done on all tasks."""
        return sorted(set.intersection(*(set(entry.results) for entry, _ in self.parts)))

    def scores(self, seeds: Sequence[int]) -> list[Floats]:
        """Returns the scores by seed and problem, for each task."""
        return [np.array([entry.results[seed].scores(k) for seed in seeds]) for entry, k in self.parts]

    def against(self, other: Contender) -> tuple[list[Floats], list[Floats]] | None:
        """Returns both scores on the seeds that both have done; None where there are none."""
        seeds = [seed for seed in self.seeds() if seed in other.seeds()]
        return (self.scores(seeds), other.scores(seeds)) if seeds else None


def comparisons(entries: Sequence[Entry], baseline: str, ks: Mapping[str, int]) -> list[Comparison]:
    """`ks`: the K of the headline Pass@K, by evaluation task. The base model is compared as well, but not ranked."""
    trainings: dict[tuple[str, str, str], dict[str, dict[str, Entry]]] = {}
    for entry in with_base_models(entries):
        tasks = trainings.setdefault((entry.trained_on, entry.model, told(entry.setting)), {})
        tasks.setdefault(entry.task, {})[entry.method] = entry
    mixed = mixed_of(entries, {entry.axes: entry for entry in entries if entry.method == baseline})
    found = []
    for (trained_on, model, setting), tasks in trainings.items():
        several = len({each for each, *its_own in trainings if its_own == [model, setting]}) > 1
        of_all = f"{ALL_TASKS} (trained on {trained_on})" if several else ALL_TASKS
        for chosen in [*([task] for task in tasks), *([list(tasks)] if len(tasks) > 1 else [])]:
            label = of_all if len(chosen) > 1 else label_of(trained_on, chosen[0], entries)
            names = [name for name in tasks[chosen[0]] if all(name in tasks[task] for task in chosen)]
            of_pass = sorted({ks[task] for task in chosen})
            headline = f"Pass@{of_pass[0]}" if len(of_pass) == 1 else "Pass@k"
            for score, k_of in (("Avg@K", dict.fromkeys(chosen)), (headline, ks)):
                contenders = [Contender(name, [(tasks[task][name], k_of[task]) for task in chosen]) for name in names]
                for each in compared(contenders, baseline, label, model, score):
                    axes = [tasks[task][each.method].axes for task in chosen]
                    sentences = [sentence for one in axes for sentence in mixed.get((each.method, one), [])]
                    found.append(dataclasses.replace(each, setting=setting, mixed=list(dict.fromkeys(sentences))))
    return found


def compared(contenders: Sequence[Contender], baseline: str, label: str, model: str, score: str) -> list[Comparison]:
    base = next((each for each in contenders if each.method == baseline), None)
    done = [each for each in contenders if each.seeds()]
    for each in done:  # with the first, whether or not the baseline is done
        for (entry, _), (first, _) in zip(each.parts, done[0].parts, strict=True):
            check_comparable(entry, first)
    differences = {each.method: difference(each, base) for each in done if base and each is not base}
    p_values = {name: p for name, x_SJ in differences.items() if (p := p_value(x_SJ)) is not None}
    # The base model is what all methods begin from: it competes with none of them.
    tested = [method for method in p_values if method != BASE_MODEL]
    adjusted = dict(zip(tested, holm([p_values[method] for method in tested]), strict=True))
    trained = [each for each in done if each.method != BASE_MODEL]
    beats_MM = np.zeros((len(trained), len(trained)), dtype=bool)
    for (i, ours), (j, theirs) in itertools.product(enumerate(trained), repeat=2):
        beats_MM[i, j] = beats(ours, theirs)
    places = {each.method: place for each, place in zip(trained, ranks(beats_MM), strict=True)}
    means = {each.method: share_interval(pooled(each.scores(each.seeds()))) for each in done}
    highest = int(np.argmax([means[each.method].mean for each in trained])) if trained else 0
    best = {each.method for i, each in enumerate(trained) if not beats_MM[highest, i]}
    found = []
    for each in contenders:
        name, x_SJ, pair = each.method, differences.get(each.method), each.against(base) if base else None
        iqm = iqm_interval(runs(each.scores(each.seeds()))) if name in means else None
        found.append(
            Comparison(
                task=label,
                model=model,
                score=score,
                method=name,
                baseline=baseline,
                mean=means.get(name),
                iqm=within(iqm, 0, 1) if iqm else None,
                seeds=len(pair[0][0]) if pair else 0,
                difference=None if x_SJ is None else difference_interval(x_SJ),
                p=p_values.get(name),
                p_holm=adjusted.get(name),
                improvement=share_interval(pooled([*map(wins, *pair)])) if pair and each is not base else None,
                detectable=None if x_SJ is None else detectable(x_SJ),
                rank_best=places[name][0] if name in places else None,
                rank_worst=places[name][1] if name in places else None,
                best=name in best,
                near_bound=pair is not None and x_SJ is not None and near_bound(*pair),
                seeds_needed=seeds_needed(x_SJ) if x_SJ is not None and len(x_SJ) == 2 else None,
            )
        )
    return found


def p_value(x_SJ: Floats | None) -> float | None:
    return None if x_SJ is None else crossed_p_value(x_SJ)


def difference(ours: Contender, theirs: Contender) -> Floats | None:
    """Returns the differences by seed and problem, of the seeds that both have done."""
    pair = ours.against(theirs)
    return None if pair is None else pooled([a - b for a, b in zip(*pair, strict=True)])


def beats(ours: Contender, theirs: Contender) -> bool:
    """Return whether the 95 % interval of the difference lies above 0."""
    x_SJ = difference(ours, theirs)
    p = p_value(x_SJ)
    return x_SJ is not None and p is not None and p < 0.05 and x_SJ.mean() > 0


def near_bound(ours: Sequence[Floats], theirs: Sequence[Floats]) -> bool:
    """Return whether both methods are within a few problems of 0 or 1."""
    sides = [pooled(ours), pooled(theirs)]
    return all(is_near_bound(float(x_SJ.mean()), x_SJ.shape[1]) for x_SJ in sides)


def pooled(of_tasks: Sequence[Floats]) -> Floats:
    """Joins the problems of all tasks, so that their mean is the mean of the tasks' means, whatever their sizes.

    The tasks themselves are fixed, so how their levels differ is no part of how the problems vary.
    """
    if len(of_tasks) == 1:
        return of_tasks[0]
    mean = np.mean([x_SJ.mean() for x_SJ in of_tasks])
    problems = sum(x_SJ.shape[1] for x_SJ in of_tasks) / len(of_tasks)
    return mean + np.hstack([(x_SJ - x_SJ.mean()) * (problems / x_SJ.shape[1]) for x_SJ in of_tasks])


def runs(of_tasks: Sequence[Floats]) -> Floats:
    """Returns the score of each seed on each task."""
    return np.stack([x_SJ.mean(axis=1) for x_SJ in of_tasks], axis=1)


# Showing

HEADER = ["method", "IQM", "difference", "p", "p, Holm", "P(better)", "detectable", "rank", "shared seeds"]


def render(found: Sequence[Comparison], how: str, width: int | None = None) -> str:
    sections: dict[tuple[str, str], list[Comparison]] = {}
    for each in found:
        where = ", ".join(filter(None, (each.task, each.model, each.setting)))
        sections.setdefault((where, each.score), []).append(each)
    tables = [
        Table(f"{where}: {score}", [HEADER, *(cells_of(each, ranked(section)) for each in section)])
        for (where, score), section in sections.items()
    ]
    return document(found, tables, notes(found), how, width)


def ranked(section: Sequence[Comparison]) -> int:
    return sum(each.rank_best is not None for each in section)


def cells_of(each: Comparison, methods: int) -> list[str]:
    rank, name = "", marked(each.method, each.mixed)
    if each.rank_best is not None:
        among = f"{each.rank_best}" if each.rank_best == each.rank_worst else f"{each.rank_best}-{each.rank_worst}"
        rank = f"{among} of {methods}"
    if each.method == each.baseline:
        return [name, shown(each.iqm), "baseline", *[""] * 4, rank, str(each.seeds)]
    return [
        name,
        shown(each.iqm),
        f"{shown(each.difference, '+')} {NEAR_BOUND * each.near_bound}".rstrip(),
        chance(each.p),
        chance(each.p_holm),
        shown(each.improvement),
        "" if each.detectable is None else f"{each.detectable:.3f}",
        rank,
        str(each.seeds),
    ]


def chance(p: float | None) -> str:
    if p is None:
        return ""
    return f"{p:.3f}" if p >= 0.0005 else "<0.001"


def notes(found: Sequence[Comparison]) -> list[str]:
    baseline = found[0].baseline
    texts = [
        "± or [low, high]: 95 % interval over seeds and problems; of IQM, the mean of the middle half of the runs, "
        "over seeds.",
        f"difference: to {baseline}, paired by seed and problem, with the p-value of the same interval; Holm: "
        f"adjusted for all methods of the table that are compared with {baseline}.",
        f"P(better): the probability of scoring higher than {baseline} on a problem, where equal counts as half.",
        "detectable: about the least true difference that an experiment as large and as noisy finds with 80 % power.",
        "rank: what the paired intervals of all pairs leave possible; methods that cannot be told apart share ranks.",
    ]
    if any(each.method == BASE_MODEL for each in found):
        texts.append(f"{BASE_MODEL}: the model before training; it has no rank and no part in Holm's adjustment.")
    texts += dict.fromkeys(f"{MIXED} {each.task}, {each.where}: {why}." for each in found for why in each.mixed)
    if any(each.seeds == 1 for each in found):
        texts.append("One seed cannot tell how much seeds differ: it gives no interval, no p-value, and any rank.")
    two = [each for each in found if each.seeds == 2 and each.p is not None]
    if two:
        needed: dict[str, dict[str, int | None]] = {}
        for each in two:
            where = ", ".join(filter(None, (each.method, each.task, each.model, each.setting)))
            needed.setdefault(where, {})[each.score] = each.seeds_needed
        texts.append(two_seeds(needed))
    if any(each.near_bound for each in found):
        texts.append(doubt_near_bound(baseline))
    if any(each.mean is None for each in found):
        texts.append("Methods without a rank have no seed that is done.")
    if any(each.task.startswith(ALL_TASKS) for each in found):
        texts.append(f"{ALL_TASKS}: each counts the same, whatever its number of problems.")
    return texts
