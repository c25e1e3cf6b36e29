"""The field after tuning: tables, picture and verdicts, by the rules of studies/field/tuned.md.

    python -m studies.field.tuned RESULTS    # first take the tables and the choices from this folder
    python -m studies.field.tuned            # draw the picture, print the answers, from results/reference

`python -m studies.pages` then fills the pages. A row is named by its method here, not by the options that tuning
chose for it, so that rows of two tasks, and of before and after, can be compared.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pandas import DataFrame

from harness.base import safe_yaml
from harness.config import CANDIDATES as CANDIDATES
from harness.config import CHOICE, TUNE_SUFFIX, TUNED_SUFFIX
from studies.field import analysis as field
from studies.field.analysis import BASE_MODEL, NEW_SEEDS, REFERENCE, Rows

TASKS = {"field-tuned": "Countdown", "field-tuned-coloring": "graph coloring"}  # the matrices, and their tasks in words
RULE_3 = {f"{matrix}{NEW_SEEDS}": words for matrix, words in TASKS.items()}  # the methods that it names, new seeds
ALL_GAINS = "-all-gains"  # at the end of a name: in addition the methods that rule 5 names
RULE_5 = {f"{matrix}{ALL_GAINS}": words for matrix, words in TASKS.items()}
HALF_RATE = "field-tuned-coloring-half-lr"  # the methods with a verdict there against GRPO at half of its rate
SHORTLIST = "field-tuned-shortlist"  # on Countdown
UNTUNED = dict(zip(TASKS, field.TASKS, strict=True))
PICTURE = REFERENCE / "field-tuned/pareto.svg"


def take(results: str) -> None:
    """Write the choices, the candidates' scores and the tables of the matrices that were tuned and run."""
    for matrix in (*TASKS, SHORTLIST):
        tuning = Path(results) / f"{matrix}{TUNE_SUFFIX}"
        if (tuning / CHOICE).exists():
            (REFERENCE / matrix).mkdir(exist_ok=True)
            for name in (CHOICE, CANDIDATES):
                shutil.copy(tuning / name, REFERENCE / matrix)
    for matrix in (*TASKS, *RULE_3, *RULE_5, SHORTLIST):
        if (Path(results) / f"{matrix}{TUNED_SUFFIX}").exists():
            field.take_table(results, matrix, REFERENCE / matrix, "ruleset=tuned")
    field.take_tables(results, [HALF_RATE])


def choice_path(matrix: str) -> Path:
    """Return the kept choice of a matrix; rounds with new seeds have that of the round without them."""
    return REFERENCE / matrix.removesuffix(NEW_SEEDS).removesuffix(ALL_GAINS) / CHOICE


@cache
def choice(matrix: str) -> Mapping[str, Any]:
    """Return the record of what tuning chose for a matrix: `methods` and `candidates`."""
    record: dict[str, Any] = safe_yaml.load_yaml(choice_path(matrix))
    return record


def chosen(matrix: str, kept_in: str | None = None) -> dict[str, str]:
    """Return the spec of each method that a tuned matrix compares, by its name.

    `kept_in`: the folder of another run of the same matrix.
    """
    rows = field.compared(kept_in or matrix)
    return {name: spec for name, spec in choice(matrix)["methods"].items() if spec in rows}


def by_name(matrix: str, kept_in: str | None = None) -> Rows:
    """Return the rows of a tuned matrix by the names of their methods; `kept_in`: see `chosen`."""
    rows = field.compared(kept_in or matrix)
    named = {name: rows[spec] for name, spec in chosen(matrix, kept_in).items()}
    return {BASE_MODEL: rows[BASE_MODEL], **named}


def by_task(matrices: Mapping[str, str] = TASKS) -> dict[str, Rows]:
    """Return the rows of those tuned matrices whose tables are kept, by their tasks in words."""
    return {words: by_name(matrix) for matrix, words in matrices.items() if field.is_kept(matrix)}


