"""What the page on the entropy as a dial says besides its table."""

from __future__ import annotations

from studies.checks import Page, column

PAGE = Page("studies/dial/README.md")
TARGETS = (0.1, 0.2, 0.3, 0.4, 0.6)
SERVO, BONUS = "clip_servo(target={})", "adaptive_entropy(target={},delta=0.002,highest=0.1)"


def held_targets(controller: str) -> list[float]:
    """Return the targets that the interval of the entropy at the end includes."""
    entropies, held = column("dial", "entropy, end"), []
    for target in TARGETS:
        _, low, high = entropies.get(controller.format(target), (0.0, 0.0, 0.0))
        if low <= target <= high:
            held.append(target)
    return held


def check_the_dial_turns_the_clips_and_not_the_bonus() -> None:
    answers = column("dial", "distinct right")
    for controller, rises in ((SERVO, True), (BONUS, False)):
        means = [answers[controller.format(target)][0] for target in held_targets(controller)]
        assert (means == sorted(means)) == rises
    *servo, last = held_targets(SERVO)
    PAGE.states(f"The servo holds {', '.join(map(str, servo))} and {last}")
    held = held_targets(BONUS)
    assert held == [target for target in TARGETS if held[0] <= target <= held[-1]]
    PAGE.states(f"The bonus holds {held[0]} to {held[-1]}")
