"""What the page on dynamic sampling says besides its tables."""

from __future__ import annotations

import pandas

from studies import pages
from studies.checks import WORDS, Page, estimate

PAGE = Page("studies/dynamic-sampling/README.md")


def check_dynamic_sampling_neither_pays_nor_costs() -> None:
    rows = pandas.read_csv(pages.REFERENCE / "dynamic-sampling/max_batches.csv")
    differences = [estimate(text) for text in [*rows["Avg@K"], *rows["Pass@16"]]]
    assert all(low < 0 < high for _, low, high in differences)
    PAGE.states(f"any of the {WORDS[len(rows)]} methods: the intervals of all {WORDS[len(differences)]} differences")
