"""All benchmarks that need no GPU, as Markdown: `make bench`.

It does not compare versions of the demo, as `python -m benchmarks.demo --against COMMIT` does.
"""

import time

from benchmarks import (
    cells,
    data,
    demo,
    launchers,
    methods,
    padding,
    peers,
    phases,
    rollout,
    startup,
    tokenstats,
    verify,
)

for benchmark in (rollout, phases, padding, methods, tokenstats, data, verify, launchers, startup, cells, demo, peers):
    start = time.perf_counter()
    benchmark.main()
    print(f"`{benchmark.__name__}` took {time.perf_counter() - start:.0f} s\n", flush=True)
