"""Tuning by one rule: as many candidates of each method, on validation problems, with seeds of their own.

The candidates are the methods of a matrix of their own, `NAME-tune`, with the baseline as it is configured. Of each
method the candidate counts whose Pass@K is the highest among those whose Avg@K is at most `tune.slack` below the
baseline's; if there is none, the one with the highest Avg@K. Both are means over seeds, and over the tables of the
matrix if it has several. With equal scores the first in the configuration counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import yaml

import baselines
import tasks
from harness import config as configs
from harness import runs
from harness.base import files
from harness.base.errors import UserError, shown
from harness.base.terminal import boxed, console, visible, width_of
from harness.config import PUBLISHED, Config, Tune
from harness.config.checks import check_candidate_counts
from harness.matrix import cells
from harness.methods.composition import Method
from harness.table.leaderboard import LeaderboardRow
from harness.table.render import as_markdown

TOO_LOW, BROKEN = "Avg@K too low", "not done"


@dataclass(frozen=True)
class Candidate:
    """A candidate of a method, all of whose seeds are done, with its scores on the validation problems."""

    method: str
    spec: str
    avg_at_k: float
    pass_at_k: float


def tuning_matrix(config: Config) -> Config:
    """Return the matrix of the candidates; refuse a configuration in which methods are not tuned alike."""
    check_candidates(config)
    specs = [config.baseline]
    for method in config.methods:
        specs += config.tune.candidates[method]
    return dataclasses.replace(
        config,
        name=f"{config.name}{configs.TUNE_SUFFIX}",
        methods=list(dict.fromkeys(specs)),
        seeds=list(config.tune.seeds),
        ruleset=PUBLISHED,
        tune=Tune(),
        eval=dataclasses.replace(config.eval, split="validation", every=0),
    )


def check_candidates(config: Config) -> None:
    """Refuse candidates that are missing, too many, not equally many, or of another method.

    Candidates of methods that are not run are left out, but checked: their names may be mistyped.
    """
    check_candidate_counts(config)
    for key in ("eval.split", "eval.every"):
        if key in config.axes:
            raise UserError(f"axes names {key}, but candidates are compared on validation problems, at their ends")
    for method, specs in config.tune.candidates.items():
        check_parts(method, specs, config)
    for spec in config.eval.tasks or config.tasks:
        task = tasks.build_task(spec, config.plugins)
        tasks.check_split(task, "validation", "the split to tune on")


def check_parts(method: str, specs: Sequence[str], config: Config) -> None:
    """Refuse a candidate that is not its method with other options."""
    parts = part_names(method, config)
    with_options = "+".join(f"{name}(...)" for name in parts)
    for number, spec in enumerate(specs):
        if part_names(spec, config) != parts:
            raise UserError(
                f"tune.candidates.{method} has {shown(spec)}; allowed: {method} with options, as {with_options}"
            )
        if spec in specs[:number]:
            raise UserError(f"tune.candidates.{method} names {shown(spec)} twice")


def part_names(spec: str, config: Config) -> list[str]:
    """Return the names of the objective of a spec, named or not, and of its controls."""
    method = Method.of(spec, baselines.table(config.plugins), config.method_options)
    return list(method.named)


def run_tuning(config: Config, jobs: int | None = None, launcher: str = "local") -> int:
    """Run the missing cells of the candidates, and write the choice; return the exit code."""
    matrix = tuning_matrix(config)
    check_choice_place(config)
    code = runs.run_matrix(matrix, jobs, launcher)
    # Even if cells failed: a candidate counts only if all of its seeds are done, and the others decide without it.
    lines, choice = choose(config, runs.matrix_rows(matrix, cells(matrix)))
    write_choice(config, lines, choice)
    print(visible(boxed(f"candidates of {config.name}", lines, width_of(console))))
    return code


def check_choice_place(config: Config) -> None:
    """Refuse a folder, a file or the table of another choice in the place of the choice and of its table."""
    path = configs.choice_path(config)
    if path.exists():
        configs.read_choice(path)
    files.check_folder(path.parent, str(path), make=True)
    table = path.with_name(configs.CANDIDATES)
    if config.tune.file and path.exists() and not table.exists():
        raise UserError(f"{table} is missing, so {path} may be another matrix's; move it, or name another in tune.file")
    if table.exists() and not (path.exists() and table.read_bytes().startswith(f"**{table_title(config)},".encode())):
        raise UserError(f"{table} is not the table of {path}; move it, or name another folder in tune.file")


# The choice


def mean_scores(spec: str, rows: Sequence[LeaderboardRow]) -> tuple[float, float] | None:
    """Return the mean Avg@K and Pass@K of a method over the tables; None if not every seed of each is done."""
    averages, passes = [], []
    for row in rows:
        if row.method != spec:
            continue
        if row.avg_at_k is None or row.seeds_done < row.seeds_expected:
            return None
        averages.append(row.avg_at_k.mean)
        passes.append(row.pass_at_k[row.k].mean)
    return (fmean(averages), fmean(passes)) if averages else None


def chosen_candidates(candidates: Sequence[Candidate], baseline_avg: float, slack: float) -> dict[str, Candidate]:
    """Return the choice for each method that has a candidate, by the rule."""
    by_method: dict[str, list[Candidate]] = {}
    for each in candidates:
        by_method.setdefault(each.method, []).append(each)
    choice = {}
    for method, group in by_method.items():
        if near := [each for each in group if each.avg_at_k >= baseline_avg - slack]:
            choice[method] = max(near, key=lambda each: each.pass_at_k)
        else:
            choice[method] = max(group, key=lambda each: each.avg_at_k)
    return choice


def choose(config: Config, rows: Sequence[LeaderboardRow]) -> tuple[list[list[str]], dict[str, Candidate]]:
    """Return the table of the candidates, and the choice for each method."""
    of_baseline = mean_scores(config.baseline, rows)
    if of_baseline is None:
        raise UserError(
            f"the baseline {config.baseline} is not done on the validation problems, and the rule compares with it; "
            "the same command runs what is missing"
        )
    (baseline_avg, _), slack = of_baseline, config.tune.slack
    specs = [(method, spec) for method in config.methods for spec in config.tune.candidates[method]]
    scores = {spec: mean_scores(spec, rows) for _, spec in specs}
    candidates = [Candidate(method, spec, *pair) for method, spec in specs if (pair := scores[spec])]
    choice = chosen_candidates(candidates, baseline_avg, slack)
    lines = [["candidate", "method", "Avg@K", "Pass@K", "choice"]]
    for method, spec in specs:
        if (pair := scores[spec]) is None:
            lines.append([spec, method, "", "", BROKEN])
            continue
        average, passed = pair
        mark = configs.CHOSEN if choice[method].spec == spec else ""
        if not mark and average < baseline_avg - slack:
            mark = TOO_LOW
        lines.append([spec, method, f"{average:.3f}", f"{passed:.3f}", mark])
    lost = [method for method in config.methods if method not in choice]
    if lost:
        raise UserError(
            f"no candidate of {', '.join(lost)} is done, so nothing can be chosen; their logs say why, and "
            "other candidates can be named in tune.candidates"
        )
    return lines, choice


def write_choice(config: Config, lines: Sequence[Sequence[str]], choice: Mapping[str, Candidate]) -> None:
    """Write the choice, and next to it the table that it follows from."""
    path = configs.choice_path(config)
    methods = {method: candidate.spec for method, candidate in choice.items()}
    record = {"methods": methods, **configs.tuning_rules(config)}
    heading = (
        "# The choice of `entrobench tune`; `ruleset: tuned` runs these methods. The rule: the highest Pass@K among\n"
        "# the candidates whose Avg@K is at most `slack` below the baseline's; if there is none, the highest Avg@K.\n"
    )
    files.write_text(path, heading + yaml.safe_dump(record, sort_keys=False))
    seeds = ", ".join(map(str, config.tune.seeds))
    table = as_markdown(f"{table_title(config)}, seeds {seeds}", lines)
    files.write_text(path.with_name(configs.CANDIDATES), table)


def table_title(config: Config) -> str:
    """Return what the table of the candidates begins with."""
    return f"Candidates of {config.name}, validation problems"
