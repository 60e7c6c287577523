"""Host lists on one line, as Slurm and ClusterShell write them: ``gpu[007-010,20],cpu1``.

The grammar is that of ``scontrol show hostnames`` (slurm.conf(5), NodeName): brackets hold comma-separated numbers and
ranges, whose leading zeros count; a name may have several brackets.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby, islice, product
from math import prod

from ncclprobe.model import bounds

_PART = r"\[([^\[\]]*)\]|([^\[\]]+)"
_NAME = r"(?:[^,\[\]\s]|\[[^\[\]]*\])+"


def expand(text: str) -> tuple[str, ...]:
    """Expand the names in `text`, in order. Raises ValueError for a malformed list, or more than bounds.HOST_NAMES."""
    pieces = re.findall(_NAME, text)
    if ",".join(pieces) != text:
        raise ValueError(f"not a list of host names: {text[:80]!r}")
    names: list[str] = []
    for piece in pieces:
        parts = [_choices(inside, plain) for inside, plain in re.findall(_PART, piece)]
        if len(names) + prod(map(len, parts)) > bounds.HOST_NAMES:
            raise ValueError(f"more than {bounds.HOST_NAMES} host names: {text[:80]!r}")
        names += map("".join, product(*parts))
    return tuple(names)


def _choices(inside: str, plain: str) -> list[str]:
    """Return the alternatives of one bracket; stops at one more than allowed, which is enough to refuse it."""
    return list(islice(_numbers(inside), bounds.HOST_NAMES + 1)) if not plain else [plain]


def _numbers(inside: str) -> Iterator[str]:
    """Expand ``007-010,20`` to 007, 008, 009, 010, 20."""
    for part in inside.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if not match:
            raise ValueError(f"not a range of numbers: [{inside[:80]}]")
        first, last = match[1], match[2] or match[1]
        if int(last) - int(first) not in range(bounds.HOST_NAMES):
            raise ValueError(f"not a range of numbers: [{inside[:80]}]")
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))


def fold(names: Iterable[str]) -> str:
    """Fold the trailing numbers of `names`: ``n[0-3,7]``; sorted, without duplicates.

    The bracket is always last, as slurm.conf(5), NodeName, requires.
    """
    matches = {name: re.fullmatch(r"([^,\[\]]*?)([0-9]{1,9})", name) for name in names}
    plain = {name for name, match in matches.items() if not match}
    found = [(match[1], match[2]) for match in matches.values() if match]
    padded = {(stem, len(digits)) for stem, digits in found if digits.startswith("0") and len(digits) > 1}
    groups: dict[tuple[str, int], set[int]] = {}
    for stem, digits in found:  # 10 joins 08 and 09
        key = (stem, len(digits)) if (stem, len(digits)) in padded else (stem, 0)
        groups.setdefault(key, set()).add(int(digits))
    folded = [_folded(stem, width, sorted(numbers)) for (stem, width), numbers in groups.items()]
    return ",".join(sorted((*plain, *folded)))


def fold_numbers(numbers: Iterable[int]) -> str:
    """Format numbers as the kernel lists processors: ``0-2,5``."""
    return _runs(sorted(set(numbers)), 0)


def fold_ranks(ranks: Iterable[int]) -> str:
    """Format ranks: ``rank 5``, ``ranks 0-3,7``."""
    text = fold_numbers(ranks)
    return f"rank {text}" if text.isdecimal() else f"ranks {text}"


def _folded(stem: str, width: int, numbers: list[int]) -> str:
    text = _runs(numbers, width)
    return f"{stem}{text}" if len(numbers) == 1 else f"{stem}[{text}]"


def _runs(numbers: list[int], width: int) -> str:
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    return ",".join("-".join(str(end).zfill(width) for end in dict.fromkeys((run[0], run[-1]))) for run in runs)
