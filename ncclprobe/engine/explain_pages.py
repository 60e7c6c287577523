"""What is known of a check, of a variable, or of a group of either: as lines, for a screen or a page.

Everything is read from the check itself, so it cannot disagree with what the check does; of its examples, and of those
of a variable, two are judged here, and what differs between them is said in words, because a person reads no reprs.
"""

import difflib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cache, partial
from itertools import product
from typing import Any

from msgspec.structs import fields

from ncclprobe.engine.diagnose import every_check
from ncclprobe.engine.judge import judge_node
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.software import NcclLibrary, Software, Version
from ncclprobe.host.patience import outcome
from ncclprobe.logs.job_log import JobLog, LogEvent
from ncclprobe.model import bounds
from ncclprobe.model.errors import unknown
from ncclprobe.model.findings import Finding, Severity
from ncclprobe.model.fleet import History
from ncclprobe.model.layout import wrap
from ncclprobe.model.nccl_selection import Choices
from ncclprobe.model.registry import Check, Collector, Need, by_id, discover, title_of
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.units import plural
from ncclprobe.model.values import Struct
from ncclprobe.nccl.parameters import NEWEST, Parameter, meanings, nearest, table

LINES, COLUMNS = 40, 80
_HEAD = 10


def headed(head: str, text: str) -> list[str]:
    """Return `text` behind ``head:``, lines below it indented as far."""
    return wrapped(f"{head + ':':<{_HEAD}}", text) if text else []


def wrapped(lead: str, text: str) -> list[str]:
    """Return `text` behind `lead`; words longer than a line are left whole."""
    return wrap(lead, text, COLUMNS, whole=True)


def shortened(lead: str, text: str, lines: int) -> list[str]:
    """Return no more than so many lines of `text`, the last of which ends in … where there is more."""
    every = wrapped(lead, text)
    if len(every) <= lines:
        return every
    last = every[lines - 1]
    return [*every[: lines - 1], f"{last[: COLUMNS - 2].rstrip()} …"]


_MOST_LETTERS = 60


class Difference(Struct, frozen=True):
    """One value that two examples do not share: `where` it stands, and what it is in either."""

    where: str
    here: str
    there: str


_MISSING = object()
"""Stands for what only the other example has."""


class _Step(Struct, frozen=True):
    """One step down into a value: into a field, or to an element by what people call it."""

    name: str
    element: bool = False


def differences(one: Any, other: Any, name: str) -> list[Difference]:
    """Return what differs between two values of `name`, words before numbers; what differs in the same way once."""
    found: dict[tuple[str, str], Difference] = {}
    for path, here, there in _walk(one, other, (_Step(name),)):
        both = _apart(here, there)
        found.setdefault(both, Difference(_where(path), *both))
    return sorted(found.values(), key=lambda each: each.here.replace(".", "").isdigit())


def _apart(here: Any, there: Any) -> tuple[str, str]:
    """Return two values in words; of two long texts from shortly before they part."""
    both = plain(here), plain(there)
    if both[0] != both[1]:
        return both
    mine, others = _words(here), _words(there)
    parting = next(n for n, (a, b) in enumerate(zip(f"{mine}\0", f"{others}\1", strict=False)) if a != b)
    start = max(parting - _MOST_LETTERS // 3, 0)
    return plain(f"… {mine[start:]}"), plain(f"… {others[start:]}")


def _walk(one: Any, other: Any, path: tuple[_Step, ...]) -> Iterator[tuple[tuple[_Step, ...], Any, Any]]:
    if one == other:
        return
    if isinstance(one, Setting) or isinstance(other, Setting) or not _comparable(one, other):
        yield path, one, other
        return
    mine, others = _parts(one), _parts(other)
    for step in dict.fromkeys((*mine, *others)):
        yield from _walk(mine.get(step, _MISSING), others.get(step, _MISSING), (*path, step))


def _comparable(one: Any, other: Any) -> bool:
    """Return whether two values can be compared part by part."""
    if isinstance(one, Absent) or isinstance(other, Absent):
        return False
    if isinstance(one, Struct):
        return type(one) is type(other)
    of_names = all(isinstance(value, Mapping) for value in (one, other))
    return of_names or all(
        isinstance(value, tuple | list) and any(isinstance(part, Struct | tuple) for part in value)
        for value in (one, other)
    )


def _parts(value: Any) -> dict[_Step, Any]:
    if isinstance(value, Struct):
        return {_Step(f.name.replace("_", " ")): getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Mapping):
        return {_Step(plain(key), element=True): part for key, part in value.items()}
    names = [_called(part, number) for number, part in enumerate(value)]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, start=1)]
    return {_Step(name, element=True): part for name, part in zip(names, value, strict=True)}


