"""Locks on files, also on file systems without locks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

# The errors of file systems without locks.
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
POLL = 1.0  # seconds between two calls of `waiting`


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


@contextlib.contextmanager
def held(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock, after the process that holds it now, during which `waiting` is called again and again."""
    ours = lock(path)
    with contextlib.suppress(Timeout):
        ours.acquire(timeout=0)
    while not ours.is_locked:
        waiting()
        with contextlib.suppress(Timeout):
            ours.acquire(timeout=POLL)
    try:
        yield
    finally:
        ours.release()
