"""All benchmarks that need no GPU: `make bench`."""

from benchmarks import data, demo, methods, rollout, step, tokenstats, verify

for benchmark in (rollout, step, methods, tokenstats, data, verify, demo):
    benchmark.main()
