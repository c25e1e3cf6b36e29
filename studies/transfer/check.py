"""What the page on transfer says besides its tables."""

from __future__ import annotations

import numpy as np

from studies.checks import WORDS, Page
from studies.field import analysis as field
from studies.transfer import analysis

PAGE = Page("studies/transfer/README.md")


def check_the_signs_that_carry_over() -> None:
    table = analysis.agreement_table().set_index(["settings", "score", "methods"])
    assert {*table["contradicted"]} == {"0"}
    for score, sentence in (
        (field.PASS, "{} are so at 1 million and {} at 5 million"),
        (field.AVG, "{} is found at 1 million and none at 5 million"),
    ):
        found = [int(table["carried over"][f"0.2 M and {size}", score, "10"]) for size in ("1 M", "5 M")]
        PAGE.states(sentence.format(*(WORDS[count] for count in found)))
    assert found[1] == 0
    puzzles = table["Kendall's tau"]["0.2 M and coloring, 0.2 M"]
    PAGE.states(f"with a tau of {puzzles[field.PASS, '10']}", f"with {puzzles[field.AVG, '10']}")


def check_the_gains_are_not_smaller_in_the_largest_model() -> None:
    small, large = (analysis.effects(matrix, field.PASS) for matrix in ("field", "transfer-5m"))
    assert {scores[field.PASS]["seeds"] for scores in field.compared("transfer-5m").values()} == {3}
    assert all(large[method]["mean"] > small[method]["mean"] for method in large)
    PAGE.states(f"All {WORDS[len(large)]} means are higher")


def check_no_agreement_with_papers_is_shown() -> None:
    pairs = analysis.paired_with_papers().values()
    reported, ours = [float(np.mean(numbers)) for numbers, _ in pairs], [effect for _, effect in pairs]
    same = int((np.sign(reported) == np.sign(ours)).sum())
    PAGE.states(
        f"{same} of {len(pairs)} signs in Avg@K agree",
        f"Kendall's tau is {analysis.shown_tau(reported, ours)} over {len(pairs)} methods, and {same} signs agree",
    )
