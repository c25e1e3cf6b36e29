"""The golden curves: ten steps of the real trainer with six methods, so that no change of the loop goes unnoticed.

    python -m benchmarks.golden                     # rewrites tests/golden/methods.json
    python -m benchmarks.golden clip_b ppo          # these methods alone; the others stay as they are

The model is random and tiny and computes in float64, and responses come from a script
(harness/conformance/miniature.py): so a curve is the same on every machine but for rounding, and depends on no sampled
token.
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
from harness.composition import Method, Table
from harness.conformance import miniature
from harness.conformance.miniature import Size
from harness.tokens.metrics import Stopwatch

PATH = Path(__file__).parent.parent / "tests" / "golden" / "methods.json"
# One for each way through the loop: no control, weights, weights with more statistics, a critic, another surrogate, and
# a memory with an entropy gradient. The formula of each method is held by its oracle (tests/baselines), by
# `entrobench check`, and where TRL has it by TRL's own trainer (tests/baselines/test_peer.py).
NAMES = ("grpo", "clip_b", "clip_v", "ppo", "ce_gppo", "adaptive_entropy")
STEPS = 10
SIZE = Size(dtype=torch.float64)
COLUMNS = ("loss/policy", "entropy/mean", "gradient/norm", "weights/dropped")
# How far a curve may be from the kept one, relative to the largest value of its column. Under other instruction sets
# (ATEN_CPU_CAPABILITY=default with MKL_CBWR=COMPATIBLE and DNNL_MAX_CPU_ISA=SSE41; avx2 for all three) every curve was
# equal to its nine digits, but that of ppo, whose critic computes in float32: 2e-6. This is ten times that; an option
# that is 2 % larger moved a curve by 7e-5 at least (measured with all 56 methods), unless it moved nothing here.
TOLERANCE = 2e-5
# Options, where defaults do nothing on this model: thresholds that never fire, targets that are already met.
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
            records = [trainer.train_step(step, Stopwatch()) for step in range(1, STEPS + 1)]
            yield name, {column: [float(f"{record[column]:.9g}") for record in records] for column in COLUMNS}
    torch.set_num_threads(threads)


def differences(kept: Curve, found: Curve) -> dict[str, float]:
    """Return the largest difference of each column, relative to its largest value."""
    return {
        column: max(abs(one - other) for one, other in zip(kept[column], found[column], strict=True))
        / max(*map(abs, kept[column]), 1e-3)
        for column in COLUMNS
    }


def read() -> dict[str, Curve]:
    kept: dict[str, Curve] = json.loads(PATH.read_text()) if PATH.exists() else {}
    return kept


def write(kept: Mapping[str, Curve]) -> None:
    """Write a line for each column, so that a diff shows which ones moved."""
    methods = [
        f'"{name}": {{\n'
        + ",\n".join(f'  "{column}": {json.dumps(values)}' for column, values in curve.items())
        + "\n}"
        for name, curve in kept.items()
    ]
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text("{\n" + ",\n".join(methods) + "\n}\n")


def main(*names: str) -> None:
    table, kept = baselines.METHODS, read()
    for name in names:
        one_of("a golden curve", name, NAMES)
    for name, curve in curves(names or NAMES, table):
        moved = max(differences(kept[name], curve).values()) if name in kept else None
        print(f"{name:24}{'new' if moved is None else 'as it was' if moved <= TOLERANCE else f'moved by {moved:.2g}'}")
        kept[name] = curve
    write({name: kept[name] for name in NAMES if name in kept})
    plain = kept["grpo"]
    if idle := [name for name in kept if name != "grpo" and max(differences(plain, kept[name]).values()) < TOLERANCE]:
        print(f"the same as grpo: {', '.join(idle)}; give options in SPECS with which they do something")


if __name__ == "__main__":
    main(*sys.argv[1:])
