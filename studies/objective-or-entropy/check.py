"""What the page on objectives and controls says besides its table."""

from __future__ import annotations

from studies.checks import WORDS, Page
from studies.field import analysis as field

PAGE = Page("studies/objective-or-entropy/README.md")


def check_objectives_and_controls_are_on_the_front() -> None:
    rows = {method: row for method, row in field.compared("objective-or-entropy").items() if method != field.BASE_MODEL}
    places = field.places(rows)
    front = set()
    for method, (avg, passed) in places.items():
        others = [place for place in places.values() if place != (avg, passed)]
        if not any(other_avg >= avg and other_passed >= passed for other_avg, other_passed in others):
            front.add(method)
    assert front == {"grpo", "rs_grpo", "clip_b(share=0.02)", "clip_v(share=0.02)", "maxrl", "pkpo"}
    PAGE.states("(GRPO, RS-GRPO, Clip_B, Clip_V, MaxRL, PKPO)")
    assert all(rows[method][field.AVG]["difference"]["high"] < 0 for method in front - {field.BASELINE})


def check_only_the_gain_of_clip_b_is_significant() -> None:
    rows = field.compared("objective-or-entropy")
    p_values = {method: row["p_holm"] for method in rows if (row := rows[method][field.PASS])["p_holm"] is not None}
    [significant] = [method for method, p_value in p_values.items() if p_value < 0.05]
    assert significant == "clip_b(share=0.02)"
    PAGE.states(
        f"over {WORDS[len(p_values)]} methods only Clip_B's gain is significant (p = {p_values[significant]:.3f})"
    )
