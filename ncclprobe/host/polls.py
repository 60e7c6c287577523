"""What a polling loop checks repeatedly, read from its source. No source text leaves this module."""

import os
import stat
from collections.abc import Iterator, Sequence

from ncclprobe.host.deadlines import within
from ncclprobe.host.waits import BLOCKED_S
from ncclprobe.model.errors import HostError

_ASKED: Sequence[tuple[str, Sequence[str]]] = (
    ("work", ("is_completed",)),
    ("key", ("store.check", ".check([", "store.num_keys")),
    ("queue", ("get_nowait", "put_nowait", "queue.Empty", ".empty()", ".qsize()")),
    ("process", (".poll()", ".is_alive()", "os.waitpid", "pid_exists", "os.kill(")),
    ("event", (".is_set()",)),
    ("lock", ("O_EXCL", "LOCK_NB", "blocking=False", "FileExistsError", "os.mkdir(", "os.link(")),
    ("server", ("requests.get", "requests.post", "requests.head", "urlopen", "httpx.", "connect_ex", ".connect(",
                "create_connection", "ConnectionRefusedError", "ConnectionError")),
    ("file", ("os.path.exists", ".exists()", ".is_file()", ".is_dir()", "path.isfile", "path.isdir", "glob(",
              "os.listdir", "os.scandir", "getsize", "os.stat(", ".stat()", "os.access", "FileNotFoundError")),
)  # fmt: skip
"""What a loop may poll, and the calls and exceptions that reveal it."""
_OF_STORE = ("store.get(", "store.wait(", "store.multi_get(")
_LOOPS = ("while ", "while(", "for ", "async for ")
_SCOPES = ("def ", "class ", "async def ")
_MOST_LINES, _NEAR, _MOST_BYTES = 24, 8, 2 << 20
"""A longer loop does more than poll, and may pause for another reason."""


def asked(pid: str, frames: Sequence[tuple[str, int]]) -> tuple[str, str, int] | None:
    """Return what the pausing loop polls, the words that show it and their line; None: unknown.

    `frames` are file and line of the program's functions, innermost first; a caller may have passed the condition to a
    function that repeats it.
    """
    for depth, (path, line) in enumerate(frames):
        lines = _lines(pid, path)
        if not 0 < line <= len(lines):
            return None
        if not depth and (found := next((word for word in _OF_STORE if word in lines[line - 1]), "")):
            return "store-key", found.strip("("), line
        if not depth and not any(word in lines[line - 1] for word in ("sleep", "wait")):
            return None
        near = _loop(lines, line - 1) if not depth else _statement(lines, line - 1)
        for at in near:
            for kind, words in _ASKED:
                if found := next((word for word in words if word in lines[at]), ""):
                    return f"polls-{kind}", found.strip(".()["), at + 1
    return None


def _loop(lines: Sequence[str], at: int) -> list[int]:
    """Return the lines of the innermost loop around line `at`, its head first; empty: no loop, or a long one."""
    head, inner = at, _indent(lines[at]) + 1
    while not (_indent(lines[head]) < inner and lines[head].lstrip().startswith(_LOOPS)):
        if lines[head].strip() and _indent(lines[head]) < inner:
            inner = _indent(lines[head])
            if lines[head].lstrip().startswith(_SCOPES):
                return []
        head -= 1
        if head < 0 or at - head > _MOST_LINES:
            return []
    end = _end(lines, head)
    if end - head > _MOST_LINES:
        return []
    inner_loops = [n for n in range(head + 1, end) if lines[n].lstrip().startswith(_LOOPS)]
    apart = {n for inner in inner_loops for n in range(inner, _end(lines, inner))}
    return [n for n in range(head, end) if n not in apart and (n == head or abs(n - at) <= _NEAR)]


def _end(lines: Sequence[str], head: int) -> int:
    """Return the line after the block that line `head` begins."""
    rest = range(head + 1, len(lines))
    return next((n for n in rest if lines[n].strip() and _indent(lines[n]) <= _indent(lines[head])), len(lines))


def _statement(lines: Sequence[str], at: int) -> Iterator[int]:
    """Yield the lines of the statement that begins in line `at`, by its parentheses."""
    opened = 0
    for number in range(at, min(at + _NEAR, len(lines))):
        yield number
        opened += lines[number].count("(") - lines[number].count(")")
        if opened <= 0:
            return


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _lines(pid: str, path: str) -> Sequence[str]:
    """Return the lines of a program's file as its process sees it; empty if it cannot be read quickly."""

    def read() -> Sequence[str]:
        own = f"/proc/{pid}/root{path}" if path.startswith("/") else f"/proc/{pid}/cwd/{path}"
        fd = os.open(own, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return []
            return os.read(fd, _MOST_BYTES).decode(errors="replace").splitlines()
        finally:
            os.close(fd)

    try:
        return within(BLOCKED_S, read, path)
    except HostError:
        return []
