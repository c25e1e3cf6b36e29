"""Locks on files, also on file systems without locks."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock

# The errors of file systems without locks.
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)


def lock(path: Path) -> BaseFileLock:
    """Return a lock that is not held yet.

    If the file system has no locks, the lock is a file that exists while it is held. It counts as released once its
    process on this machine no longer exists.
    """
    with open(path, "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # another process holds the lock, so the file system has locks
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return SoftFileLock(path.with_name(f"{path.name}.held"))
    return FileLock(path)
