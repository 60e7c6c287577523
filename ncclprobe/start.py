"""Start ncclprobe as a program. Signals are taken over first, because imports take time and a signal may arrive."""

from __future__ import annotations

import contextlib
import gc
import os
import sys

from ncclprobe import __version__, signals

_OBJECTS_BEFORE_GC = 200_000
"""Values hold no cycles, and a doctor of one node makes fewer objects: searching was a sixth of a start."""
_BROKEN, _INCONCLUSIVE = 1, 3  # of model.findings.ExitCode, which cannot be imported here
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def program(*command: str) -> NoReturn:
    """Run the command line after the words `command`, and end this process with its exit code."""
    signals.begin()
    signals.take_over()
    gc.set_threshold(_OBJECTS_BEFORE_GC)
    if [*command, *sys.argv[1:]] == ["--version"]:
        # Scripts and probes ask this first: without the 40 ms of the parsers' imports.
        with contextlib.suppress(OSError):  # where it cannot be written, the usual way says so
            os.write(1, f"ncclprobe {__version__}\n".encode())
            signals.leave(0)
    try:
        _import_msgspec()
        from ncclprobe.commands import main
    except MemoryError:
        _refuse(signals.NO_MEMORY, _INCONCLUSIVE)
    except ImportError as error:
        short = "annot allocate memory" in str(error) or "failed to map segment" in str(error)  # the loader's words
        _refuse(signals.NO_MEMORY if short else f"cannot start: {error}", _INCONCLUSIVE if short else _BROKEN)
    signals.run(main, [*command, *sys.argv[1:]])


def _import_msgspec() -> None:
    """Import msgspec with Python's own typing: typing_extensions, which it prefers, is an eighth of a start."""
    preferred = "typing_extensions"
    if preferred not in sys.modules:
        sys.modules[preferred] = None  # type: ignore[assignment]  # of this program alone, which has no other thread
        try:
            import msgspec  # noqa: F401
        finally:
            del sys.modules[preferred]


def _refuse(why: str, code: int) -> NoReturn:
    sys.stderr.write(f"ncclprobe: {why}; nothing was judged\n")
    signals.leave(code)
