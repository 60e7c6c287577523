"""Documentation of a check, of a variable, or of a group of either: as lines, for a screen or a page."""

import difflib
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from ncclprobe import page
from ncclprobe.engine.diagnose import every_check
from ncclprobe.host.deadlines import outcome
from ncclprobe.model import bounds
from ncclprobe.model.errors import unknown
from ncclprobe.model.findings import Finding, Severity
from ncclprobe.model.layout import wrap
from ncclprobe.model.registry import Check, by_id, title_of
from ncclprobe.model.units import plural
from ncclprobe.nccl.parameters import Parameter, nearest, purpose, table, variable_explanation

COLUMNS = 80
_MOST_FINDINGS, _MOST_SUGGESTED = 2, 3
_CHECKS = "`ncclprobe checks` lists the checks"
_LIKE = 0.8
"""One name may be meant for another if they are this similar."""
_NAME = 30  # of a name's column; few are longer, and push their text aside


def _labelled_lines(about: Sequence[tuple[str, str]]) -> list[str]:
    """Return each text after its heading; further lines align with the first."""
    return [line for head, text in about if text for line in wrap(f"{head + ':':<12}", text, COLUMNS, whole=True)]


def part_lines(parts: Sequence[Check]) -> list[str]:
    """Return the lines on an id: several parts get a common title, then each its own text."""
    if len(parts) == 1:
        return check_lines(parts[0])
    lines = [*wrap(f"{parts[0].id}  ", title_of(parts), COLUMNS, whole=True), ""]
    for part in parts:
        lines += [f"{part.part}: {part.title}.", *_labelled_lines([("  why", part.why), ("  fix", part.fix)])]
    about = f"`ncclprobe explain {parts[-1].key}` shows one of them with examples; {page(parts[0].id)}"
    return [*lines, "", *wrap("", about, COLUMNS, whole=True)]


def check_lines(check: Check) -> list[str]:
    """Return the lines on one check: its title, why, fix, an example finding, and where to read more."""
    title = wrap(f"{check.key}  ", check.title, COLUMNS, whole=True)
    try:
        found, error = outcome(time.monotonic() + bounds.SITE_EXAMPLES_S, partial(example_of, check))
    except TimeoutError as late:
        found, error = None, late
    if found is None:
        said = [f"its examples raise {type(error).__name__}; `ncclprobe checks --test` shows the place"]
    else:
        said = ["example of what it finds:", *found]
    return [*title, "", *_labelled_lines(check_explanation(check)), "", *said, "", page(check.id)]


def check_explanation(check: Check) -> list[tuple[str, str]]:
    """Return everything about a check but its title and example, as (heading, text); a text may be empty."""
    inconclusive = ": if it cannot be done, the run is inconclusive" if check.required else ""
    silenced = f"when {check.cause_id} fails, which explains it; " if check.requires else ""
    return [
        ("passes", f"{check.right}."),
        ("why", check.why),
        ("fix", check.fix),
        ("applies", f"only {check.applies.words}" if check.applies else ""),
        ("importance", f"{check.standing}{inconclusive}"),
        ("silenced", f"{silenced}with --ignore '{check.id}=SUBJECT', or in ncclprobe.toml"),
    ]


def example_of(check: Check) -> list[str]:
    """Return the lines on the check's findings in the first of its bad examples that is more than a note."""
    every = [tuple(check.run(*bad)) for bad in check.bad_examples()]
    loud = [found for found in every if any(each.severity is not Severity.NOTE for each in found)] or every
    return [line for each in loud[0][:_MOST_FINDINGS] for line in _finding_lines(each)]


def _finding_lines(finding: Finding) -> list[str]:
    said = f"{finding.severity.value.upper()} {finding.line}"
    return wrap("    ", said, COLUMNS, whole=True)


def variable_lines(parameter: Parameter) -> list[str]:
    """Return the lines on a variable: what it does, its values, its hazards, its releases, an example, the source."""
    return [parameter.name, "", *_labelled_lines(variable_explanation(parameter))]


def entry(wanted: str, kind: str = "check or variable", folder: str = "") -> list[str]:
    """Return the lines on the check or variable `wanted`, the checks that name it as a cause, or the group with this
    prefix.

    A prefix is ``ib`` or ``NCCL_IB_``. `folder` contains checks of the site's own. Raises UsageError if there is none,
    naming the nearest checks and variables; `kind` says what it could have been.
    """
    if variable := table().get(wanted) or table().get(wanted.upper()):
        return variable_lines(variable)
    from ncclprobe.logs.answer import STATED

    every = every_check(None, folder)
    checks, keys = by_id(every), {check.key: check for check in every}
    wanted = "log.unexplained" if wanted == STATED else wanted
    if wanted in checks:
        return part_lines(checks[wanted])
    if wanted in keys:
        return check_lines(keys[wanted])
    if rules := [check for check in every if wanted and check.cause and check.cause.code == wanted]:
        return check_lines(*rules) if len(rules) == 1 else [*_rows({each.id: each.title for each in rules})]
    if group := list(_group(wanted.rstrip("*"), checks)):
        return group
    lists = "`ncclprobe explain NCCL_IB_` lists the variables with that prefix" if wanted.isupper() else _CHECKS
    raise unknown(wanted, kind, (), lists, _similar_names(wanted, checks))


def _group(prefix: str, checks: Mapping[str, Sequence[Check]]) -> Iterator[str]:
    """Yield one line per check or variable with this prefix, which ends where a part of a name does."""
    ids = [each for each in sorted(checks) if prefix and each.startswith(f"{prefix.rstrip('.')}.")]
    names = [each for each in table() if prefix and each.startswith(f"{prefix.upper().rstrip('_')}_")]
    if ids or names:
        yield from _rows({i: title_of(checks[i]) for i in ids} or {name: purpose(table()[name]) for name in names})


def _rows(known: Mapping[str, str]) -> Iterator[str]:
    """Yield one line per name and its description, and the count."""
    width = min(max(map(len, known)), _NAME)
    for name, text in known.items():
        line = f"{name:<{width}}  {text}"
        yield line if len(line) <= COLUMNS else f"{line[: COLUMNS - 2].rstrip()} …"
    yield ""
    kind = "variable" if next(iter(known)) in table() else "check"
    yield f"{plural(len(known), kind)}; `ncclprobe explain NAME` explains one"


def _similar_names(wanted: str, checks: Mapping[str, Sequence[Check]]) -> list[str]:
    """Return checks, causes and variables with names similar to `wanted`, the most similar first."""
    every = [check for parts in checks.values() for check in parts]
    names = {name: name for name in (*table(), *checks)} | {
        check.cause.code: check.id for check in every if check.cause
    }
    names |= {f"{check.id.partition('.')[0]}.{check.part}": check.key for check in every}
    likeness: dict[str, float] = {}
    for name, known in names.items():
        last = name[len(name) - len(wanted) - 1 :].upper() in (f".{wanted.upper()}", f"_{wanted.upper()}")
        share = difflib.SequenceMatcher(None, name.upper(), wanted.upper()).ratio()
        if share >= _LIKE or (last and len(wanted) > 2):
            likeness[known] = max(likeness.get(known, 0.0), share)
    likely = nearest(wanted.upper())
    found = sorted(likeness, key=lambda each: -likeness[each])
    return list(dict.fromkeys((*([likely] if likely else []), *found)))[:_MOST_SUGGESTED]
