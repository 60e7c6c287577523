"""The fault matrix: what a row is, and how what the doctor said of it is scored.

A row is a fault, how it is made, and what must be said of it: which check, of which nodes, in whose report, with which
exit codes, by when. `matrix_meeting` and `matrix_nodes` hold the rows, `run` plays them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from ncclprobe.model.values import Struct, field, replace

from .hosts import Host, Lab
from .processes import Completed, Running

T = TypeVar("T")
Launcher = Literal["hand", "srun", "mpirun", "torchrun", "c10d"]
PORT = 29500
MATTERS = ("warn", "fail")
UNKNOWN = "unknown"
_INCOMPLETE = ("sync.nodes", "sync.nodes", "launch.master", "launch.port")
LATE_S = 2.0
"""By how much a run may outlive its --timeout."""


class Codes(NamedTuple):
    """Exit codes of node 0, of the node with the fault, and of all others. None: any."""

    hub: int | None = 4
    victim: int | None = 4
    others: int | None = 4


ALL_STOP = Codes()


class Named(Struct, frozen=True):
    """One finding that must come. `subject` and `says` are parts of what it says, `nodes` whom it names.

    ``@victim`` is the host with the fault, ``@others`` all but n0, ``@seat`` and ``@seats`` what these are called while
    nobody has heard of them ("node 3"). `of_two` are the nodes if there are two hosts only: none or both, if one cannot
    be told from the other. `by` are the reports that must hold it. `blame` empty: any.
    """

    id: str
    subject: str = ""
    nodes: tuple[str, ...] = ("@victim",)
    says: str = ""
    by: str = "n0"
    blame: str = ""
    of_two: tuple[str, ...] | None = None
    severity: Literal["warn", "fail", "note", "unknown"] = "fail"


class Setup(Struct):
    """One run before it starts: what the fault's maker may change."""

    lab: Lab
    victim: Host
    gpus: bool = False
    flags: dict[str, dict[str, str]] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    after: list[Callable[[Mapping[str, Running]], None]] = field(default_factory=list)

    @property
    def hub(self) -> Host:
        return self.lab.hosts[0]

    @property
    def other(self) -> Host:
        """A host without the fault: not the hub where there is a third one."""
        return next((h for h in self.lab.hosts[1:] if h is not self.victim), self.hub)

    def use(self, fault: AbstractContextManager[T]) -> T:
        """Make a fault for as long as the lab is up."""
        return self.lab.stack.enter_context(fault)

    def set(self, **flags: str) -> None:
        """Flags of every host."""
        for host in self.lab.hosts:
            self.flag(host, **flags)

    def flag(self, host: Host, **flags: str) -> None:
        """Flags of one host."""
        self.flags.setdefault(host.name, {}).update(flags)

    def expand(self, words: Sequence[str]) -> list[str]:
        """Hosts for ``@victim`` and the like."""
        numbers = [host.number - 1 for host in self.lab.hosts[1:]]
        meant = {
            "@victim": [self.victim.name],
            "@other": [self.other.name],
            "@seat": [f"node {self.victim.number - 1}"],
            "@others": [f"n{number}" for number in numbers],
            "@seats": [f"node {number}" for number in numbers],
            "@all": [host.name for host in self.lab.hosts],
        }
        return [name for word in words for name in meant.get(word, [word])]

    def say(self, text: str) -> str:
        """Text with the hosts' names in it."""
        address = self.victim.address()
        return text.format(victim=self.victim.name, other=self.other.name, hub=self.hub.name, address=address)


class Row(Struct, frozen=True):
    """One fault. `hosts`: at how many it is played; `also`: ids that may come as its consequences.

    `instead` is as good as `expect`, where it depends on a moment which of them comes. `patience_s`: --wait, where
    somebody will not come. `start` replaces the doctor's usual start. `timed`: nothing else should run on the machine
    meanwhile. `frozen`: the victim cannot end by itself.
    """

    name: str
    make: Callable[[Setup], object]
    expect: tuple[Named, ...]
    codes: Codes = ALL_STOP
    instead: tuple[Named, ...] = ()
    also: tuple[str, ...] = ()
    hosts: tuple[int, ...] = (2, 8)
    deadline_s: float = 15.0
    nics: int = 1
    family: Literal[4, 6] = 4
    gpus: bool = False
    launcher: Launcher = "hand"
    timed: bool = False
    frozen: bool = False
    timeout_s: float = 40.0
    patience_s: float = 6.0
    start: Callable[[Setup], dict[str, Running]] | None = None

    @property
    def wait_s(self) -> float:
        """How long nodes wait for each other: long where everybody comes, because it costs nothing then."""
        return self.patience_s if any(each.id in _INCOMPLETE for each in self.expect) else 0.6 * self.timeout_s


class Said(NamedTuple):
    """One finding of one report."""

    by: str
    id: str
    severity: str
    subject: str
    words: str
    nodes: tuple[str, ...]
    blame: str


