"""The live machine: how each kind of question is answered, each with its deadline.

Nothing may hang: threads and children that do not return are abandoned. The kernel log is kept without process names.
"""

import fnmatch
import importlib.util
import json
import os
import pwd
import re
import resource
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclprobe.host import SAMPLE, WITHHELD, Question, distributions, elf
from ncclprobe.host.command import as_host_error, run
from ncclprobe.host.deadlines import QUESTION_S, within
from ncclprobe.host.nvml_child import NvmlChild
from ncclprobe.host.settings import as_started, encodable, recorded
from ncclprobe.model import bounds
from ncclprobe.model.errors import Denied, Failed, HostError, Missing, NotCaptured, OutOfTime, TimedOut

if TYPE_CHECKING:
    from ncclprobe.host.path_child import PathChild
    from ncclprobe.host.processes import ProcessChild

RING = "/dev/kmsg"
JOURNAL = ("journalctl", "-k", "-o", "short-monotonic", "--no-pager", "-q")
_JOURNAL_PATIENCE_S = 10.0
_RECORD_BYTES = 64 << 10  # more than any record: the kernel's own limit is 8 KiB (PRINTK_MESSAGE_MAX)
_NAME = re.compile(r"\bname=[^,]*")
_JOURNAL_LINE = re.compile(r"\[\s*(\d+\.\d+)\] (?:\S+ kernel: )?(.*)")

Line = tuple[float, str]
"""Seconds since boot, and the message."""


def matching(pattern: str) -> dict[str, Any]:
    """Return the newest bounds.KERNEL_LINES lines of this boot that match `pattern`.

    `source`; `lines` as [seconds since boot, message]; `dropped`, the number of older ones; `oldest_s`, the time of the
    oldest line that still exists: a full ring buffer has lost earlier ones. Raises Denied if this user may read neither
    log (kernel.dmesg_restrict, no membership of systemd-journal), Missing if neither exists.
    """
    try:
        source, (oldest_s, found) = RING, _ring_lines(pattern)
    except OSError as error:
        source, lines = " ".join(JOURNAL[:2]), _journal(as_host_error(error, RING))
        oldest_s, found = lines[0][0], [line for line in lines if re.search(pattern, line[1])]
    return {
        "source": source,
        "lines": [(at, _NAME.sub("name=-", text)) for at, text in found[-bounds.KERNEL_LINES :]],
        "dropped": max(0, len(found) - bounds.KERNEL_LINES),
        "oldest_s": oldest_s,
    }


def _ring_lines(pattern: str) -> tuple[float, list[Line]]:
    """Return the time of the oldest record, and the matching lines: few of tens of thousands match."""
    records = list(_ring())
    sieve = re.compile(pattern.encode())
    oldest = next(filter(None, map(ring_line, records)), (0.0, ""))
    lines = filter(None, (ring_line(each) for each in records if sieve.search(each)))
    return oldest[0], [line for line in lines if re.search(pattern, line[1])]


