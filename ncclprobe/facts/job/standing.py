"""How the ranks of a job stand, on all nodes together: what the checks of a running job judge."""

from ncclprobe.model.causes import RankClass, Standing
from ncclprobe.model.values import Struct


class Stand(Struct, frozen=True):
    """The ranks in classes, and the answer in one line. `waiting` ranks are in the call `where`, for others."""

    classes: tuple[RankClass, ...]
    answer: Standing
    where: str = ""
    waiting: tuple[int, ...] = ()
