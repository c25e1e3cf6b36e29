"""All benchmarks that need no GPU: `make bench`."""

from benchmarks import demo, methods, rollout, step

for benchmark in (rollout, step, methods, demo):
    benchmark.main()