def _ring() -> Iterator[bytes]:
    """Yield every record of the ring buffer. Reading does not consume records."""
    ring = os.open(RING, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while True:
            try:
                yield os.read(ring, _RECORD_BYTES)
            except BrokenPipeError:  # overwritten while we read: go on with the oldest there is
                continue
    except BlockingIOError:
        return
    finally:
        os.close(ring)


def ring_line(record: bytes) -> Line | None:
    """Parse ``priority,sequence,microseconds,flags;message`` (Documentation/ABI/testing/dev-kmsg)."""
    head, _, body = record.decode(errors="replace").partition(";")
    fields = head.split(",", 3)
    if len(fields) < 3 or not re.fullmatch(r"[0-9]{1,18}", fields[2]):
        return None
    return int(fields[2]) / 1e6, body.partition("\n")[0].replace("\\x0a", " ")


def _journal(ring: HostError) -> list[Line]:
    """Return the journal's kernel lines. `ring`: the error of the ring buffer, raised if the journal does not help.

    A user who may not read the system's journal gets no lines and no error. Every boot has kernel messages, so an empty
    answer counts as a refusal.
    """
    try:
        lines = _journal_lines(run(JOURNAL, _JOURNAL_PATIENCE_S).splitlines())
    except Missing:
        raise ring from None
    except HostError as refusal:
        raise Denied(f"{ring}; {refusal}") from None
    if not lines:
        raise Denied(f"{ring}; {' '.join(JOURNAL[:2])} shows nothing to this user")
    return lines


def _journal_lines(lines: Iterable[str]) -> list[Line]:
    matches = map(_JOURNAL_LINE.fullmatch, lines)
    return [(float(match[1]), match[2]) for match in matches if match]


_EVERYTHING = ["nvidia-smi", "-q", "-x"]
_UNREAD = re.compile(r"<(serial|board_id|process_name|pid|value|supported_graphics_clock)>[^<]*</\1>")
"""Parts that never enter a capture: other users' processes, board serial numbers, and thousands of clocks."""

_RULES = ["nft", "-j", "list", "chain"]
_CHUNK_BYTES = 64 << 10
_PACKAGES = (
    "torch",
    *(f"nvidia-nccl{suffix}" for suffix in ("", "-cu11", "-cu12", "-cu13")),
    *(f"nvidia-cuda-runtime{suffix}" for suffix in ("", "-cu11", "-cu12", "-cu13")),
    *(f"nvidia-cudnn{suffix}" for suffix in ("-cu11", "-cu12", "-cu13")),
    "nvidia-ml-py",
    "pynvml",
)


class LiveHost:
    """Answers from this machine.

    `recordable` are the environment variables whose value may be recorded, `looks_like_ours` those whose name may.
    `deadline` is a time.monotonic() after which every question is refused: the run's own limit. `given` are samples
    from the command line, such as which node this is.
    """

    def __init__(
        self,
        recordable: Collection[str],
        looks_like_ours: Callable[[str], bool],
        deadline: float = float("inf"),
        given: Mapping[Question, str] | None = None,
    ) -> None:
        self._recordable = recordable
        self._looks_like_ours = looks_like_ours
        self._deadline = deadline
        self._given = given or {}
        self._nvml = NvmlChild()
        self._paths: dict[str, PathChild] = {}
        self._processes: ProcessChild | None = None

    def ask(self, *question: str | int) -> str:
        """Return the machine's answer. Raises the HostError with the reason if there is none."""
        kind, *rest = (str(part) for part in question)
        wanted_s = QUESTION_S.get(" ".join((kind, *rest[:1])), QUESTION_S.get(kind, 2.0))
        left_s = self._deadline - time.monotonic()
        try:
            return self._ask(kind, rest, question, min(wanted_s, left_s))
        except TimedOut as error:
            if left_s < wanted_s:
                raise OutOfTime(f"{error}, which was all that --timeout left") from None
            raise

    def _ask(self, kind: str, rest: list[str], question: Question, patience_s: float) -> str:
        if kind == "env":
            return self._env()
        if kind == SAMPLE and question in self._given:
            return self._given[question]
        if kind == SAMPLE:
            raise NotCaptured(f"{rest[0]}: not measured")
        if kind == "conf":
            return within(patience_s, lambda: self._conf(rest[0]), " ".join((kind, *rest)))
        if kind == "run":
            said = run(rest, patience_s)
            if rest[:-3] == _RULES:
                return statement_types(said)
            return _UNREAD.sub("", said) if rest == _EVERYTHING else said
        if kind == "nvml":
            return self._nvml.call(rest[0], *question[2:], patience_s=patience_s)
        if kind == "data":
            return self._data(rest[0], rest[1], patience_s)
        if kind in ("ranks", "process"):
            return self._of_job(kind, rest, patience_s)
        return within(patience_s, lambda: _answer_here(kind, rest), spell_question(kind, rest))

    def _data(self, what: str, path: str, patience_s: float) -> str:
        from ncclprobe.host.path_child import PathChild  # imports that a doctor without --path does without

        return json.dumps(self._paths.setdefault(path, PathChild(path)).ask(what, patience_s))

    def _of_job(self, kind: str, rest: Sequence[str], patience_s: float) -> str:
        from ncclprobe.host.processes import ProcessChild  # imports that only `attach` needs

        self._processes = self._processes or ProcessChild(self._recordable)
        return self._processes.ask(kind, rest, patience_s)

    def close(self) -> None:
        """Close the children."""
        self._nvml.close()
        if self._processes:
            self._processes.close()
        for child in self._paths.values():
            child.close()

    def _env(self) -> str:
        seen = {
            encodable(name): recorded(name, value) if name in self._recordable else None
            for name, value in sorted(as_started().items())
            if name in self._recordable or self._looks_like_ours(name)
        }
        return json.dumps(seen)

    def _conf(self, path: str) -> str:
        """Return a file of NAME=value lines; lines that may not be recorded are blank, or a name without its value."""
        return "\n".join(map(self._conf_line, _read(path).split("\n")))

    def _conf_line(self, line: str) -> str:
        name, equals, value = line.partition("=")
        if not equals and not line.startswith("#"):
            words = re.split(r"[\s:]+", line)
            return next((word for word in words if word in self._recordable or self._looks_like_ours(word)), "")
        plain = name.strip("# \t\r")
        if line.startswith("#") or not (plain in self._recordable or self._looks_like_ours(plain)):
            return ""
        return f"{name}={recorded(plain, value) if plain in self._recordable else WITHHELD}"


def statement_types(rules: str) -> str:
    """Return only the statement types in nft's rules: addresses and comments belong to the site."""
    try:
        found = [item["rule"]["expr"] for item in json.loads(rules)["nftables"] if "rule" in item]
        kept = [[{name: of if name == "xt" else None for name, of in part.items()} for part in each] for each in found]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Failed(f"{' '.join(_RULES)}: its answer is not understood") from None
    return json.dumps({"nftables": [{"rule": {"expr": each}} for each in kept]})


def spell_question(kind: str, rest: Sequence[str]) -> str:
    """Describe the question for a reader, without its patterns."""
    return _SPOKEN.get(kind) or " ".join((kind, *rest[:1]))


def _answer_here(kind: str, rest: Sequence[str]) -> str:
    """Answer from this process's own sources. Raises Failed if the kernel's files are hidden: then nothing is missing
    for certain.
    """
    try:
        answer = SOURCES[kind](*rest)
    except (FileNotFoundError, NotADirectoryError):
        if rest and (why := hidden(rest[0])):
            raise Failed(f"{kind} {rest[0]}: {why}") from None
        raise
    if kind == "list" and answer == "[]" and (why := hidden(rest[0])):
        raise Failed(f"list {rest[0]}: {why}")
    return answer


def hidden(path: str) -> str:
    """Return why the kernel does not show `path` here, and what would help; empty if it shows everything.

    A container may lack /proc or /sys, or have an empty file system mounted over part of it.
    """
    for root, always, parts in _KERNEL_TREES:
        if path.startswith(f"{root}/"):
            shown = f"start the container with the machine's {root} (docker run -v {root}:{root}:ro)"
            if not Path(always).exists():
                return f"{root} is hidden from this process; {shown}"
            seen = next(each for each in (Path(path), *Path(path).parents) if each.exists())
            if path.startswith(parts) and seen.stat().st_dev != Path(root).stat().st_dev:
                return f"another file system is mounted over {seen}; {shown}"
    return ""


def _read(path: str) -> str:
    """Read a file's text, at most bounds.ANSWER_BYTES of it.

    Reads in chunks: the kernel allocates the requested size of a /proc/sys file at once.
    """
    text = bytearray()
    with FileIO(path) as file:
        while len(text) < bounds.ANSWER_BYTES and (chunk := file.read(_CHUNK_BYTES)):
            text += chunk
    return text.decode(errors="replace")


def _bytes(path: str) -> str:
    """Return a binary file's length, and its non-zero 16-byte rows in hex, by offset.

    The kernel shows 64 bytes of a PCI config space to users without CAP_SYS_ADMIN, and 256 or 4096 to others.
    """
    with Path(path).open("rb", buffering=0) as file:
        data = file.read(_CHUNK_BYTES)
    rows = {f"{at:#05x}": data[at : at + 16].hex() for at in range(0, len(data), 16) if any(data[at : at + 16])}
    return json.dumps({"length": len(data), "rows": rows})


def _files(path: str, but: str = "") -> str:
    """Return the text of every file of a folder by name, null if unreadable, without files whose text is `but`."""
    texts = {entry.name: _text_or_none(entry) for entry in sorted(Path(path).iterdir()) if entry.is_file()}
    return json.dumps({name: text for name, text in texts.items() if not but or text != but})


def _text_or_none(path: Path) -> str | None:
    try:
        return _read(str(path)).strip()
    except OSError:
        return None


def _open(path: str) -> str:
    """Check whether a device opens for reading and writing. access(2) ignores a container's device cgroup."""
    os.close(os.open(path, os.O_RDWR))
    return "true"


def _lines(path: str, pattern: str) -> str:
    """Return the matching lines of a file: of a table of all connections, only the relevant ones."""
    wanted = re.compile(pattern)
    return "".join(line for line in _read(path).splitlines(keepends=True) if wanted.search(line))


_MOST_VALUE = 200


def _fields(path: str, *keys: str) -> str:
    """Return the requested fields of a JSON file by their dotted keys; only short texts and numbers."""
    try:
        whole = json.loads(_read(path))
    except (ValueError, RecursionError):
        raise Failed(f"{path}: not JSON") from None
    found = {key: value for key in keys if isinstance(value := _field(whole, key.split(".")), str | int)}
    return json.dumps({key: value for key, value in found.items() if len(str(value)) <= _MOST_VALUE})


def _field(value: Any, parts: Sequence[str]) -> Any:
    for part in parts:
        value = value.get(part) if isinstance(value, dict) else None
    return value


_KVP_KEY, _KVP_VALUE = 512, 2048


def _kvp(path: str, key: str) -> str:
    """Return a value from a Hyper-V key-value pool (hv_kvp_daemon.c of Linux: struct kvp_record)."""
    with Path(path).open("rb", buffering=0) as file:
        data = file.read(_CHUNK_BYTES)
    for at in range(0, len(data), _KVP_KEY + _KVP_VALUE):
        name, value = data[at : at + _KVP_KEY], data[at + _KVP_KEY : at + _KVP_KEY + _KVP_VALUE]
        if name.partition(b"\0")[0] == key.encode():
            return value.partition(b"\0")[0][:_MOST_VALUE].decode(errors="replace")
    raise Missing(f"{path}: no {key}")


def _list(path: str, pattern: str = "*") -> str:
    """List a folder, or the names that match a shell pattern. Unlike glob(3), a missing folder is an error."""
    return json.dumps(sorted(fnmatch.filter(_names(path), pattern)))


def _names(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return [entry.name for entry in entries]


def _existing_names(path: str, *names: str) -> str:
    """Return which of `names` exist in a folder, in their order. A missing folder is an error."""
    here = {*_names(path)}
    return json.dumps([name for name in names if name in here])


def _link(path: str) -> str:
    return str(Path(path).readlink())


def _stat(path: str) -> str:
    """Return a file's device, size and age, and whether this user owns it."""
    seen = Path(path).lstat()
    age_s, mine = round(time.time() - seen.st_mtime, 1), seen.st_uid == os.geteuid()
    return json.dumps({"device": seen.st_dev, "bytes": seen.st_size, "age_s": age_s, "mine": mine})


def _mapped_files(prefix: str) -> str:
    """Return the files below `prefix` that any process has mapped, and how many processes hide their maps."""
    found, hidden = set(), 0
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            found |= set(re.findall(rf"{re.escape(prefix)}\S*", _read(str(maps))))
        except PermissionError:
            hidden += 1
        except OSError:  # it has ended
            continue
    return json.dumps({"paths": sorted(found), "hidden": hidden})


def _access(path: str) -> str:
    return json.dumps({"read": os.access(path, os.R_OK), "write": os.access(path, os.W_OK)})


def _statvfs(path: str) -> str:
    seen = os.statvfs(path)
    return json.dumps({"total": seen.f_blocks * seen.f_frsize, "available": seen.f_bavail * seen.f_frsize})


def _rlimit(name: str) -> str:
    limits = resource.getrlimit(getattr(resource, name))
    return json.dumps([None if value == resource.RLIM_INFINITY else value for value in limits])


def _uname() -> str:
    names = os.uname()
    seen = {"system": names.sysname, "release": names.release, "version": names.version, "machine": names.machine}
    return json.dumps(seen | {"hostname": encodable(names.nodename)})


def _home() -> str:
    """Return this user's home from the password file. Raises Missing if the user is not in it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        raise Missing(f"user {os.getuid()}: no entry in the password file") from None


def _user_limits(uid: str) -> str:
    """Return the lines of limits.conf that apply to a user. Raises Missing if the user is unknown."""
    from ncclprobe.host.user_limits import lines_of  # which only a prolog needs

    return lines_of(uid)


def _resolve(name: str) -> str:
    started = time.monotonic()
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        ours = error.errno in (socket.EAI_MEMORY, socket.EAI_SYSTEM)  # it had no memory or file left to ask with
        raise (OutOfTime if ours else Failed)(f"resolve {name}: {error.strerror}") from None
    addresses = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
    return json.dumps({"addresses": addresses, "seconds": round(time.monotonic() - started, 4)})


def _psutil(function: str) -> str:
    import psutil

    answer = getattr(psutil, function)()
    return json.dumps({name: _plain(value) for name, value in answer.items()}, default=str)


def _wait(seconds: str) -> str:
    """Wait, so that later questions may have other answers."""
    time.sleep(float(seconds))
    return ""


def _server(pid: str, path: str, look: str) -> str:
    """Query torch's worker server in a process; `look` distinguishes repeated questions."""
    from ncclprobe.host.rank_servers import ask_server

    return ask_server(pid, path)


def _dump(pid: str, rank: str, look: str) -> str:
    """Return the flight records that torch writes on request through its pipe."""
    from ncclprobe.host.rank_servers import ask_dump

    return ask_dump(pid, rank)


def _left_dump(pid: str, rank: str) -> str:
    """Return the path of the flight records that a rank wrote by itself."""
    from ncclprobe.host.rank_servers import left_dump

    return left_dump(pid, rank)


def _ras(address: str, look: str, *pids: str) -> str:
    """Query NCCL's RAS of the ranks `pids`."""
    from ncclprobe.host.rank_servers import ask_ras

    return ask_ras(address, pids)


def _counters(folder: str, look: str) -> str:
    """Return the counters of a folder; `look` distinguishes repeated questions."""
    return _files(folder)


def _connections(look: str, *pids: str) -> str:
    """Return the TCP connections of the ranks `pids`."""
    from ncclprobe.host.tcp_sockets import connections

    return connections(pids)


def _sockets_at_port(port: str, *pids: str) -> str:
    """Return the listeners on a TCP port of this node, and the connections accepted there."""
    from ncclprobe.host.tcp_sockets import at_port

    return at_port(int(port), pids)


def _route(address: str) -> str:
    """Return the address that this node would use to send to `address`. Sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asked:
        asked.connect((address, 9))
        return str(asked.getsockname()[0])


def _stacks(pid: str, look: str) -> str:
    """Return the Python stacks of a process."""
    from ncclprobe.host import py_spy

    return py_spy.stacks(pid)


def _numbers(pid: str) -> str:
    """Return the variables in which a program keeps a rank's number and the number of ranks."""
    from ncclprobe.host import py_spy

    return py_spy.numbers(pid)


def _plain(value: Any) -> Any:
    """Convert psutil's named tuples to objects."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {k: getattr(v, "value", v) for k, v in value._asdict().items()}


def _module(name: str) -> str:
    found = importlib.util.find_spec(name)
    if found is None or not found.origin:
        raise Missing(f"Python module {name}: not installed")
    return found.origin


_KERNEL_TREES = (
    ("/proc", "/proc/self/stat", ("/proc/net", "/proc/sys")),
    ("/sys", "/sys/class", ("/sys/class", "/sys/bus", "/sys/devices", "/sys/module")),
)
"""A kernel file tree, a path that always exists in it, and parts over which something may be mounted."""

_SPOKEN = {"kernel_log": "the kernel's log", "ld_cache": "the cache of ld.so"}
SOURCES: dict[str, Callable[..., str]] = {
    "read": _read,
    "lines": _lines,
    "bytes": _bytes,
    "json": _fields,
    "kvp": _kvp,
    "files": _files,
    "list": _list,
    "open": _open,
    "link": _link,
    "stat": _stat,
    "mapped": _mapped_files,
    "elf": lambda path: json.dumps(elf.dynamic(path)._asdict()),
    "elf_texts": lambda path, beginning: json.dumps(elf.texts(path, beginning)),
    "elf_symbols": lambda path, beginning: json.dumps(elf.symbols(path, beginning)._asdict()),
    "elf_objects": lambda path, beginning: json.dumps(elf.objects(path, beginning)),
    "among": _existing_names,
    "ld_cache": lambda *prefixes: json.dumps(elf.cached(*prefixes)),
    "kernel_log": lambda pattern: json.dumps(matching(pattern)),
    "access": _access,
    "statvfs": _statvfs,
    "rlimit": _rlimit,
    "uname": _uname,
    "home": _home,
    "user_limits": _user_limits,
    "resolve": _resolve,
    "psutil": _psutil,
    "packages": lambda: json.dumps(distributions.versions(_PACKAGES)),
    "module": _module,
    "wait": _wait,
    "server": _server,
    "stacks": _stacks,
    "numbers": _numbers,
    "dump": _dump,
    "left_dump": _left_dump,
    "ras": _ras,
    "counters": _counters,
    "connections": _connections,
    "at_port": _sockets_at_port,
    "route": _route,
}
