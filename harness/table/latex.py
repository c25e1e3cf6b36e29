"""The leaderboard as LaTeX: methods are rows, tasks are pairs of columns; needs the package booktabs."""

from __future__ import annotations

from collections.abc import Sequence

from harness.statistics import Estimate
from harness.table.columns import symmetric
from harness.table.compare import Comparison
from harness.terminal.layout import visible

SPECIAL = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # at the beginning of a row it would belong to the end of the one before, and so would a star
    "*": "{*}",
    "\n": " ",
}
MARK = r"$^\ddagger$"  # behind a method whose cells, or the baseline's, are not of one experiment


def render(found: Sequence[Comparison]) -> str:
    """Returns a table for each model, and each setting of further axes."""
    places = dict.fromkeys(map(place, found))
    return "\n".join(table([each for each in found if place(each) == one]) for one in places)


def place(each: Comparison) -> str:
    return ", ".join(filter(None, (each.model, each.setting)))


def table(found: Sequence[Comparison]) -> str:
    scores = list(dict.fromkeys((each.task, each.score) for each in found))
    tasks = list(dict.fromkeys(task for task, _ in scores))
    by_place = {(each.method, each.task, each.score): each for each in found}
    widths = [sum(task == of for of, _ in scores) for task in tasks]
    starts = [2 + sum(widths[:i]) for i in range(len(tasks))]
    lines = [
        f"% {comment(place(found[0]))}: means with 95 % intervals over seeds and problems.",
        "% Bold: the highest mean of a method, and those that the paired interval does not tell from it.",
        *dict.fromkeys(f"% Marked: {comment(why)}." for each in found for why in each.mixed),
        rf"\begin{{tabular}}{{l{'c' * len(scores)}}}",
        r"\toprule",
        row(["", *(rf"\multicolumn{{{w}}}{{c}}{{{escape(task)}}}" for task, w in zip(tasks, widths, strict=True))]),
        "".join(rf"\cmidrule(lr){{{s}-{s + w - 1}}}" for s, w in zip(starts, widths, strict=True)),
        row(["Method", *(escape(score) for _, score in scores)]),
        r"\midrule",
    ]
    for method in dict.fromkeys(each.method for each in found):
        here = [by_place.get((method, *place)) for place in scores]
        mark = MARK if any(each is not None and each.mixed for each in here) else ""
        lines.append(row([f"{escape(method)}{mark}", *(cell(each) for each in here)]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def row(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def cell(each: Comparison | None) -> str:
    if each is None or each.mean is None:
        return "--"
    number = shown(each.mean)
    return rf"$\mathbf{{{number}}}$" if each.best else f"${number}$"


def shown(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.mean:.3f}"
    if symmetric(estimate):
        return rf"{estimate.mean:.3f} \pm {estimate.high - estimate.mean:.3f}"
    return rf"{estimate.mean:.3f}\;[{estimate.low:.3f}, {estimate.high:.3f}]"


def escape(text: str) -> str:
    return "".join(SPECIAL.get(sign, sign) for sign in visible(text))


def comment(text: str) -> str:
    """Returns a text without the ends of lines, which would end the comment."""
    return visible(" ".join(text.split()))
