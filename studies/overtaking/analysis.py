"""At which k the base model's Pass@k overtakes that of trained models, by the rule of studies/overtaking/README.md.

python -m studies.overtaking.analysis results/overtaking    # write the curves, the table and the picture
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pandas import DataFrame

from harness.cells import evaluations
from harness.cells.evaluations import pass_at_k
from harness.cells.log import MetricsLog
from harness.cells.spec import CellSpec

REFERENCE = Path(__file__).parents[2] / "results/reference/overtaking"
TASK, BASE_MODEL = "countdown", "base model"
SHOWN_K = (1, 4, 16, 64, 256)
RESAMPLES = 2000
COLORS = {BASE_MODEL: "#777777", "grpo": "#000000", "clip_b(share=0.02)": "#0072B2", "passk": "#D55E00"}

Floats = NDArray[np.float64]
# Axes: M resample, S seed, J problem, K k from 1.


def right_counts(folder: Path, step: int) -> NDArray[np.int64]:
    """Return the number of right responses to each problem, after a step of a cell."""
    record = evaluations.read_evaluation(evaluations.evaluation_path(folder, TASK, step))
    return np.array(record["right"], dtype=int).sum(axis=1)


def solved_chances(results: Path) -> dict[str, Floats]:
    """Return Pass@k of each problem as an array S x J x K, for the base model and for each method."""
    counts: dict[str, list[NDArray[np.int64]]] = {BASE_MODEL: []}
    samples = 0
    for path in sorted(results.glob("*/config.yaml")):
        spec = CellSpec.read(path.parent)
        last = MetricsLog(path.parent).read()[-1]["step"]
        counts.setdefault(spec.key.method, []).append(right_counts(path.parent, last))
        if spec.key.method == spec.config.baseline:  # all cells of a seed start from the same samples
            counts[BASE_MODEL].append(right_counts(path.parent, 0))
        samples = spec.config.eval.of(TASK).samples
    chances = {}
    for method, counts_S in counts.items():
        counts_SJ = np.array(counts_S)
        chances[method] = np.stack([pass_at_k(samples, counts_SJ, k) for k in range(1, samples + 1)], axis=-1)
    return chances


def crossing(base_K: Floats, trained_K: Floats) -> int:
    """Return the first k at which the base model's Pass@k is at least the trained one's; one above the last if none."""
    overtaken = np.flatnonzero(base_K >= trained_K)
    return int(overtaken[0]) + 1 if len(overtaken) else len(base_K) + 1


def crossing_interval(base_SJK: Floats, trained_SJK: Floats) -> tuple[int, int]:
    """Return the 95 % bootstrap interval of the crossing, over seeds and problems."""
    seeds, problems, _ = base_SJK.shape
    generator = np.random.default_rng(0)
    found_M = []
    for _ in range(RESAMPLES):
        weight_S = np.bincount(generator.integers(seeds, size=seeds), minlength=seeds) / seeds
        weight_J = np.bincount(generator.integers(problems, size=problems), minlength=problems) / problems
        weight_SJ = np.outer(weight_S, weight_J).ravel()
        base_K, trained_K = (weight_SJ @ each.reshape(seeds * problems, -1) for each in (base_SJK, trained_SJK))
        found_M.append(crossing(base_K, trained_K))
    low, high = np.percentile(found_M, [2.5, 97.5], method="nearest")
    return int(low), int(high)


def shown_k(k: int, largest: int) -> str:
    return str(k) if k <= largest else f"> {largest}"


def crossing_table(chances: dict[str, Floats]) -> DataFrame:
    """Return Pass@k of each method at some k, and where the base model overtakes it."""
    lines = []
    base_SJK = chances[BASE_MODEL]
    largest = base_SJK.shape[-1]
    for method, chances_SJK in chances.items():
        curve_K = chances_SJK.mean(axis=(0, 1))
        line = {"method": method} | {f"Pass@{k}": f"{curve_K[k - 1]:.3f}" for k in SHOWN_K}
        line["overtaken at k"] = ""
        if method != BASE_MODEL:
            low, high = crossing_interval(base_SJK, chances_SJK)
            place = shown_k(crossing(base_SJK.mean(axis=(0, 1)), curve_K), largest)
            line["overtaken at k"] = f"{place} [{shown_k(low, largest)}, {shown_k(high, largest)}]"
        lines.append(line)
    return DataFrame(lines)


def draw_picture(chances: dict[str, Floats]) -> None:
    """Draw Pass@k over k: the mean over seeds and problems, and the range of the seeds."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "entrobench", "font.family": "sans-serif"}):
        figure = Figure(figsize=(5.2, 3.4), layout="constrained")
        axes = figure.subplots()
        for method, chances_SJK in chances.items():
            curves_SK = chances_SJK.mean(axis=1)
            k = np.arange(1, curves_SK.shape[1] + 1)
            dashes = ":" if method == BASE_MODEL else "-"
            axes.plot(k, curves_SK.mean(axis=0), color=COLORS[method], linestyle=dashes, label=method)
            axes.fill_between(k, curves_SK.min(axis=0), curves_SK.max(axis=0), color=COLORS[method], alpha=0.12)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("k", fontsize=9)
        axes.set_ylabel("Pass@k on held-out problems", fontsize=9)
        axes.legend(fontsize=8, frameon=False, loc="lower right")
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(REFERENCE / "passk.svg", metadata={"Date": None})


def main(results: str) -> None:
    REFERENCE.mkdir(exist_ok=True)
    chances = solved_chances(Path(results))
    curves = DataFrame({method: chances_SJK.mean(axis=(0, 1)) for method, chances_SJK in chances.items()})
    curves.index = curves.index.rename("k") + 1
    curves.to_csv(REFERENCE / "passk.csv", float_format="%.6f")
    table = crossing_table(chances)
    table.to_csv(REFERENCE / "crossing.csv", index=False)
    draw_picture(chances)
    print(table.to_string(index=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
