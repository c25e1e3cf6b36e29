"""The reference results as the README and docs/evidence/ show them: tables, figures in the text, picture.

    python -m studies.pages demo     # first take the curves from results/demo, after `entrobench run demo`
    python -m studies.pages          # fill the pages and draw the picture from results/reference

Tables lie between `<!-- table: NAME -->` and `<!-- end -->`. A figure in the text is followed by a comment with its
place in a table, for example `0.533<!-- demo/grpo/Pass@16 -->`; it keeps its interval if it has one. Kendall's tau of
the effects in two tables is followed by both: `0.48<!-- field/field-coloring/tau of Pass@16 -->`. A verdict in the text
is followed by its table and the methods that have it: `win<!-- field-shortlist/unlikeliness, rs_grpo/verdict -->`.
The comment `<!-- demo/none/verdict -->` says that no method of a table wins or trades. If the pages of a study mark any
verdict of a table, they mark all of its methods that win or trade. `python -m studies.checks` fails where a page shows
another number than results/reference.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

import entrobench
from harness.table import render
from studies.field import analysis as field
from studies.field import other_base
from studies.field import tuned as field_tuned
from studies.transfer import analysis as transfer

REPOSITORY = Path(__file__).parent.parent
FOLDERS = REPOSITORY / "studies"
REFERENCE = REPOSITORY / "results/reference"
CURVES = REFERENCE / "demo/curves.csv"
PICTURE = REFERENCE / "demo/curves.svg"
# Studies whose pages are elsewhere than in their folder.
ELSEWHERE = {
    "demo": (REPOSITORY / "README.md", REPOSITORY / "docs/evidence/demo.md"),
    "field": (REPOSITORY / "docs/which-method.md",),
    "laptop": (REPOSITORY / "docs/evidence/laptop.md",),
}
STUDIES = tuple(sorted({path.parent.name for path in FOLDERS.glob("*/README.md")} | ELSEWHERE.keys()))
# Studies whose table has other columns than those of `study_table`, or is none of one leaderboard.
TABLES_OF_THEIR_OWN = ("demo", "coloring", "field", "laptop", "transfer")
# Tables of studies that other benchmarks wrote: they are not leaderboards.
FURTHER = {
    "crossings": "overtaking/crossing.csv",
    "dynamic-sampling-settings": "dynamic-sampling/max_batches.csv",
    "laptop-tokens": "laptop-matrix-sorting/tokens.csv",
    "lr-kl-clip-settings": "lr-kl-clip/lr.csv",
    "staleness-ends": "staleness/ends.csv",
}
# Rules that were written before a run have no results.
PAGES = (*chain(*ELSEWHERE.values()), *sorted(set(FOLDERS.glob("*/*.md")) - set(FOLDERS.glob("*/rules.md"))))

SEVERAL_VERSIONS = " §"  # after a method whose cells are of several versions of the code
PASS_AT_16 = "eval/countdown/pass@16"
ENTROPY = "entropy/mean"

# The columns of the tables in the pages.
SHORT = ["method", "Avg@K", "Pass@16", "Pass@16 - grpo", "verdict", "distinct right"]
FULL = ["method", "Avg@K", "Pass@16", "Avg@K - grpo", "Pass@16 - grpo", "distinct right", "entropy, end"]
DEMO_FULL = [*FULL[:5], "verdict", *FULL[5:]]
LAPTOP = ["method", "Avg@K", "Pass@8", "distinct right", "entropy, end"]
LAPTOP_FULL = [*LAPTOP[:3], "Avg@K - grpo", "Pass@8 - grpo", "verdict", "entropy, end"]
LAPTOP_WITH_DISTINCT = [*LAPTOP[:3], "Pass@8 - grpo", "verdict", *LAPTOP[3:]]
LAPTOP_SHORT = [*LAPTOP[:3], "Pass@8 - grpo", "verdict", "entropy, end"]
TUNED_FULL = ["method", "chosen", "Avg@K", "Pass@16", "Avg@K - grpo", "Pass@16 - grpo", "verdict", "distinct right"]
# Of pictures: text stays text, and the same curves give the same file.
REPEATABLE = {"svg.fonttype": "none", "svg.hashsalt": "entrobench", "font.family": "sans-serif"}
SHOWN_FIRST = ["base model", "grpo", "clip_b", "clip_v", "adaptive_entropy"]

TITLE = re.compile(r"^\*\*(.*)\*\*$", re.MULTILINE)  # of a table in leaderboard.md
TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(\n<!-- end -->)", re.DOTALL)
TUNED_BASELINE = re.compile(r" - grpo\(.*\)$")  # at the end of a column's name
FIGURE = re.compile(r"[+-]?\d+\.\d+(\s+±\d+\.\d+|\s+\[[^\]]*\])?(\**<!-- ([\w-]+)/([^/>]+)/([^>]+?) -->)")
MARK = re.compile(r"<!-- [\w-]+/[^/>]+/[^>]+? -->")  # of a figure or a verdict
TAU = "tau of "  # before a score, in the mark of an agreement

VERDICT = re.compile(r"(?:\b(win|trade|lose)s?)?<!-- ([\w-]+)/([^/>]+)/verdict -->")
# A word that states a verdict; in italics or as code it names the rule. "Loses" with an object is no verdict.
CLAIM = re.compile(r"(?<![*`\w-])(?:wins?|trades?|loses(?=[.,;:]| against))\b(?![*`\w-]|<!-- )")

# Okabe and Ito's colors, with a dash pattern each, so that lines differ in print and for the color-blind.
STYLES = {
    "grpo": ("#000000", "-"),
    "clip_b": ("#0072B2", "-"),
    "clip_v": ("#D55E00", "--"),
    "adaptive_entropy": ("#009E73", "-."),
    "grpo(lr=3.0e-5)": ("#56B4E9", ":"),
}


def reference_table(folder: str) -> DataFrame:
    """Return the leaderboard that a matrix ended with, as text, its tables one below the other.

    It is indexed by method, or by method and setting where cells differ in more than the method: `grpo, 4, 0`.
    """
    # Backslashes keep the brackets of an interval from being read as a link.
    text = (REFERENCE / folder / "leaderboard.md").read_text().replace("\\", "")
    _, *titles_and_tables = TITLE.split(text)
    parts = []
    for title, below in zip(titles_and_tables[::2], titles_and_tables[1::2], strict=True):
        part = table_below(below)
        if len(titles_and_tables) > 2:  # a table for each model
            part.insert(1, "model", title.removesuffix(render.FLAG).split(", ")[1])
        parts.append(part)
    table = pandas.concat(parts, ignore_index=True)
    table["method"] = table["method"].str.removesuffix(SEVERAL_VERSIONS)  # the page says so in words
    return table.set_index(table[["method", *settings_of(table)]].agg(", ".join, axis=1))


def table_below(text: str) -> DataFrame:
    """Return the Markdown table of a text."""
    lines = []
    for line in text.splitlines():
        if line.startswith("|"):
            lines.append([cell.strip() for cell in line.strip("|").split("|")])
    heading, _, *rows = lines
    return DataFrame(rows, columns=heading)


def settings_of(table: DataFrame) -> list[str]:
    """Return the columns of a leaderboard that hold settings: those between the method and the first score."""
    return list(table.columns[1 : table.columns.get_loc(FULL[1])])


def study_table(name: str) -> DataFrame:
    """Return the table of a study's page."""
    return reference_table(name).drop(columns=["entropy, start", "seeds"])


