"""Python imports this as it starts: an MLflow server then imports in half of the time (harness/base/garbage.py)."""

import gc

gc.set_threshold(200_000, 20, 100)