class Outcome(Struct, frozen=True):
    """What became of one row at one number of hosts."""

    row: Row
    count: int
    verdict: Literal["exact", "misnamed", "missed"]
    missing: tuple[str, ...]
    false_alarms: tuple[str, ...]
    wrong_codes: tuple[str, ...]
    codes: Mapping[str, int]
    seconds: float
    outlived: tuple[str, ...]
    headline: str
    errors: str = ""

    @property
    def well(self) -> bool:
        """Whether it is all as the row wants it."""
        return self.verdict == "exact" and not (self.false_alarms or self.wrong_codes or self.outlived or self.late)

    @property
    def late(self) -> bool:
        """Whether the verdict came after the row's deadline."""
        return self.seconds > self.row.deadline_s

    def told(self) -> str:
        """What is not as it should be; empty where all is well."""
        parts: list[str] = [self.verdict if self.verdict != "exact" else ""]
        parts += [f"expected {each}" for each in self.missing]
        parts += [f"false alarm {each}" for each in self.false_alarms]
        parts += [*self.wrong_codes, *self.outlived]
        parts.append(f"{self.seconds:.1f} s, not {self.row.deadline_s:g}" if self.late else "")
        return "; ".join(filter(None, [*parts, "" if self.well else self.errors]))


def read(path: Path, by: str) -> list[Said]:
    """The findings of a report, and what it could not look at and had to; nothing where nobody wrote it."""
    if not path.exists():
        return []
    report: dict[str, Any] = json.loads(path.read_text())
    found = []
    for verdict in report["checks"]:
        for each in verdict["findings"]:
            nodes = each["nodes"] or ([verdict["node"]] if verdict["node"] else [])
            seen = "; ".join(" ".join(filter(None, (one["source"], one["text"]))) for one in each["evidence"])
            words = f"{each['message']} ({seen})"
            found.append(Said(by, verdict["id"], each["severity"], each["subject"], words, tuple(nodes), each["blame"]))
        if verdict["status"] == "unknown" and verdict["required"]:
            found.append(Said(by, verdict["id"], UNKNOWN, "", verdict["why"], (verdict["node"] or "",), ""))
    return found


def score(setup: Setup, row: Row, said: Sequence[Said], done: Mapping[str, Completed]) -> Outcome:
    """Compare what was said with what the row wants."""
    found = _found(setup, row.expect, said)
    if row.instead and None in found.values():
        found = _found(setup, row.instead, said)
        row = replace(row, codes=row.codes._replace(others=row.codes.hub))  # without that node no job can start
    missing = tuple(f"{each.id} {_nodes(each, setup)} by {by}" for (each, by), hit in found.items() if hit is None)
    hits = [hit for hit in found.values() if hit]
    loud = [each for each in said if each.severity in MATTERS]
    known = {*row.also, *(each.id for each, _ in found)}
    stray = [each for each in loud if each.id not in known or (each.id not in row.also and each not in hits)]
    repeated = {(each.id, each.subject, each.nodes) for each in hits}
    stray = [each for each in stray if (each.id, each.subject, each.nodes) not in repeated]
    verdict: Literal["exact", "misnamed", "missed"] = "exact" if not missing else "misnamed" if loud else "missed"
    codes = {name: each.code for name, each in done.items()}
    free = {name: each for name, each in done.items() if not (row.frozen and name == setup.victim.name)}
    return Outcome(
        row, len(setup.lab.hosts), verdict, missing,
        tuple(dict.fromkeys(f"{s.id} {s.subject} {','.join(s.nodes)} by {s.by}: {s.words[:160]}" for s in stray)),
        tuple(_wrong(setup, row, codes, said)), codes,
        max((each.seconds for each in free.values()), default=0.0),
        tuple(f"{name} ran {each.seconds:.1f} s" for name, each in free.items()
              if each.timed_out or each.seconds > row.timeout_s + LATE_S),
        "; ".join(f"{hit.id} {hit.subject}: {hit.words[:150]}" for hit in hits[:1]),
        " | ".join(dict.fromkeys(line for each in done.values() for line in each.err.splitlines()[-1:]))[:300],
    )  # fmt: skip


def _found(setup: Setup, wanted: Sequence[Named], said: Sequence[Said]) -> dict[tuple[Named, str], Said | None]:
    """What was wanted of which report, and the finding that is it."""
    pairs = [(each, by) for each in wanted for by in setup.expand([each.by])]
    return {(each, by): next((s for s in said if s.by == by and _fits(each, s, setup)), None) for each, by in pairs}


def _nodes(each: Named, setup: Setup) -> tuple[str, ...]:
    two = len(setup.lab.hosts) == 2 and each.of_two is not None
    return tuple(setup.expand((each.of_two or ()) if two else each.nodes))


def _fits(wanted: Named, said: Said, setup: Setup) -> bool:
    return (
        (said.id, said.severity) == (wanted.id, wanted.severity)
        and sorted(said.nodes) == sorted(_nodes(wanted, setup))
        and setup.say(wanted.subject) in said.subject
        and setup.say(wanted.says) in said.words
        and wanted.blame in ("", said.blame)
    )


def _wrong(setup: Setup, row: Row, codes: Mapping[str, int], said: Sequence[Said]) -> list[str]:
    """Exit codes that are not the row's."""
    wanted = dict.fromkeys(codes, row.codes.others)
    wanted |= {setup.victim.name: row.codes.victim}
    wanted |= {setup.hub.name: row.codes.hub} if setup.victim is not setup.hub else {}
    blind = [f"{s.id} of {','.join(s.nodes)}: {s.words[:100]}" for s in said if s.severity == UNKNOWN]
    unknown = f" (not looked at: {'; '.join(dict.fromkeys(blind))})" if blind else ""
    return [
        f"{name} exits {codes[name]}, not {code}{unknown if codes[name] == 3 else ''}"
        for name, code in wanted.items()
        if code is not None and codes.get(name, code) != code
    ]
