"""The imports of the server of cells, before it forks the first one.

Where torchao is installed, transformers would import it, and that initializes CUDA, which a forked process cannot do
again. So it is hidden here; a cell that needs it imports it itself.
"""

import sys

from harness.base.garbage import never_searched

sys.modules["torchao"] = None  # type: ignore[assignment]
with never_searched():
    import harness.launch.cell  # noqa: F401
del sys.modules["torchao"]
