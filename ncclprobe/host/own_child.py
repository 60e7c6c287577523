"""Start a Python process of ours without running code of the working directory; nothing else starts one.

Python searches the working directory for modules first if it is given ``-m`` or ``-c``, and if PYTHONPATH has an empty
or relative entry. In a folder that others may write to, such as /tmp, their code would run with our rights. So a child
gets its path before it imports anything. ``-P`` does the same for what Python imports before that (3.13: linecache);
3.10 does not know it, and imports nothing then.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

import ncclprobe
from ncclprobe.host.command import Stream, start

_BEGIN = (
    "import sys; end = 3 + int(sys.argv[2]); (module, _, name), sys.path[:] = sys.argv[1].partition(':'), "
    "sys.argv[3:end]; arguments = sys.argv[end:]; del sys.argv[1:]; from importlib import import_module; "
    "getattr(import_module(module), name)(*arguments)"
)
_PASSED_ON = {"isolated": "-I", "ignore_environment": "-E", "no_user_site": "-s", "no_site": "-S"}
"""Safety flags that our own Python may have been started with (sys.flags), and the child's options for them."""


def start_own(
    entry: str,
    *arguments: str,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = subprocess.DEVNULL,
    stderr: Stream = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    variables: Mapping[str, str] | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a process that calls `entry`, ``module:function``, with `arguments`. Raises OSError.

    Like :func:`ncclprobe.host.command.start`, it leads its own session.
    """
    return start(
        command(entry, *arguments),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=pass_fds,
        variables={"PYTHONSAFEPATH": "1", **(variables or {})},
    )


def command(entry: str, *arguments: str) -> list[str]:
    """Return the command line of such a process, for others to start."""
    path = import_path()
    flags = [flag for name, flag in _PASSED_ON.items() if getattr(sys.flags, name)]
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe, *flags, "-c", _BEGIN, entry, str(len(path)), *path, *arguments]


def import_path() -> list[str]:
    """Return the module search path for a child: ours, without entries that mean the folder we were started in."""
    elements = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    ours = _absolute(ncclprobe.__path__[0]).rpartition("/")[0]
    named = {os.path.normpath(each) for each in elements if each.startswith("/")}
    by_place = {_absolute(each) for each in ("", *elements) if not each.startswith("/")} - named
    found = [ours if _absolute(each) == ours else each for each in sys.path]
    kept = [each for each in found if each == ours or (each.startswith("/") and _absolute(each) not in by_place)]
    return list(dict.fromkeys((*kept, ours)))


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)  # noqa: PTH100 - a pathlib path of "" is "."
    except FileNotFoundError:  # the working directory was removed
        return ""
