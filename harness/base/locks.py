"""Locks of files, also where the file system knows none."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock

NONE_HERE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)


def lock(path: Path) -> BaseFileLock:
    """Returns a lock that is not held yet. Where files cannot be locked, it is a file that is there as long as somebody
    holds it, and that is passed over when its process is gone from this machine."""
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # somebody holds it, so there are locks
        except OSError as error:
            if error.errno not in NONE_HERE:
                raise
            return SoftFileLock(path.with_name(f"{path.name}.held"))
    return FileLock(path)
