"""All benchmarks that need no GPU: `make bench`."""

from benchmarks import data, demo, launchers, methods, padding, rollout, step, tokenstats, verify

for benchmark in (rollout, step, padding, methods, tokenstats, data, verify, launchers, demo):
    benchmark.main()