def _called(value: Any, number: int) -> str:
    """Return what people call an element of a list: by its name, else by its number."""
    if not isinstance(value, Struct):
        return f"no. {number + 1}"
    name = getattr(value, "name", None)
    if isinstance(name, str) and name and type(value).__name__ != "Gpu":
        return name
    if isinstance(index := getattr(value, "index", None), int):
        return f"GPU{index}" if type(value).__name__ == "Gpu" else f"{type(value).__name__.lower()} {index}"
    return f"{type(value).__name__.lower()} {number}"


def _where(path: Sequence[_Step]) -> str:
    """Return the elements on the way, without those whose name the next one's begins with, and the fields behind."""
    last = max((place for place, step in enumerate(path) if step.element), default=0)
    elements = [step.name for step in path[: last + 1] if step.element] or [path[0].name]
    kept = [a for a, b in zip(elements, (*elements[1:], ""), strict=True) if not b.startswith(a)]
    return " ".join((*kept, *(step.name for step in path[last + 1 :])))


def plain(value: Any) -> str:
    """Return a value as a person writes it, cut where it is long."""
    text = _words(value)
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 2]} …"


def _words(value: Any) -> str:
    if value is _MISSING or value is None:
        return "none"
    if isinstance(value, Absent):
        return f"not known ({value.why})"
    if isinstance(value, Enum):
        return str(value.name)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Setting):
        return f"{value.value}" if value.origin == "environment" else f"{value.value} (from {value.origin})"
    if isinstance(value, Struct):
        return _of_struct(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{plain(key)}: {plain(part)}" for key, part in value.items()) or "none"
    if isinstance(value, tuple | list | set | frozenset):
        return _of_list(value)
    return str(value) if str(value) else "(empty)"


def _of_struct(value: Struct) -> str:
    """Return the fields that are numbers or words and not what they are by default."""
    told = []
    for field in fields(value):
        own = getattr(value, field.name)
        if own != field.default and isinstance(own, str | int | float) and own != "":
            told.append(f"{field.name.replace('_', ' ')} {plain(own)}")
    return ", ".join(told) or type(value).__name__.lower()


def _of_list(value: Sequence[Any] | frozenset[Any] | set[Any]) -> str:
    items = sorted(value) if isinstance(value, set | frozenset) else list(value)
    whole = len(items) > 2 and all(type(item) is int for item in items)
    if whole and items == list(range(items[0], items[-1] + 1)):
        return f"{items[0]} to {items[-1]}"
    return ", ".join(plain(item) for item in items) or "none"


_SOURCES = re.compile(
    r"[A-Za-z][\w./-]*#\d+"  # nccl#342
    r"|\b(?:src|drivers|net|mm|graph|torch|Documentation|gloo|plugins)/[\w./-]*\w(?::\d+)?"
    r"|\b\w+\([1-8]\)"  # mlock(2)
    r"|\b[\w-]+\.(?:cc|cpp|rst|hpp|h|py)\b(?::\d+)?"
)
_MOST_DIFFERENCES = 5
_MOST_FINDINGS = 2


class Pair(Struct, frozen=True):
    """Two examples that differ in little: what the check finds in the first, what in the second, and what differs."""

    found: tuple[Finding, ...]
    accepted: tuple[Finding, ...]
    different: tuple[Difference, ...]


def of_parts(parts: Sequence[Check]) -> list[str]:
    """Return the lines on what shares an id: on several parts a title for all, and of each its words."""
    if len(parts) == 1:
        return of_check(parts[0])
    lines = [*wrapped(f"{parts[0].id}  ", title_of(parts)), ""]
    for part in parts:
        known = dict(about_check(part))
        lines += wrapped(f"{part.part}:  ", f"{part.title}.")
        lines += [line for head in ("why", "fix", "standing") for line in wrapped(f"  {head}: ", known[head])]
    about = f"--ignore '{parts[0].id}=SUBJECT', or ncclprobe.toml"
    return [*lines, "", f"silenced with {about}; `ncclprobe explain {parts[-1].key}` shows one with examples"]


def of_check(check: Check) -> list[str]:
    """Return the lines, no more than a screen has: of long lists of differences the first."""
    about = (line for head, text in about_check(check) for line in headed(head, text))
    above = [*wrapped(f"{check.key}  ", check.title), "", *about]
    try:
        pair, error = outcome(time.monotonic() + bounds.SITE_EXAMPLES_S, partial(check_examples, check))
    except TimeoutError as late:
        pair, error = None, late
    if pair is None:
        return [*above, "", f"its examples raise {type(error).__name__}; `ncclprobe checks --test` says where"]
    for shown in range(_MOST_DIFFERENCES, 0, -1):
        lines = [*above, "", *shown_examples(pair, shown)]
        if len(lines) <= LINES:
            break
    return lines


def shown_examples(pair: Pair, most: int = _MOST_DIFFERENCES) -> list[str]:
    """Return the lines on both examples, with so many of their differences at most."""
    return [*_check_example(pair, most, first=True), "", *_check_example(pair, most, first=False)]


def about_check(check: Check) -> list[tuple[str, str]]:
    """Return what is known of a check but its title and examples, each under its head; a text may be empty."""
    collectors = {each.produces: each for each in discover("ncclprobe.facts", Collector)}
    inconclusive = ": a run that could not look is inconclusive" if check.required else ""
    silenced = f"when {check.cause_id} fails, which explains it; " if check.requires else ""
    return [
        ("passes", f"{check.right}."),
        ("why", check.why),
        ("fix", check.fix),
        ("looks at", ", ".join(dict.fromkeys(_source(need, collectors) for need in check.needs))),
        ("applies", f"only {check.applies.words}" if check.applies else ""),
        ("standing", f"{check.standing}{inconclusive}"),
        ("needs", check.privilege),
        ("silenced", f"{silenced}with --ignore '{check.id}=SUBJECT', or in ncclprobe.toml"),
        ("sources", ", ".join(dict.fromkeys(_SOURCES.findall(f"{check.why} {check.fix}")))),
    ]


def _source(need: Need, collectors: Mapping[type, Collector]) -> str:
    if need.fact in collectors:
        return collectors[need.fact].run.__name__
    if need.fact in (Choices, History):
        return "what NCCL would choose" if need.fact is Choices else "the store of reports that --fleet names"
    return f"what a job left: {need.name.replace('_', ' ')}" if need.of == "files" else "the options"


def check_examples(check: Check) -> Pair:
    """Return the two examples that have most in common, of which the check objects to one and accepts the other."""
    pairs = [
        (
            tuple(check.run(*bad)),
            good,
            [d for name, a, b in _arguments(check, bad, good) for d in differences(a, b, name)],
        )
        for bad, good in product(check.bad, check.good)
    ]
    loud = [pair for pair in pairs if any(f.severity is not Severity.NOTE for f in pair[0])] or pairs
    found, good, different = min(loud, key=lambda pair: (len(pair[2]), sum(len(d.here + d.there) for d in pair[2])))
    return Pair(found, tuple(check.run(*good)), tuple(different))


def _arguments(check: Check, bad: Sequence[Any], good: Sequence[Any]) -> Iterator[tuple[str, Any, Any]]:
    names = (need.name.replace("_", " ") for need in check.needs)
    return zip(names, map(_as_read, bad), map(_as_read, good), strict=True)


def _as_read(fact: Any) -> Any:
    """Return of logs the lines as they were read, by their numbers, with who wrote them."""
    if not isinstance(fact, JobLog):
        return fact
    return {f"{fact.streams[e.stream].name}:{e.line}": _line(e) for e in fact.events}


def _line(event: LogEvent) -> str:
    process = "" if event.pid is None else f":{event.pid}"
    who = f"{event.host}{process}" if event.host else "" if event.rank is None else f"rank {event.rank}:"
    return " ".join(filter(None, (who, event.place, event.level, event.text)))


def _check_example(pair: Pair, most: int, first: bool) -> Iterator[str]:
    yield "example that triggers it:" if first else "example that does not:"
    for each in pair.different[:most]:
        yield from shortened("    ", f"{each.where}: {each.here if first else each.there}", lines=1)
    if len(pair.different) > most:
        yield f"    and {len(pair.different) - most} more"
    findings = pair.found if first else pair.accepted
    for finding in findings[:_MOST_FINDINGS]:
        said = f"{finding.severity.value.upper()} {finding.subject}: {finding.message}"
        yield from shortened("    -> ", said, lines=2)
    if not findings:
        yield "    -> pass"


_READERS = {
    "nccl": "NCCL",
    "torch": "torch",
    "gloo": "gloo",
    "launch": "torch and its launchers",
    "ofi": "libfabric and the AWS plugin",
    "gcp": "Google's plugins",
    "ucx": "UCX and NVIDIA's plugins",
    "sharp": "SHARP and NVIDIA's plugin for it",
    "cuda": "CUDA",
    "slurm": "Slurm",
    "mpi": "MPI",
    "omp": "OpenMP",
    "os": "the system's libraries",
    "container": "the container's runtime",
    "nvshmem": "NVSHMEM",
    "doca": "DOCA",
    "nccl-tests": "nccl-tests",
    "nccl-inspector": "the Inspector plugin",
    "nccl-profiler-example": "NCCL's example of a profiler plugin",
    "nccl-contrib": "code in NCCL's contrib folder",
}
_TYPES = {"bool": "0 or 1", "int": "a whole number", "size": "a number of bytes, without a suffix", "list": "a list",
          "path": "a path", "string": "a text", "enum": "one of a few words"}  # fmt: skip
_SCOPES = {"job": "must be equal on all ranks", "rank": "may differ between ranks"}

Example = tuple[str, str, Sequence[tuple[str, Finding]]]
"""A name, its value, and what the checks find, each with the check's id."""


def of_variable(parameter: Parameter) -> list[str]:
    """Return the lines: what it does, its values, what a wrong one does, its releases, two examples, the source."""
    return [
        parameter.name,
        "",
        *(line for head, text in about_variable(parameter) for line in headed(head, text)),
        "",
        *(line for each in variable_examples(parameter) for line in _variable_example(each, parameter)),
    ]


def about_variable(parameter: Parameter) -> list[tuple[str, str]]:
    """Return what is known of a variable, each under its head; a text may be empty."""
    return [
        ("does", purpose(parameter)),
        ("read by", readers(parameter)),
        ("values", _values(parameter)),
        ("default", parameter.default if parameter.is_read else ""),
        ("releases", _releases(parameter)),
        ("instead", parameter.instead),
        ("ranks", _SCOPES.get(parameter.scope, "")),
        ("wrong", f"{parameter.hazard}.{' A word is read as 0.' * parameter.is_integer}"),
        ("source", parameter.source),
    ]


def purpose(parameter: Parameter) -> str:
    """Return what a variable does in a sentence, or that it is not documented."""
    meaning = meanings().get(parameter.name)
    if meaning:
        return meaning.does
    if parameter.owner == "none":
        return "Nothing: no known release reads it."
    how = "Not documented by NVIDIA" if parameter.owner == "nccl" else "Not described here"
    return f"{how}; read by {_READERS.get(parameter.owner, parameter.owner)}."


def readers(parameter: Parameter) -> str:
    """Return who reads it, and whether its maker describes it."""
    if parameter.owner == "none":
        return "nothing"
    meaning = meanings().get(parameter.name)
    reader = _READERS.get(parameter.owner, parameter.owner)
    maker = "NVIDIA's" if parameter.owner in ("nccl", "cuda") else "its maker's"
    return reader if meaning and meaning.documented else f"{reader}; not in {maker} documentation"


def _values(parameter: Parameter) -> str:
    numbered = parameter.type == "enum" and parameter.low is not None
    kind = _TYPES["int" if numbered else parameter.type]
    if parameter.words:
        case = ", in any case" if parameter.any_case else ""
        return f"{', '.join(parameter.words)}{case}"
    if parameter.type == "bool" or (parameter.low is None and parameter.high is None):
        return kind
    if parameter.high is None:
        return f"{kind}, {parameter.low} or more"
    return f"{kind}, {parameter.low} to {parameter.high}"


def _releases(parameter: Parameter) -> str:
    """Return since and until which release it is read, in the numbers of those who read it.

    Of NCCL the table knows all releases from 2.3.5 on.
    """
    if parameter.owner == "none":
        return "none"
    unsaid = "since 2.3.5 or before" if parameter.owner == "nccl" else "since when is not known"
    since = f"since {_written(parameter.since)}" if parameter.since else unsaid
    return f"{since}, until {_written(parameter.gone)}, which ignores it" if parameter.gone else since


def _written(version: Version | None) -> str:
    return ".".join(map(str, version or ()))


def variable_examples(parameter: Parameter) -> list[Example]:
    """Return a setting that is right, if there is one, and one that is wrong, with what the checks say of them.

    Of a name that nothing reads the right setting is that of the name to use now.
    """
    meaning, name = meanings().get(parameter.name), parameter.name
    value = meaning.example if meaning else _healthy(parameter)
    if parameter.is_read:
        right = [(name, value, _said(name, value))]
    else:
        other = meanings().get(parameter.instead)
        right = [(parameter.instead, other.example, _said(parameter.instead, other.example))] if other else []
    tried = ((name, wrong, _said(name, wrong)) for name, wrong in _wrong(parameter, value))
    loud = (each for each in tried if any(f.severity is not Severity.NOTE for _, f in each[2]))
    return [*right, next(loud, (_misspelt(name), value, ()))]


def _misspelt(name: str) -> str:
    return name[:-2] + name[-1]


def _healthy(parameter: Parameter) -> str:
    """Return a value that is allowed, of a variable that is not described."""
    if parameter.words:
        return parameter.words[0]
    if parameter.type in ("bool", "int", "size") or parameter.low is not None:
        return str(max(parameter.low or 0, 0))
    return "/tmp/file" if parameter.type == "path" else "name"


def _wrong(parameter: Parameter, right: str) -> Iterator[tuple[str, str]]:
    """Yield settings as people get them wrong: the value first, then the name."""
    name = parameter.name
    if not parameter.is_read:
        yield name, right
    if parameter.type == "bool":
        yield name, "maybe" if parameter.words else "true"
    if parameter.high is not None:
        yield name, str(parameter.high + 1)
    if parameter.type == "size":
        yield name, "4M"
    if parameter.low is not None:
        yield name, str(parameter.low - 1)
    if parameter.type == "list":
        yield name, ",".join([right.partition(",")[0]] * 2)
    yield name, f"{right}S"
    yield _misspelt(name), right


def _said(name: str, value: str) -> list[tuple[str, Finding]]:
    """Return what the checks of the environment find in this one setting, with the newest NCCL loaded."""
    facts: dict[type, Any] = {
        Settings: Settings({name: Setting(name, value, "environment")}),
        Environment: Environment({name: value}),
        Software: Software({}, (NcclLibrary(NEWEST, "the newest"),)),
    }
    verdicts = judge_node(Snapshot("example", facts), _of_settings(), Job())
    return [(verdict.id, finding) for verdict in verdicts for finding in verdict.findings]


@cache
def _of_settings() -> tuple[Check, ...]:
    """Return the checks of the environment that judge a setting by itself, and not as one of a vendor's whole block."""
    own = (check for check in every_check() if check.id.startswith("env.") and not check.compares)
    return tuple(check for check in own if all(need.fact is not Choices for need in check.needs))


def _variable_example(example: Example, parameter: Parameter) -> Iterator[str]:
    name, value, findings = example
    yield from shortened("example:  ", f"{name}={value}", lines=1)
    for check, finding in findings[:2]:
        said = f"{finding.severity.value.upper()} {check}: {finding.message}"
        yield from shortened("    -> ", said, lines=3)
    if not findings and name not in table():
        reader = _READERS.get(parameter.owner, parameter.owner)
        yield from shortened("    -> ", f"not a name that {reader} would read, and no message tells", lines=2)
    elif not findings:
        yield "    -> nothing is said of it"


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
    every = every_check(None, folder)
    checks, keys = by_id(every), {check.key: check for check in every}
    if wanted in checks:
        return of_parts(checks[wanted])
    if wanted in keys:
        return of_check(keys[wanted])
    if rules := [check for check in every if wanted and check.cause and check.cause.code == wanted]:
        return of_check(*rules) if len(rules) == 1 else [*_rows({each.id: each.title for each in rules})]
    if group := list(_group(wanted.rstrip("*"), checks)):
        return group
    lists = "`ncclprobe explain NCCL_IB_` lists the variables that begin so" if wanted.isupper() else _CHECKS
    raise unknown(wanted, kind, (), lists, _near(wanted, checks))


def _group(prefix: str, checks: Mapping[str, Sequence[Check]]) -> Iterator[str]:
    """Yield a line for each check, or each variable, of a prefix that ends where a part of a name does."""
    ids = [each for each in sorted(checks) if prefix and each.startswith(f"{prefix.rstrip('.')}.")]
    names = [each for each in table() if prefix and each.startswith(f"{prefix.upper().rstrip('_')}_")]
    if ids or names:
        yield from _rows({i: title_of(checks[i]) for i in ids} or {name: purpose(table()[name]) for name in names})


def _rows(known: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each name and what it is, and how many there are."""
    width = min(max(map(len, known)), _NAME)
    for name, text in known.items():
        line = f"{name:<{width}}  {text}"
        yield line if len(line) <= COLUMNS else f"{line[: COLUMNS - 2].rstrip()} …"
    yield ""
    kind = "variable" if next(iter(known)) in table() else "check"
    yield f"{plural(len(known), kind)}; `ncclprobe explain NAME` explains one"


def _near(wanted: str, checks: Mapping[str, Sequence[Check]]) -> list[str]:
    """Return checks, causes and variables whose names are like `wanted`, the likest first."""
    upper = wanted.upper()
    corrected = [name] if (name := nearest(upper)) else []
    within = [name for name in table() if len(wanted) > 3 and name.endswith(f"_{upper}")]
    similar = difflib.get_close_matches(wanted, checks, n=_MOST_SUGGESTED, cutoff=0.6)
    similar += [each for each in checks if len(wanted) > 2 and each.endswith(f".{wanted}")]
    parts = {f"{name.partition('.')[0]}.{each.part}": each.key for name, own in checks.items() for each in own}
    similar += [parts[each] for each in difflib.get_close_matches(wanted, parts, n=_MOST_SUGGESTED, cutoff=0.8)]
    similar += [key for each, key in parts.items() if len(wanted) > 2 and each.endswith(f".{wanted}")]
    similar += difflib.get_close_matches(upper, table(), n=_MOST_SUGGESTED, cutoff=0.8)
    codes = dict.fromkeys(check.cause.code for parts in checks.values() for check in parts if check.cause)
    similar += difflib.get_close_matches(wanted, codes, n=_MOST_SUGGESTED, cutoff=0.8)
    found = dict.fromkeys((*corrected, *within, *similar))
    likeness = {each: difflib.SequenceMatcher(None, each.upper(), upper).ratio() for each in found}
    return sorted(found, key=lambda each: -likeness[each])[:_MOST_SUGGESTED]