def staleness_grid(method: str, column: str) -> DataFrame:
    """Return a column of the study of staleness by the updates of each batch (rows) and the lag (columns)."""
    table = reference_table("staleness")
    grid = table[table["method"] == method].pivot(index="train.updates", columns="rollout.lag", values=column)
    grid.columns = [f"lag {lag}" for lag in grid.columns]
    return grid.rename_axis("updates").reset_index()


def tuned(folder: str) -> DataFrame:
    """Return the table of tuned methods with plain names of its columns; its baseline is the tuned GRPO."""
    return reference_table(folder).rename(columns=lambda column: TUNED_BASELINE.sub(" - grpo", column))


def tuned_field(matrix: str) -> DataFrame:
    """Return the table of a tuned matrix with the names of methods, the verdict, the highest gain first."""
    table = tuned(matrix)
    table["chosen"] = table["method"]
    rows, specs = field_tuned.by_name(matrix), field_tuned.chosen(matrix)
    ordered = [field.BASELINE, *field.methods_of([rows])]
    table = table.loc[[field.BASE_MODEL, *(specs[name] for name in ordered)]]
    table["method"] = [field.BASE_MODEL, *ordered]
    table["verdict"] = [field.verdict(rows[name]) for name in table["method"]]
    table.loc[field.BASE_MODEL, "chosen"] = ""
    return table[TUNED_FULL]


