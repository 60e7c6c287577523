"""What is known of a check, of a variable, or of a group of either: as lines, for a screen or a page."""

import difflib
from collections.abc import Iterator, Mapping

from ncclprobe.engine.diagnose import every_check
from ncclprobe.engine.entry_of_check import of_check
from ncclprobe.engine.entry_of_variable import of_variable, purpose
from ncclprobe.engine.screen import COLUMNS
from ncclprobe.errors import unknown
from ncclprobe.model.registry import Check
from ncclprobe.nccl.parameters import nearest, table
from ncclprobe.units import plural

_MOST_SUGGESTED = 3
_CHECKS = "`ncclprobe checks` lists the checks"
_NAME = 30  # of a name's column; few are longer, and push their text aside


def entry(wanted: str, kind: str = "check or variable", folder: str = "") -> list[str]:
    """Return the lines on the check or variable `wanted`, on the checks that name it as a cause, or on the group whose
    names begin so: ``ib``, ``NCCL_IB_``. `folder` holds checks of the site's own.

    Raises UsageError where there is none, naming the nearest checks and variables; `kind` says what it could have been.
    """
    if variable := table().get(wanted) or table().get(wanted.upper()):
        return of_variable(variable)
    checks = {check.id: check for check in every_check(None, folder)}
    if wanted in checks:
        return of_check(checks[wanted])
    if rules := [check for check in checks.values() if wanted and check.cause and check.cause.code == wanted]:
        return of_check(*rules) if len(rules) == 1 else [*_rows({each.id: each.title for each in rules})]
    if group := list(_group(wanted.rstrip("*"), checks)):
        return group
    lists = "`ncclprobe explain NCCL_IB_` lists the variables that begin so" if wanted.isupper() else _CHECKS
    raise unknown(wanted, kind, (), lists, _near(wanted, checks))


def _group(prefix: str, checks: dict[str, Check]) -> Iterator[str]:
    """Yield a line for each check, or each variable, of a prefix that ends where a part of a name does."""
    ids = [each for each in sorted(checks) if prefix and each.startswith(f"{prefix.rstrip('.')}.")]
    names = [each for each in table() if prefix and each.startswith(f"{prefix.upper().rstrip('_')}_")]
    if ids or names:
        yield from _rows({i: checks[i].title for i in ids} or {name: purpose(table()[name]) for name in names})


def _rows(known: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each name and what it is, and how many there are."""
    width = min(max(map(len, known)), _NAME)
    for name, text in known.items():
        line = f"{name:<{width}}  {text}"
        yield line if len(line) <= COLUMNS else f"{line[: COLUMNS - 2].rstrip()} …"
    yield ""
    kind = "variable" if next(iter(known)) in table() else "check"
    yield f"{plural(len(known), kind)}; `ncclprobe explain NAME` explains one"


def _near(wanted: str, checks: dict[str, Check]) -> list[str]:
    """Return checks and variables whose names are like `wanted`, the likest first."""
    upper = wanted.upper()
    corrected = [name] if (name := nearest(upper)) else []
    within = [name for name in table() if len(wanted) > 3 and name.endswith(f"_{upper}")]
    similar = difflib.get_close_matches(wanted, checks, n=_MOST_SUGGESTED, cutoff=0.6)
    similar += [each for each in checks if len(wanted) > 2 and each.endswith(f".{wanted}")]
    similar += difflib.get_close_matches(upper, table(), n=_MOST_SUGGESTED, cutoff=0.8)
    found = dict.fromkeys((*corrected, *within, *similar))
    likeness = {each: difflib.SequenceMatcher(None, each.upper(), upper).ratio() for each in found}
    return sorted(found, key=lambda each: -likeness[each])[:_MOST_SUGGESTED]
