"""What the page on learning rate, KL term and Clip_B says besides its tables."""

from __future__ import annotations

from studies.checks import any_apart, column

RATES = ("0.000175", "0.00035", "0.0007")


def check_clip_b_is_replaced_at_the_highest_rate_alone() -> None:
    """By a setting without it that has at least its mean scores."""
    averages, passed = (column("lr-kl-clip", name) for name in ("Avg@K", "Pass@16"))
    others = [row for row in averages if row.startswith(("grpo, ", "grpo(kl_coef=0.01), "))]
    assert len(others) == 6
    replaced = {}
    for rate in RATES:
        ours = f"clip_b(share=0.02), {rate}"
        replaced[rate] = [
            row for row in others if averages[row][0] >= averages[ours][0] and passed[row][0] >= passed[ours][0]
        ]
    assert replaced == dict(zip(RATES, ([], [], ["grpo(kl_coef=0.01), 0.000175"]), strict=True))


def check_the_gain_of_clip_b_depends_on_no_setting() -> None:
    gains = column("lr-kl-clip", "Pass@16 - grpo")
    assert not any_apart([gain for row, gain in gains.items() if row.startswith("clip_b")])