def rows_of(folder: str) -> field.Rows:
    """Return the comparisons of a table, those of tuned methods by their names."""
    matrix = folder.removesuffix(other_base.OTHER_BASE)
    is_tuned = field_tuned.choice_path(matrix).exists()
    return field_tuned.by_name(matrix, folder) if is_tuned else field.compared(folder)


def verdicts(folder: str) -> dict[str, str]:
    """Return the verdict on each method of a table, tuned methods by their names."""
    return {method: field.verdict(scores) for method, scores in rows_of(folder).items()}


def as_markdown(table: DataFrame) -> str:
    """Return a table in Markdown."""
    table = table.rename(columns={"distinct right": "distinct right answers"})
    lines = [f"| {' | '.join(table.columns)} |", "| --- |" + " ---: |" * (len(table.columns) - 1)]
    for cells in table.to_numpy().tolist():
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


@cache
def tables() -> dict[str, str]:
    """Return each table of the pages by its name; read once for all pages."""
    demo = reference_table("demo")
    studies = {name: as_markdown(study_table(name)) for name in STUDIES if name not in TABLES_OF_THEIR_OWN}
    seeds = {}
    kept = [matrix for matrix in (*field_tuned.RULE_5, field_tuned.SHORTLIST) if field.is_kept(matrix)]
    for matrix in kept:
        seeds[matrix] = as_markdown(tuned_field(matrix))
    further = {}
    for name, path in FURTHER.items():
        further[name] = as_markdown(pandas.read_csv(REFERENCE / path, dtype=str, keep_default_na=False))
    return (
        studies
        | further
        | seeds
        | {
            "demo-short": as_markdown(demo.loc[SHOWN_FIRST, SHORT]),
            "demo": as_markdown(demo[DEMO_FULL]),
            "demo-trl": as_markdown(reference_table("demo-trl")[DEMO_FULL]),
            "demo-tuned": as_markdown(tuned("demo-tuned")[FULL]),
            "laptop": as_markdown(reference_table("laptop-matrix")[LAPTOP_FULL]),
            "laptop-sorting": as_markdown(reference_table("laptop-matrix-sorting")[LAPTOP_FULL]),
            "laptop-sorting-seven": as_markdown(reference_table("laptop-matrix-sorting-seven")[LAPTOP_FULL]),
            "laptop-sorting-chosen": as_markdown(reference_table("laptop-matrix-sorting-chosen")[LAPTOP_FULL]),
            "laptop-sorting-36-steps": as_markdown(reference_table("laptop-matrix-sorting-36-steps")[LAPTOP_FULL]),
            "laptop-sorting-pkpo-bbg": as_markdown(reference_table("laptop-matrix-sorting-pkpo-bbg")[LAPTOP_FULL]),
            "laptop-high-rate": as_markdown(reference_table("laptop-matrix-sentences-high-rate")[LAPTOP_WITH_DISTINCT]),
            "laptop-short": as_markdown(reference_table("laptop-matrix-sorting-seven")[LAPTOP_SHORT]),
            "laptop-clip-b": as_markdown(reference_table("laptop-matrix-clip-b")[LAPTOP]),
            "coloring": as_markdown(reference_table("coloring")[FULL]),
            "staleness-avg": as_markdown(staleness_grid("grpo", "Avg@K")),
            "staleness-pass": as_markdown(staleness_grid("grpo", "Pass@16")),
            "staleness-gain": as_markdown(staleness_grid("clip_b(share=0.02)", "Pass@16 - grpo")),
            "field": as_markdown(field.table(field.by_task())),
            "field-other-base": as_markdown(other_base.effects_table("field")),
            "field-coloring-other-base": as_markdown(other_base.effects_table("field-coloring")),
            "field-other-base-agreement": as_markdown(other_base.agreement_table(field.TASKS)),
            "field-tuned-other-base": as_markdown(other_base.effects_table("field-tuned")),
            "field-tuned-other-base-agreement": as_markdown(other_base.agreement_table(other_base.TUNED)),
            "field-five-seeds": as_markdown(field.table(field.by_task(field.FIVE_SEEDS))),
            "field-five-seeds-other-base": as_markdown(field.table(other_base.second_runs(field.FIVE_SEEDS))),
            "field-five-seeds-other-base-agreement": as_markdown(other_base.agreement_table(field.FIVE_SEEDS)),
            "field-new-seeds": as_markdown(field.table(field.by_task(field.WITH_NEW_SEEDS))),
            "field-tuned": as_markdown(field.table(field_tuned.by_task())),
            "field-tuned-coloring-half-lr": as_markdown(tuned(field_tuned.HALF_RATE)[FULL]),
            "which-method": as_markdown(field_tuned.which_method()),
            "transfer-agreement": as_markdown(transfer.agreement_table()),
            "transfer-effects": as_markdown(transfer.effects_table()),
            "transfer-literature": as_markdown(transfer.literature_table()),
        }
    )


