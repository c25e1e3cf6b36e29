"""The leaderboard as LaTeX: methods are rows, a column for each score of a task; needs the package booktabs.

pandas escapes neither brackets at the beginning of a row nor line ends in comments, so that the table is written here.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.statistics import Estimate
from harness.table.columns import is_symmetric, method_text
from harness.table.compare import Comparison
from harness.terminal.layout import visible

SPECIAL = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "[": "{[}",  # at the beginning of a row it would belong to the end of the one before, and so would a star
        "*": "{*}",
        "\n": " ",
    }
)
MIXED_MARK = r"\textsuperscript{\S}"  # behind a method whose cells, or the baseline's, are not of one experiment


def render_latex(results: Sequence[Comparison]) -> str:
    """Return a table for each model, and each setting of further axes."""
    by_place: dict[str, list[Comparison]] = {}
    for result in results:
        by_place.setdefault(result.where, []).append(result)
    tables = [latex_table(where, section) for where, section in by_place.items()]
    return "\n".join(tables)


def latex_table(where: str, results: Sequence[Comparison]) -> str:
    by_method: dict[str, dict[tuple[str, str], Comparison]] = {}  # and by task and score
    columns: dict[tuple[str, str], None] = {}
    mixed: dict[str, None] = {}
    for result in results:
        by_method.setdefault(result.method, {})[result.task, result.score] = result
        columns[result.task, result.score] = None
        for why in result.mixed:
            mixed[f"% Marked: {as_comment(why)}."] = None
    headings = [as_latex(f"{task} {score}") for task, score in columns]
    lines = [
        f"% {as_comment(where)}: means with 95 % intervals over seeds and problems.",
        "% Bold: the highest mean of a method, and all that do not differ significantly from it (paired interval).",
        *mixed,
        rf"\begin{{tabular}}{{l{'c' * len(columns)}}}",
        r"\toprule",
        latex_row(["Method", *headings]),
        r"\midrule",
    ]
    for method, of_method in by_method.items():
        one, *_ = of_method.values()
        name = as_latex(method_text(method, mixed=(), trainer=one.trainer))
        if any(result.mixed for result in of_method.values()):
            name += MIXED_MARK
        numbers = [latex_cell(of_method.get(column)) for column in columns]
        lines.append(latex_row([name, *numbers]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def latex_row(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def latex_cell(result: Comparison | None) -> str:
    if result is None or result.mean is None:
        return "--"
    number = latex_estimate(result.mean)
    if result.best:
        return rf"$\mathbf{{{number}}}$"
    return f"${number}$"


def latex_estimate(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.mean:.3f}"
    if is_symmetric(estimate):
        return rf"{estimate.mean:.3f} \pm {estimate.high - estimate.mean:.3f}"
    return rf"{estimate.mean:.3f}\;[{estimate.low:.3f}, {estimate.high:.3f}]"


def as_latex(text: str) -> str:
    """Return a text in which no sign is a command."""
    return visible(text).translate(SPECIAL)


def as_comment(text: str) -> str:
    """Return a text without line ends, which would end the comment."""
    return visible(" ".join(text.split()))
