"""Read the lines around the tables of an nccl-tests log: settings, NCCL's network, started ranks, errors."""

import re
from collections.abc import Mapping

from ncclprobe.model.values import Struct, field

_INFO = re.compile(r"\b(NCCL_[A-Z0-9_]{1,64}) set by environment to (\S{1,256})")
_ASSIGNED = re.compile(
    r"""\b(NCCL_[A-Z0-9_]{1,64})=("[^"]{0,256}"|'[^']{0,256}'|(?:[^\s"',]|,(?![A-Z][A-Z0-9_]{1,64}=)){1,256})"""
)
_GIVEN = re.compile(r"(?:^|\s)(?:-x|-e|--env|-env|-genv|env|export|declare -x)[\s=]*[\"']?$|--export[= ]\S*,?$")
_PROMPT = re.compile(r"^(?:[+$>]+\s*|#\s*\$\s*)?")
_ASSIGNMENTS = re.compile(r"(?:[A-Z_][A-Z0-9_]{0,64}=\S{0,256}\s+)*\s*")
"""Variables of other programs, set before a command."""
_OFI = re.compile(r"NET/OFI .{0,80}\bis efa.{0,40}\(found (\d{1,3}) nics\)")
_STARTED = re.compile(r"\b(?:mpirun|mpiexec|orterun|srun)\b.{0,2000}?\s(?:-np|-n|--np|--ntasks)[ =](\d{1,6})(?=\s|$)")
_VERBS = re.compile(r"NET/IB : Using((?: \[\d{1,3}\][\w.-]{1,40}:\d{1,2}/[A-Za-z]{2,6}){1,64})")
_PORT = re.compile(r"\[\d{1,3}\]([\w.-]{1,40}):\d{1,2}/([A-Za-z]{2,6})")
_NETWORK = re.compile(r"NCCL INFO (?:Using network|Assigned NET plugin) (.{1,40})")
_EFA_OF_100 = 4
"""So many EFA devices have 100 Gb/s each; a node with more of them has devices of several rates."""
_ERRORS = (
    re.compile(r"\bTest (?:NCCL|CUDA) failure \S"),
    re.compile(r"\bNCCL WARN (?:Cuda failure|Call to|NET/|.{0,40}(?:failed|error|invalid|mismatch))", re.IGNORECASE),
    re.compile(r"\b(?:CUDA|NCCL)(?: runtime)? (?:error|failure)\b", re.IGNORECASE),
    re.compile(r"\berror while loading shared libraries\b"),
    re.compile(r"^(?:srun|slurmstepd|mpirun|ssh|bash|docker)\b.{0,60}?(?:error|fatal|not found|denied|refused)", re.I),
)
"""Lines that report why a run ended, first-hand ones first."""
_WARNING = 1


class Context(Struct):
    """The surroundings of one table. `exported`: the part of `settings` that also holds for later tables."""

    settings: dict[str, str] = field(default_factory=dict)
    exported: dict[str, str] = field(default_factory=dict)
    started: int = 0
    command: str = ""
    network: str = ""
    nics: tuple[str, ...] = ()
    errors: dict[int, str] = field(default_factory=dict)

    def following(self) -> "Context":
        """Return what also holds for the next table of the log."""
        return Context(dict(self.exported), dict(self.exported))

    def take(self, line: str) -> None:
        """Read `line`."""
        if "NCCL_" in line:
            self._set(line)
        if found := _STARTED.search(line):
            self.started, self.command = int(found[1]), line.strip()[:160]
        if ports := _VERBS.search(line):
            each = _PORT.findall(ports[1])
            self.nics = tuple(dict.fromkeys(name for name, _ in each))
            self.network = "roce" if all(layer.lower() == "roce" for _, layer in each) else "ib"
        if (found := _OFI.search(line)) and int(found[1]) <= _EFA_OF_100:
            self.network, self.nics = "efa", tuple(map(str, range(int(found[1]))))
        if named := _NETWORK.search(line):
            self.network = _network(named[1]) or self.network
        self._note_error(line)

    def _set(self, line: str) -> None:
        for name, value in assigned(line).items():
            self.settings.setdefault(name, value)
            if re.match(r"[+$>\s]*(?:export|declare -x)\s", line):
                self.exported[name] = value
        for name, value in _INFO.findall(line):
            self.settings[name] = value.rstrip(".")

    def _note_error(self, line: str) -> None:
        """Keep the first line of each kind, and NCCL's last warning before the test failed by it."""
        for rank, pattern in enumerate(_ERRORS):
            last = rank == _WARNING and 0 not in self.errors
            if (rank not in self.errors or last) and pattern.search(line):
                self.errors[rank] = line.strip()[:160]
                return

    def failure(self, *, ended: bool) -> str:
        """Return why a run with rows failed: by nccl-tests' own message, or its launcher's if the table has no end."""
        return self.errors.get(0, "") or ("" if ended else self.errors.get(len(_ERRORS) - 1, ""))

    @property
    def error(self) -> str:
        """Return the line that best explains why the run ended: NCCL's, if the test saw only its code. Empty
        if none.
        """
        if "unhandled" in self.errors.get(0, "") and _WARNING in self.errors:
            return self.errors[_WARNING]
        return self.errors[min(self.errors)] if self.errors else ""


def assigned(line: str) -> Mapping[str, str]:
    """Return NCCL's variables that a command in `line` sets: ``-x NAME=VALUE``, ``export NAME=VALUE``, ``NAME=VALUE``.

    A comment sets none, nor does a sentence that mentions a variable.
    """
    found: dict[str, str] = {}
    text = line.strip()
    if text.startswith("#") and not re.match(r"#\s*\$", text):
        return found
    end = -1
    for each in _ASSIGNED.finditer(text):
        before = text[: each.start()]
        chained = end >= 0 and not text[end : each.start()].strip(" ,\t")
        first = bool(_ASSIGNMENTS.fullmatch(_PROMPT.sub("", before, count=1)))
        if chained or first or _GIVEN.search(before):
            found[each[1]] = each[2].strip("\"'")
            end = each.end()
    return found


def _network(words: str) -> str:
    """Return our word for the network that NCCL names; empty if unknown."""
    name = words.lower()
    known = {"socket": "sockets", "aws": "efa", "ofi": "efa", "fastrak": "tcpxo", "gpudirecttcpx": "tcpx"}
    return next((ours for theirs, ours in known.items() if theirs in name), "")