def fill(page: str) -> str:
    """Return the page with the numbers of the reference results in its tables and in its text."""
    by_name = tables()

    def figure(match: re.Match[str]) -> str:
        shown_interval, comment, folder, row, column = match.groups()
        if column.startswith(TAU):
            value = field.shown_agreement(rows_of(folder), rows_of(row), column.removeprefix(TAU))
        else:
            value = reference_table(folder).loc[row, column]
        mean, *interval = value.strip(" ▲▼").split()
        if shown_interval:  # the line may break before it or in it
            breaks = [*re.findall(r"\s+", shown_interval), " "]
            mean += "".join(map("".join, zip(breaks, interval, strict=False)))
        return mean + comment

    page = TABLE.sub(lambda match: f"{match[1]}\n{by_name[match[2]]}\n{match[3]}", page)
    return FIGURE.sub(figure, page)


def recorded_curves(metrics: Sequence[str], config: str, *overrides: str) -> DataFrame:
    """Return metrics over steps: means over seeds (geometric for entropy) and the seeds' range."""
    curves = entrobench.load(config, *overrides).curves(*metrics)
    by_step = curves.groupby(["metric", "method", "step"])["value"]
    summary = by_step.agg(mean="mean", low="min", high="max").reset_index()
    # The leaderboard's mean of entropies is the geometric one, so that of the picture is, too.
    geometric = by_step.apply(lambda values: np.exp(np.log(values.clip(lower=1e-12)).mean())).reset_index()
    is_entropy = summary["metric"] == ENTROPY
    summary["mean"] = geometric["value"].where(is_entropy, summary["mean"])
    return summary


def draw_panel(axes: Axes, curves: DataFrame, title: str) -> None:
    """Draw one metric, a line for each method with its name at the end of the line."""
    styles = {method: style for method, style in STYLES.items() if method in set(curves["method"])}
    for method, (color, dashes) in styles.items():
        line = curves[curves["method"] == method]
        # Pass@16 is evaluated at few steps; markers show which.
        marker = "o" if len(line) < 10 else ""
        axes.plot(line["step"], line["mean"], color=color, linestyle=dashes, marker=marker, markersize=4, linewidth=1.8)
        axes.fill_between(line["step"], line["low"], line["high"], color=color, alpha=0.12, linewidth=0)
    last = curves["step"].max()
    ends = curves[curves["step"] == last].set_index("method")["mean"]
    low, high = axes.get_ylim()
    place = low - 1.0
    for method in sorted(styles, key=lambda name: ends[name]):
        # Names closer than about a twelfth of the panel's height would overlap.
        place = max(ends[method], place + (high - low) / 12)
        axes.annotate(
            method, (1.02 * last, place), color=styles[method][0], fontsize=9, va="center", annotation_clip=False
        )
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlim(0, last)
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def draw_picture(curves: DataFrame) -> None:
    """Write the picture of the demo: Pass@16 above entropy, narrow enough for a phone."""
    with mpl.rc_context(REPEATABLE):
        figure = Figure(figsize=(5.2, 4.8), layout="constrained")
        top, bottom = figure.subplots(2, 1, sharex=True)
        pass_at_16 = curves[curves["metric"] == PASS_AT_16]
        draw_panel(top, pass_at_16, "Pass@16 on held-out problems (dotted: base model)")
        top.axhline(pass_at_16.loc[pass_at_16["step"] == 0, "mean"].iloc[0], color="gray", linestyle=":")
        draw_panel(bottom, curves[curves["metric"] == ENTROPY], "entropy, nats per token")
        bottom.set_ylim(bottom=0)
        bottom.set_xlabel("training step", fontsize=9)
        figure.savefig(PICTURE, metadata={"Date": None})


def main(*arguments: str) -> None:
    for config in arguments:
        recorded_curves((ENTROPY, PASS_AT_16), config).to_csv(CURVES, index=False, float_format="%.6g")
    draw_picture(pandas.read_csv(CURVES))
    for page in PAGES:
        page.write_text(fill(page.read_text()))


if __name__ == "__main__":
    main(*sys.argv[1:])
