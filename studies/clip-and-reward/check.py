"""What the page on a higher upper clip says besides its table."""

from __future__ import annotations

from studies.checks import any_apart, apart, column


def check_a_higher_clip_has_no_measurable_effect() -> None:
    entropies, gains = (column("clip-and-reward", name) for name in ("entropy, end", "Pass@16 - grpo"))
    for higher in ("grpo(clip_high=0.28)", "grpo(clip_high=0.4)"):
        assert not apart(entropies["grpo"], entropies[higher])
        _, low, high = gains[higher]
        assert low < 0 < high
    random = [entropy for row, entropy in entropies.items() if "random_reward" in row]
    assert len(random) == 3
    assert not any_apart(random)
