"""What the page on the base model that overtakes says besides its tables."""

from __future__ import annotations

import pandas

from studies.checks import Page, apart, estimate
from studies.overtaking.analysis import REFERENCE

PAGE = Page("studies/overtaking/README.md")


def check_pass_at_k_training_moves_the_crossing_and_clip_b_does_not() -> None:
    shown = pandas.read_csv(REFERENCE / "crossing.csv").set_index("method")["overtaken at k"].dropna()
    crossings = {method: estimate(text) for method, text in shown.items()}
    grpo, clip_b, passk = (crossings[name] for name in ("grpo", "clip_b(share=0.02)", "passk"))
    assert apart(passk, grpo)
    assert not apart(clip_b, grpo)
    PAGE.states(
        f"only up to k = {grpo[0] - 1:.0f}: the crossing is at {grpo[0]:.0f}",
        f"(Clip_B: {clip_b[0]:.0f}; the intervals share k = {clip_b[1]:.0f})",
        f"Pass@k training moves it to {passk[0]:.0f}",
    )
    curves = pandas.read_csv(REFERENCE / "passk.csv").set_index("k")
    for method, (k, _, _) in crossings.items():
        assert (curves[method] > curves["base model"]).tolist() == [each < k for each in curves.index]
