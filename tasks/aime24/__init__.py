from typing import ClassVar

from tasks.math import Math


class AIME24(Math):
    """The 30 problems of AIME 2024; answers are integers."""

    name: ClassVar[str] = "aime24"
