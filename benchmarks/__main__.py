"""All benchmarks that need no GPU: `make bench`."""

from benchmarks import data, demo, methods, rollout, step, verify

for benchmark in (rollout, step, methods, data, verify, demo):
    benchmark.main()
