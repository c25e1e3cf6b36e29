"""Figures of methods that act on the entropy, as this harness measured them: differences from GRPO in the demo.

They repeat results/reference/demo and results/reference/demo-avx2, which an installed package does not have;
`tests/diagnose/test_remedies.py` compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass

CONDITIONS = (
    "differences from GRPO in the demo: Countdown, 0.2 million parameters, 100 steps, seeds 0 to 2, 95 % intervals; "
    "second figures: with a different instruction set (docs/evidence/demo.md)"
)


@dataclass(frozen=True)
class Difference:
    """A difference from GRPO, with half of the width of its 95 % interval."""

    mean: float
    half_width: float

    def __str__(self) -> str:
        mark = "" if abs(self.mean) > self.half_width else ", not significant"
        return f"{self.mean:+.3f} ±{self.half_width:.3f}{mark}"


@dataclass(frozen=True)
class MeasuredMethod:
    """The effects of a method in the demo, with AVX-512 and with AVX2."""

    spec: str
    pass_at_16: Difference
    avg_at_k: Difference
    pass_at_16_avx2: Difference
    avg_at_k_avx2: Difference

    def __str__(self) -> str:
        of_pass = f"Pass@16 {self.pass_at_16}; {self.pass_at_16_avx2}"
        return f"{self.spec}: {of_pass}. Avg@K {self.avg_at_k}; {self.avg_at_k_avx2}"


MEASURED = {
    "clip_b": MeasuredMethod(
        "clip_b(share=0.02)",
        Difference(0.193, 0.180),
        Difference(-0.006, 0.079),
        Difference(0.194, 0.077),
        Difference(-0.032, 0.064),
    ),
    "clip_v": MeasuredMethod(
        "clip_v(share=0.01)",
        Difference(0.122, 0.119),
        Difference(-0.005, 0.047),
        Difference(0.178, 0.043),
        Difference(0.010, 0.102),
    ),
    "adaptive_entropy": MeasuredMethod(
        "adaptive_entropy(target=0.3, delta=0.002, highest=0.1)",
        Difference(0.160, 0.180),
        Difference(0.003, 0.112),
        Difference(0.116, 0.059),
        Difference(-0.029, 0.084),
    ),
    "entropy_bonus": MeasuredMethod(
        "entropy_bonus(coefficient=0.03)",
        Difference(0.081, 0.201),
        Difference(0.013, 0.069),
        Difference(0.080, 0.108),
        Difference(0.014, 0.034),
    ),
}
