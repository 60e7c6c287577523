"""What the other checks of a job's logs came to: the fact that the check of what is left unexplained takes."""

from ncclprobe.model.values import Struct


class Explained(Struct, frozen=True):
    """`codes` of the causes that were named; `open`: ids of the checks whose findings leave several causes, or none.

    `lines` are those that a finding rests on: index of the log, and line.
    """

    codes: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    lines: frozenset[tuple[int, int]] = frozenset()
