"""The golden curves: ten steps of the real trainer with six methods, which detect any change of the loop.

    python tests/helpers/curves.py                     # rewrites tests/golden/methods.json
    python tests/helpers/curves.py clip_b ppo          # these methods alone; the others stay as they are

The model is random and tiny and computes in float64, and responses come from a script
(harness/conformance/miniature.py). So a curve is the same on every machine except for rounding.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

import baselines
from harness.base.errors import one_of
from harness.conformance import miniature
from harness.conformance.miniature import Size
from harness.methods.composition import Method, Table
from harness.tokens.metrics import Stopwatch

PATH = Path(__file__).parents[1] / "golden/methods.json"
# One for each path through the loop: no control, weights, weights with more statistics, a critic, another surrogate,
# and a memory with an entropy gradient. Other tests check the formula of each method: its oracle (tests/baselines),
# `entrobench check`, and for methods that TRL has, TRL's own trainer (tests/baselines/test_peer.py).
NAMES = ("grpo", "clip_b", "clip_v", "ppo", "ce_gppo", "adaptive_entropy")
STEPS = 10
SIZE = Size(dtype=torch.float64)
COLUMNS = ("loss/policy", "entropy/mean", "gradient/norm", "weights/dropped")
# The largest accepted difference from a kept curve, relative to the largest value of its column. Under other
# instruction sets (ATEN_CPU_CAPABILITY=default with MKL_CBWR=COMPATIBLE and DNNL_MAX_CPU_ISA=SSE41; avx2 for all three)
# every curve was equal in its nine digits except that of ppo, whose critic computes in float32: 2e-6. This is ten times
# that. An option that was 2 % larger moved a curve by at least 7e-5 (measured with all 56 methods), or not at all.
TOLERANCE = 2e-5
# Options for methods whose defaults do nothing on this model: thresholds that never fire, targets already met.
SPECS = {
    "clip_b": "clip_b(share=0.1)",
    "clip_v": "clip_v(share=0.1)",
    "adaptive_entropy": "adaptive_entropy(target=3, delta=0.01, highest=0.1)",
}

Curve = dict[str, list[float]]


def spec_of(name: str) -> str:
    return SPECS.get(name, name)


def curves(names: Sequence[str], table: Table) -> Iterator[tuple[str, Curve]]:
    """Yield the names of methods with their curves."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        miniature.write_model(model, SIZE)
        for name in names:
            method = Method.of(spec_of(name), table)
            trainer = miniature.miniature_trainer(method, model, Path(folder), SIZE, STEPS)
            curve: Curve = {column: [] for column in COLUMNS}
            for step in range(1, STEPS + 1):
                record = trainer.train_step(step, Stopwatch())
                for column in COLUMNS:
                    curve[column].append(float(f"{record[column]:.9g}"))
            yield name, curve
    torch.set_num_threads(threads)


def differences(kept: Curve, curve: Curve) -> dict[str, float]:
    """Return the largest difference of each column, relative to its largest value."""
    relative = {}
    for column in COLUMNS:
        distances = [abs(one - other) for one, other in zip(kept[column], curve[column], strict=True)]
        relative[column] = max(distances) / max(*map(abs, kept[column]), 1e-3)
    return relative


def read() -> dict[str, Curve]:
    """Return the kept curves by method."""
    kept: dict[str, Curve] = json.loads(PATH.read_text()) if PATH.exists() else {}
    return kept


def write(kept: Mapping[str, Curve]) -> None:
    """Write a line for each column, so that a diff shows which ones moved."""
    methods = []
    for name, curve in kept.items():
        lines = [f'  "{column}": {json.dumps(values)}' for column, values in curve.items()]
        methods.append(f'"{name}": {{\n' + ",\n".join(lines) + "\n}")
    PATH.write_text("{\n" + ",\n".join(methods) + "\n}\n")


def main(*names: str) -> None:
    table, kept = baselines.METHODS, read()
    for name in names:
        one_of("a golden curve", name, NAMES)
    for name, curve in curves(names or NAMES, table):
        if name not in kept:
            status = "new"
        else:
            moved_by = max(differences(kept[name], curve).values())
            status = "unchanged" if moved_by <= TOLERANCE else f"moved by {moved_by:.2g}"
        print(f"{name:24}{status}")
        kept[name] = curve
    write({name: kept[name] for name in NAMES if name in kept})


if __name__ == "__main__":
    main(*sys.argv[1:])
