"""The version of the package: that of the last tag, such as v0.2.0, with the number of commits since."""

import re
import subprocess
from pathlib import Path

from setuptools import setup

BEFORE_THE_FIRST_TAG = "0.1.dev0"


def version() -> str:
    """Return the version that git tells; without git, a repository or a tag, that of before the first one."""
    command = ["git", f"--git-dir={Path(__file__).parent / '.git'}", "describe", "--tags", "--long", "--match=v[0-9]*"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return BEFORE_THE_FIRST_TAG
    parts = re.fullmatch(r"v(.+)-(\d+)-(g[0-9a-f]+)\n", said)
    if parts is None:
        return BEFORE_THE_FIRST_TAG
    tag, since, commit = parts.groups()
    return tag if since == "0" else f"{tag}.post{since}+{commit}"


setup(version=version())
