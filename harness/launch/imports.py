"""The imports of the server of cells, before it forks the first one."""

from harness.base.garbage import never_searched

with never_searched():
    import harness.launch.cell  # noqa: F401
