"""What the page on staleness says besides its tables."""

from __future__ import annotations

import pandas

from studies.checks import WORDS, Page, any_apart, column, estimate
from studies.staleness import analysis

PAGE = Page("studies/staleness/README.md")


def check_more_updates_cost_both_methods_and_older_batches_grpo() -> None:
    ends = pandas.read_csv(analysis.REFERENCE / "ends.csv").set_index(["method", "setting"])["Pass@16"]
    without_cost = [place for place, text in ends.items() if estimate(text)[2] >= 0]
    assert len(ends) == 4
    assert without_cost == [("clip_b(share=0.02)", analysis.LAG)]


def check_the_gain_of_clip_b_depends_on_neither() -> None:
    gains = column("staleness", "Pass@16 - grpo")
    lowest, *highest = (gains[f"clip_b(share=0.02), {setting}"] for setting in ("1, 0", "8, 0", "1, 4"))
    assert not any(any_apart([lowest, each]) for each in highest)


def check_the_sample_size_separates_the_cells_that_collapsed() -> None:
    cells = pandas.read_csv(analysis.REFERENCE / "sample_sizes.csv")
    collapsed, others = cells[cells["collapsed"]], cells[~cells["collapsed"]]
    assert sorted(collapsed["method"]) == ["clip_b(share=0.02)", "grpo"]
    assert {*collapsed[analysis.UPDATES]} == {8}
    [lag] = {*collapsed[analysis.LAG]}
    PAGE.states(f"only {WORDS[len(collapsed)]} of {len(cells)} cells collapsed", f"eight updates and a lag of {lag}")
    for name in analysis.SIZES:
        area = analysis.area_under_curve(collapsed[name].tolist(), others[name].tolist())
        PAGE.states(f"an area under the curve of {area:.2f}")
        assert cells.loc[cells[analysis.LAG] == 0, name].min() > 0.999


def check_the_entropy_rises_with_the_lag() -> None:
    entropies = column("staleness", "entropy, end")
    shown = ["{:.3f} [{:.3f}, {:.3f}]".format(*entropies[f"grpo, 1, {lag}"]) for lag in (0, 4)]
    PAGE.states(f"from {shown[0]} to {shown[1]}")
