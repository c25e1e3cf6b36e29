"""`python -m entrobench`: the command as a module."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the current folder, which `python -m` puts first

from harness.cli import main

if __name__ == "__main__":
    main()
