"""The place of the repository, and public problem sets that some tests read if they are present."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
REAL = Path(os.environ.get("ENTROBENCH_DATA") or REPOSITORY.parent / "shared" / "data")
RARELY_SEARCHING = str(REPOSITORY / "tests/helpers/searching_rarely")  # in PYTHONPATH of programs that are not ours
