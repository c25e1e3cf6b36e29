"""All benchmarks that need no GPU: `make bench`."""

from benchmarks import data, demo, methods, rollout, step

for benchmark in (rollout, step, methods, data, demo):
    benchmark.main()
