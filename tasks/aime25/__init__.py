from typing import ClassVar

from tasks.math import Math


class AIME25(Math):
    """The 30 problems of AIME 2025; answers are integers."""

    name: ClassVar[str] = "aime25"
