"""What the page on the demo's finding says of graph coloring besides its table, by the criteria that came first."""

from __future__ import annotations

from studies.checks import Page, column

PAGE = Page("studies/coloring/README.md")


def check_grpo_raises_avg_at_k_and_loses_pass_at_16() -> None:
    _, _, highest = column("coloring", "Avg@K - grpo")["base model"]
    _, lowest, _ = column("coloring", "Pass@16 - grpo")["base model"]
    assert highest < 0 < lowest
    passed = column("coloring", "Pass@16")
    PAGE.states(f"loses {1 - passed['grpo'][0] / passed['base model'][0]:.0%} of Pass@16".replace("%", " %"))
    answers = column("coloring", "distinct right")
    base, grpo, clip_b = (answers[row][0] for row in ("base model", "grpo", "clip_b"))
    PAGE.states(f"has {base:.1f} distinct right colorings, GRPO {grpo:.1f} and Clip_B {clip_b:.1f}")


def check_both_clips_keep_more_pass_at_16() -> None:
    gains = column("coloring", "Pass@16 - grpo")
    assert all(gains[clip][1] > 0 for clip in ("clip_b", "clip_v"))


def check_no_method_differs_in_avg_at_k() -> None:
    differences = column("coloring", "Avg@K - grpo")
    assert len(differences) == 7
    assert all(low < 0 < high for row, (_, low, high) in differences.items() if row != "base model")
