"""What the page on transfer says besides its tables."""

from __future__ import annotations

import numpy as np

from studies.checks import WORDS, Page
from studies.field import analysis as field
from studies.transfer import analysis

PAGE = Page("studies/transfer/README.md")


def check_the_ranking_carries_over_to_the_larger_models() -> None:
    table = analysis.agreement_table().set_index(["settings", "score"])
    one, five = (table.loc[f"0.2 M and {size}"] for size in ("1 M", "5 M"))
    taus = [(of_size["Kendall's tau"][field.PASS], of_size["Kendall's tau"][field.AVG]) for of_size in (one, five)]
    gains, losses = (
        [WORDS[int(of_size["carried over"][score])] for of_size in (one, five)] for score in (field.PASS, field.AVG)
    )
    assert losses[1] == "no"
    PAGE.states(
        f"tau of the ten methods is {taus[0][0]} and {taus[1][0]}",
        f"tau is {taus[0][1]} and {taus[1][1]}",
        f"{gains[0]} are so at 1 million and {gains[1]} at 5 million",
        f"{losses[0]} is found at 1 million and none at 5 million",
    )
    assert {*table["contradicted"]} == {"0"}


def check_the_gains_are_not_smaller_in_the_largest_model() -> None:
    small, large = (analysis.effects(matrix, field.PASS) for matrix in ("field", "transfer-5m"))
    assert {scores[field.PASS]["seeds"] for scores in field.compared("transfer-5m").values()} == {3}
    assert all(large[method]["mean"] > small[method]["mean"] for method in large)
    PAGE.states(f"All {WORDS[len(large)]} means are higher")


def check_the_ranking_of_the_other_puzzle() -> None:
    table = analysis.agreement_table()
    puzzles = table[table["settings"] == "0.2 M and coloring, 0.2 M"].set_index(["score", "methods"])["Kendall's tau"]
    PAGE.states(
        f"with a tau of {puzzles[field.PASS, '10']}",
        f"with {puzzles[field.AVG, '10']}",
        f"Over all 72 rows of the field, tau is {puzzles[field.PASS, '72']} and {puzzles[field.AVG, '72']}",
    )


def check_no_agreement_with_papers_is_shown() -> None:
    pairs = analysis.paired_with_papers().values()
    reported, ours = [float(np.mean(numbers)) for numbers, _ in pairs], [effect for _, effect in pairs]
    same = int((np.sign(reported) == np.sign(ours)).sum())
    PAGE.states(
        f"{same} of {len(pairs)} signs in Avg@K agree",
        f"Kendall's tau is {analysis.shown_tau(reported, ours)} over {len(pairs)} methods, and {same} signs agree",
    )
