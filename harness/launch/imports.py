"""What the server of cells imports before it forks the first cell."""

from harness.base.garbage import never_searched

with never_searched():
    import harness.cell  # noqa: F401
