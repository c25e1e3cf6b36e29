"""Python imports this as it starts. Imports then take half of the time, as with harness/base/garbage.py."""

import gc

gc.set_threshold(200_000, 20, 100)