def decided() -> dict[str, Rows]:
    """Return by task the rows of the methods that win or trade on a task, of GRPO and the base model.

    A method that a task did not run again has its three first seeds there.
    """
    new = by_task(RULE_5)
    shown = {BASE_MODEL, field.BASELINE}
    for rows in new.values():
        shown |= {name for name, scores in rows.items() if field.verdict(scores)}
    return {words: {name: new[words].get(name, rows[name]) for name in shown} for words, rows in by_task().items()}


def suited() -> dict[str, set[str]]:
    """Return the methods to try by what matters, by the rules of docs/which-method.md."""
    tasks = decided().values()
    methods = [name for name in next(iter(tasks)) if name not in (BASE_MODEL, field.BASELINE)]
    cheap = {name for name in methods if all(mean_loss(rows[name]) <= field.SLACK for rows in tasks)}
    return {
        "Pass@K": {name for name in methods if all(field.verdict(rows[name]) for rows in tasks)},
        "accuracy": {name for name in cheap if any(field.verdict(rows[name]) == "wins" for rows in tasks)},
        "both": {name for name in cheap if all(field.gains(rows[name]) for rows in tasks)},
    }


def mean_loss(scores: Mapping[str, Mapping[str, Any]]) -> float:
    return -float(scores[field.AVG]["difference"]["mean"])


def which_method() -> DataFrame:
    """Return the table of docs/which-method.md."""
    tasks = decided()
    table = field.table(tasks)
    for matrix, words in TASKS.items():
        place = table.columns.get_loc(f"{words}: {field.AVG} - grpo")
        table.insert(place, f"{words}: chosen", table["method"].map(choice(matrix)["methods"]).fillna(""))
    matters = [", ".join(what for what, names in suited().items() if name in names) for name in table["method"]]
    table.insert(1, "if this matters", matters)
    return table


def same_choices() -> tuple[int, int]:
    """Return for how many methods tuning chose the same candidate on both tasks, and the number of methods."""
    first, second = (choice(matrix)["methods"] for matrix in TASKS)
    same = [name for name in first if first[name] == second[name]]
    return len(same), len(first)


def named_in_picture(words: str) -> list[str]:
    """Return the methods of a task that gain without a correction, or that win or trade with the new seeds."""
    rows = by_task(RULE_5).get(words, {})
    with_verdict = [name for name, scores in rows.items() if field.verdict(scores)]
    return list(dict.fromkeys([*field.gaining([by_task()[words]]), *with_verdict]))


def tell(matrix: str, words: str) -> None:
    """Print the answers of rules 2 and 3 on one task, and how far its ranking agrees with that before tuning."""
    rows = by_name(matrix)
    field.tell_verdicts(f"{words}, three seeds", rows)
    print(f"{words}, new seeds for:", *field.named_for_seeds([rows]))
    print(f"{words}, above GRPO without a correction:", *field.gaining([rows]))
    field.tell_agreement(f"{words}, before and after tuning", field.compared(UNTUNED[matrix]), rows)


def main(*arguments: str) -> None:
    for results in arguments:
        take(results)
    tasks = by_task()
    field.draw_picture(PICTURE, tasks, {words: named_in_picture(words) for words in tasks})
    for matrix, words in TASKS.items():
        if words in tasks:
            tell(matrix, words)
    for rule, matrices in ((3, RULE_3), (5, RULE_5)):
        for words, rows in by_task(matrices).items():
            field.tell_verdicts(f"{words}, new seeds, rule {rule}", rows)
    field.tell_verdicts("shortlist", by_name(SHORTLIST))
    same, methods = same_choices()
    print(f"the same candidate on both tasks: {same} of {methods} methods")
    if len(tasks) > 1:
        field.tell_agreement("between the tasks", *tasks.values())


if __name__ == "__main__":
    main(*sys.argv[1:])
