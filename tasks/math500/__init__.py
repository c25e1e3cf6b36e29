from typing import ClassVar

from tasks.math import Math


class MATH500(Math):
    """The 500 problems of MATH-500; answers are LaTeX."""

    name: ClassVar[str] = "math500"
