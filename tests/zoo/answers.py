"""What a described machine answers: files kept in memory, and texts for everything that is no file.

A file below one of `KNOWN` that nobody described is not there, nor is a command in `NOT_INSTALLED`; a question about
anything else is an error of the description, for the zoo must not make up what it was never told.
"""

import fnmatch
import json
import re
from collections.abc import Callable
from functools import reduce

from ncclprobe.host import SAMPLE, Question
from ncclprobe.model.errors import Denied, HostError, Missing, NotCaptured

_KNOWN = (
    "/.dockerenv/ /dev/ /etc/nccl.conf/ /etc/nvidia-imex/ /home/user/.nccl.conf/ /opt/ /proc/device-tree/ "
    "/proc/driver/nvidia/ /proc/net/ /root/.nccl.conf/ /run/.containerenv/ /run/cloud-init/ "
    "/run/nvidia-fabricmanager/ /sys/bus/pci/devices/ /sys/class/dmi/ /sys/class/infiniband/ "
    "/sys/class/infiniband_verbs/ /sys/class/net/ /sys/devices/system/cpu/cpu0/cpufreq/ /sys/devices/system/node/ "
    "/sys/fs/cgroup/ /sys/hypervisor/ /sys/kernel/mm/memory_peers/ /sys/module/nvidia_peermem/ /usr/lib/ /usr/lib64/ "
    "/usr/local/"
)
KNOWN = tuple(_KNOWN.split())
NOT_INSTALLED = ("nvidia-smi", "nv-fabricmanager", "nvidia-imex-ctl")  # unless the description says so
_ROW_BYTES = 16


class UndescribedError(Exception):
    """A collector asks what the description of a machine says nothing about. No HostError: it must not pass."""


class Answers:
    """A host made of a description. `said` holds what is no file, `programs` those questions that take a function."""

    def __init__(self) -> None:
        self.said: dict[Question, str | HostError] = {}
        self.programs: dict[str, Callable[..., str]] = {}
        self._files: dict[str, str | bytes] = {}
        self._links: dict[str, str] = {}
        self._folders: dict[str, set[str]] = {}
        self._closed: set[str] = set()

    def write(self, path: str, content: str | bytes) -> None:
        """A file; text gets the newline at its end that the kernel's have."""
        self._files[path] = content if isinstance(content, bytes) or content.endswith("\n") else f"{content}\n"
        self._enter(path)

    def link(self, path: str, target: str) -> None:
        """A symbolic link. Files are also kept below it: the target's own path is not."""
        self._links[path] = target
        self._enter(path)

    def folder(self, path: str) -> None:
        """A folder that may be empty."""
        self._folders.setdefault(path, set())
        self._enter(path)

    def close(self, path: str) -> None:
        """Let this user neither read nor open a file."""
        self._closed.add(path)

    def run(self, command: str, text: str | HostError) -> None:
        """What a command prints."""
        question: Question = ("run", *command.split())
        self.said[question] = text

    def _enter(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        if above and name not in self._folders.setdefault(above, set()):
            self._folders[above].add(name)
            self._enter(above)

    def ask(self, *question: str | int) -> str:
        """The answer. Raises HostError where the machine refuses, UndescribedError where nobody said."""
        if question in self.said:
            answer = self.said[question]
            if isinstance(answer, HostError):
                raise type(answer)(str(answer))
            return answer
        kind, *rest = question
        if kind == SAMPLE:
            raise NotCaptured(f"nobody measured {rest[0]} on a machine that is described")
        if kind in self.programs:
            return self._program(str(kind), rest)
        if kind == "run" and rest[0] in NOT_INSTALLED:
            raise Missing(f"{rest[0]}: not there")
        if kind not in _ASKING:
            raise UndescribedError(f"the zoo was never told: {' '.join(map(str, question))}")
        return self._file(str(kind), [str(part) for part in rest])

    def _program(self, kind: str, arguments: list[str | int]) -> str:
        try:
            return self.programs[kind](*arguments)
        except (LookupError, TypeError, ValueError) as error:  # the engine would take it for an answer
            raise UndescribedError(f"{kind} {arguments}: {error!r}") from error

    def _file(self, kind: str, rest: list[str]) -> str:
        what = " ".join((kind, *rest))
        if rest[0] in self._closed and kind not in ("stat", "access"):
            raise Denied(f"{what}: permission denied")
        try:
            return _ASKING[kind](self, *rest)
        except KeyError:
            if not f"{rest[0]}/".startswith(KNOWN):
                raise UndescribedError(f"the zoo was never told: {what}") from None
            raise Missing(f"{what}: not there") from None

    def _read(self, path: str) -> str:
        content = self._files[path]
        return content if isinstance(content, str) else content.decode()

    def _bytes(self, path: str) -> str:
        data = self._files[path]
        assert isinstance(data, bytes)
        rows = {f"{at:#05x}": data[at : at + _ROW_BYTES] for at in range(0, len(data), _ROW_BYTES)}
        return json.dumps({"length": len(data), "rows": {at: row.hex() for at, row in rows.items() if any(row)}})

    def _names(self, path: str, pattern: str = "*") -> str:
        return json.dumps(sorted(name for name in self._folders[path] if fnmatch.fnmatchcase(name, pattern)))

    def _among(self, path: str, *names: str) -> str:
        return json.dumps([name for name in names if name in self._folders[path]])

    def _texts(self, path: str, but: str = "") -> str:
        texts = {name: self._read(f"{path}/{name}").strip() for name in sorted(self._folders[path])}
        return json.dumps({name: text for name, text in texts.items() if not but or text != but})

    def _matching(self, path: str, pattern: str) -> str:
        return "".join(line for line in self._read(path).splitlines(keepends=True) if re.search(pattern, line))

    def _fields(self, path: str, *keys: str) -> str:
        whole = json.loads(self._read(path))
        found = {key: reduce(lambda level, part: (level or {}).get(part), key.split("."), whole) for key in keys}
        return json.dumps({key: value for key, value in found.items() if value is not None})

    def _open(self, path: str) -> str:
        self._read(path)
        return "true"

    def _access(self, path: str) -> str:
        self._read(path)
        return json.dumps(dict.fromkeys(("read", "write"), path not in self._closed))


_ASKING: dict[str, Callable[..., str]] = {
    "read": Answers._read, "conf": Answers._read, "bytes": Answers._bytes, "json": Answers._fields,
    "list": Answers._names, "files": Answers._texts, "lines": Answers._matching,
    "link": lambda self, path: self._links[path], "open": Answers._open, "access": Answers._access,
    "stat": lambda self, path: self._read(path), "elf": Answers._read, "among": Answers._among, "module": Answers._read,
}  # fmt: skip
