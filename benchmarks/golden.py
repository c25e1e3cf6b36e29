"""The golden curves: what every method does in ten steps of the real trainer, so that no change moves one unnoticed.

    python -m benchmarks.golden                     # writes tests/golden/methods.json anew
    python -m benchmarks.golden clip_b ppo          # these methods alone; the others stay as they are

The model is random and tiny and computes in float64, and responses come from a script
(harness/conformance/miniature.py): so a curve is the same on every machine but for rounding, and nothing is left to a
sampled token that falls otherwise.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

import baselines
from harness.composition import Method, Table
from harness.conformance import miniature
from harness.conformance.miniature import Size
from harness.tokens.metrics import Stopwatch

PATH = Path(__file__).parent.parent / "tests" / "golden" / "methods.json"
STEPS = 10
SIZE = Size(dtype=torch.float64)
COLUMNS = ("loss/policy", "entropy/mean", "gradient/norm", "weights/dropped")
# How far a curve may be from the one that is kept, of the largest value of its column. Under other instruction sets
# (ATEN_CPU_CAPABILITY=default with MKL_CBWR=COMPATIBLE and DNNL_MAX_CPU_ISA=SSE41; avx2 for all three) every curve was
# equal to its nine digits, but that of ppo, whose critic computes in float32: 2e-6. This is ten times that; an option
# that is 2 % larger moves a curve by 7e-5 at least, unless it moves nothing here.
TOLERANCE = 2e-5
# Options, where defaults do nothing on this model: thresholds that never fire, targets that are already met.
SPECS = {
    "clip_b": "clip_b(share=0.1)",
    "clip_v": "clip_v(share=0.1)",
    "adaptive_entropy": "adaptive_entropy(target=3, delta=0.01, highest=0.1)",
    "entropic": "entropic(target=2.6)",
    "entropy_advantage": "entropy_advantage(scale=0.1)",
    "stare": "stare(target=3)",
    "clip_servo": "clip_servo(target=3)",
}

Curve = dict[str, list[float]]


def spec_of(name: str) -> str:
    return SPECS.get(name, name)


def curves(names: Sequence[str], table: Table) -> Iterator[tuple[str, Curve]]:
    """Yields what each method does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        miniature.write_model(model, SIZE)
        for name in names:
            method = Method.of(spec_of(name), table)
            trainer = miniature.trainer(method, model, Path(folder), SIZE, STEPS)
            records = [trainer.train_step(step, Stopwatch()) for step in range(1, STEPS + 1)]
            yield name, {column: [float(f"{record[column]:.9g}") for record in records] for column in COLUMNS}
    torch.set_num_threads(threads)


def differences(kept: Curve, found: Curve) -> dict[str, float]:
    """Returns how far two curves are apart, of the largest value of each column."""
    return {
        column: max(abs(one - other) for one, other in zip(kept[column], found[column], strict=True))
        / max(*map(abs, kept[column]), 1e-3)
        for column in COLUMNS
    }


def read() -> dict[str, Curve]:
    kept: dict[str, Curve] = json.loads(PATH.read_text()) if PATH.exists() else {}
    return kept


def write(kept: Mapping[str, Curve]) -> None:
    """Writes a line for each column, so that a change shows what it moved."""
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
    for name, curve in curves(names or list(table), table):
        moved = max(differences(kept[name], curve).values()) if name in kept else None
        print(f"{name:24}{'new' if moved is None else 'as it was' if moved <= TOLERANCE else f'moved by {moved:.2g}'}")
        kept[name] = curve
    write({name: kept[name] for name in table if name in kept})
    plain = kept["grpo"]
    if idle := [name for name in kept if name != "grpo" and max(differences(plain, kept[name]).values()) < TOLERANCE]:
        print(f"the same as grpo: {', '.join(idle)}; give options in SPECS with which they do something")


if __name__ == "__main__":
    main(*sys.argv[1:])
