"""The constants of a GPU on which estimates of time rest: matrix products, a copy, and the launch of a kernel.

python -m benchmarks.gpu.machine
"""

from __future__ import annotations

import datetime
import platform
import time
from collections.abc import Callable

import torch
import transformers

from benchmarks.common import show
from benchmarks.gpu.common import DEVICE, device_name, wait

SIDE = 8192 if DEVICE == "cuda" else 512
COPIED = 2**32 if DEVICE == "cuda" else 2**24  # bytes
LAUNCHES = 2000


def seconds_per_call(call: Callable[[], object], calls: int) -> float:
    """Return the seconds of one call, after a first one that is not counted."""
    call()
    wait()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    wait()
    return (time.perf_counter() - start) / calls


def product_rate(dtype: torch.dtype) -> str:
    """Return the speed of a square product of random numbers."""
    a, b = (torch.randn(SIDE, SIDE, device=DEVICE).to(dtype) for _ in range(2))
    return f"{2 * SIDE**3 / seconds_per_call(lambda: a @ b, 20) / 1e12:,.1f} TFLOP/s"


def main() -> None:
    print(datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), platform.platform(), device_name())
    print("torch", torch.__version__, "transformers", transformers.__version__)
    source = torch.empty(COPIED, dtype=torch.uint8, device=DEVICE).random_()
    target = torch.empty_like(source)
    number = torch.zeros((), device=DEVICE)
    copy = seconds_per_call(lambda: target.copy_(source), 10)
    rows = [
        [f"product of two {SIDE} x {SIDE} matrices in bfloat16", product_rate(torch.bfloat16)],
        ["the same in float32", product_rate(torch.float32)],
        ["copy on the device, bytes read and written", f"{2 * COPIED / copy / 1e12:.2f} TB/s"],
        ["addition to one number", f"{1e6 * seconds_per_call(lambda: number.add_(1), LAUNCHES):.1f} us"],
    ]
    show(device_name(), ["", "measured"], rows)


if __name__ == "__main__":
    main()
