"""What is known of one variable, on one screen; its two examples are judged by the checks of the environment."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from ncclprobe.engine.diagnose import every_check
from ncclprobe.engine.judge import judge_node
from ncclprobe.engine.screen import headed, shortened
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.software import NcclLibrary, Software, Version
from ncclprobe.model.findings import Finding, Severity
from ncclprobe.model.nccl_selection import Choices
from ncclprobe.model.registry import Check
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.nccl.parameters import NEWEST, Parameter, meanings, table

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
        *(line for head, text in about(parameter) for line in headed(head, text)),
        "",
        *(line for each in examples(parameter) for line in _example(each, parameter)),
    ]


def about(parameter: Parameter) -> list[tuple[str, str]]:
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


def examples(parameter: Parameter) -> list[Example]:
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


def _example(example: Example, parameter: Parameter) -> Iterator[str]:
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
