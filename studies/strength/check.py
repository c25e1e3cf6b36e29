"""What the page on the strength of the clips says besides its table."""

from __future__ import annotations

from studies.checks import WORDS, Page
from studies.field import analysis as field

PAGE = Page("studies/strength/README.md")


def check_more_dropped_tokens_raise_pass_at_16_and_lower_avg_at_k() -> None:
    rows = field.compared("strength")
    p_values = {method: row["p_holm"] for method in rows if (row := rows[method][field.PASS])["p_holm"] is not None}
    lowest = min(p_values, key=lambda method: p_values[method])
    assert lowest == "clip_v(share=0.03)"
    assert p_values[lowest] > 0.05
    tested = WORDS[len(p_values)]
    PAGE.states(f"over {tested} rows the lowest p-value is {p_values[lowest]:.2f} (Clip_V at 3 %)")
    for clip in ("clip_b", "clip_v"):
        of_shares = [rows[f"{clip}(share={share})"] for share in ("0.001", "0.003", "0.01", "0.03", "0.1")]
        *rising, last = (scores[field.PASS]["difference"]["mean"] for scores in of_shares)
        assert rising == sorted(rising)
        assert last < rising[-1]
        assert [scores[field.AVG]["difference"]["high"] < 0 for scores in of_shares] == [False] * 3 + [True] * 2
    PAGE.states("Shares of 3 and 10 % have a *price*")
