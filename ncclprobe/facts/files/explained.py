"""What the other checks of a job's logs came to: the fact that checks of what they leave open take."""

from ncclprobe.model.values import Struct


class Explained(Struct, frozen=True):
    """`codes` of the causes that were named; `could_be`: those of causes that are narrowed to a few; `open`: ids of the
    checks whose findings leave several causes, or none.

    `lines` are those that a finding rests on: index of the log, and line; `failing`: of them those that speak of a
    failure, and not of what is merely slow.
    """

    codes: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    lines: frozenset[tuple[int, int]] = frozenset()
    failing: frozenset[tuple[int, int]] = frozenset()
    could_be: tuple[str, ...] = ()
