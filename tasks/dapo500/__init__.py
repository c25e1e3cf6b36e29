from typing import ClassVar

from tasks.math import Math


class DAPO500(Math):
    """500 problems held out of DAPO-Math-17k by a fixed rule."""

    name: ClassVar[str] = "dapo500"
