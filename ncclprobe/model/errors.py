"""The errors that can occur, and who catches each.

::

    NcclprobeError
    ├─ UsageError      flags, an unreadable capture or expectation   main(): one line on stderr, exit 2
    ├─ HostError       the machine did not answer                    collect(): Absent
    │   ├─ Missing         the file, command or library does not exist
    │   ├─ Denied          it exists, but this user may not read it
    │   ├─ TimedOut        it did not answer before its deadline
    │   ├─ OutOfTime       this run had no time, thread or memory left to ask
    │   ├─ Failed          it answered with an error of its own
    │   └─ NotCaptured     the replayed capture does not have this question
    ├─ ParseError      an answer we do not understand                collect(): Absent, judge(): UNKNOWN; our bug
    ├─ Unlearned       the facts do not decide a check               judge(): UNKNOWN, with the reason
    ├─ ProbeError      a rank is lost, a measurement did not end     a finding naming rank and phase
    ├─ WireError       a conversation with another process failed    its kind becomes an outcome: Reach, Path, Trouble
    ├─ WrongPeer       another node answers at an address            walk_path(): the outcome wrong-peer
    ├─ Refused         rank 0 rejects this node                      run_worker(): only this node is judged
    ├─ CannotListen    rank 0 cannot open the port                   run_coordinator(): only this node is judged
    └─ StoreError      torchrun's store did not serve                run_coordinator(), run_worker(): only this node

The last five are defined beside the code that raises them: ``wire``, ``mesh.walk`` and ``rendezvous``.

Any other exception in a check makes that one verdict UNKNOWN; the other checks still run.
"""

import re
from collections.abc import Iterable, Sequence

_MOST_CHARACTERS, _MOST_SUGGESTED, _AS_NEAR = 80, 3, 0.1
_LAST_ERROR, _TRACE = "Last error:", ("Exception raised from ", "frame #")
_MOST_LINES, _MOST_OF_A_LINE, _MOST_OF_A_REASON = 50, 4000, 600
TAKEN = "busy or unavailable"
"""CUDA's words (cudaErrorDevicesUnavailable) for a GPU that another process uses exclusively."""
OUT_OF_MEMORY = "out of memory: "
_NO_MEMORY = ("out of memory", "can't allocate memory")
NCCL_NO_MEMORY = ("Failed to CUDA malloc", "Failed to CUDA calloc", "Failed to CUDA host alloc")
"""NCCL's messages for a failed allocation (src/include/alloc.h): out of memory, or the GPU does not answer."""
_SIZE = r"(\d{1,20}(?:\.\d{1,3})? \w{1,5})"
_ASKED = rf"Tried to allocate {_SIZE}\."
_ROOM = rf"GPU (\d{{1,4}}) has a total capacity of {_SIZE} of which {_SIZE} is free"
_OTHERS = rf"Process (\d{{1,10}}) has {_SIZE} memory in use"
_OWN = rf"this process has {_SIZE} memory in use"


class NcclprobeError(Exception):
    """Root of all errors that this package raises deliberately."""


class UsageError(NcclprobeError):
    """The caller requested something impossible. The message names the thing and the remedy."""


def unknown(given: str, kind: str, names: Iterable[str], lists: str = "", near: Sequence[str] = ()) -> UsageError:
    """Return the error for an unknown word: the nearest of `names`, and the command that lists all.

    ``'ib.stat' is not a known check; did you mean ib.state? `ncclprobe checks` lists all checks``. `near`: the nearest
    names, if the caller knows better. `lists`: what lists all names, if they are too many to print here.
    """
    import difflib

    known, wanted = list(names), given[:_MOST_CHARACTERS]
    likely = list(near) or difflib.get_close_matches(wanted, known, _MOST_SUGGESTED, cutoff=0.7)
    if not near and likely:  # only what is about as near as the nearest
        ratios = {each: difflib.SequenceMatcher(None, each, wanted).ratio() for each in likely}
        likely = [each for each in likely if ratios[each] > ratios[likely[0]] - _AS_NEAR]
    quoted = repr(wanted) if given.isprintable() else ascii(wanted)
    shown = wanted if given.startswith("-") and given.isprintable() else quoted  # an option cannot pass for a word
    if likely:
        *others, last = likely
        hint = f"did you mean {', '.join(others)}{' or ' * bool(others)}{last}?{' ' * bool(lists)}{lists}"
    else:
        hint = lists or f"choose from {', '.join(known)}"
    return UsageError(f"{shown} is not a known {kind}; {hint}")


_INSTALL = "pip install torch"
NO_TORCH = f"torch is not installed for this Python; run it with the job's own, or: {_INSTALL}"


def without_torch(error: ImportError) -> UsageError:
    """Return a measuring command's error if torch cannot be imported."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return UsageError(NO_TORCH)
    return UsageError(f"torch cannot be imported ({error}); run it with the job's own Python, or: {_INSTALL}")


def reason(error: BaseException) -> str:
    """Return `error` in one line: its first line, and NCCL's own reason.

    torch's first line names only the kind of error ("unhandled cuda error"). torch repeats NCCL's reason below a
    separate line (NCCLUtils.cpp, getNcclErrorDetailStr), empty if NCCL gave none. A memory shortage is summarised,
    beginning with OUT_OF_MEMORY.
    """
    first, *others = [line.strip() for line in str(error).strip().splitlines()[:_MOST_LINES]] or [""]
    last = others[others.index(_LAST_ERROR) + 1 :][:1] if _LAST_ERROR in others else []
    last = [line for line in last if line and not line.startswith(_TRACE)]
    whole = "; last error: ".join([first[:_MOST_OF_A_LINE] or type(error).__name__, *last])
    short = OUT_OF_MEMORY not in whole and any(sign in whole.lower() for sign in _NO_MEMORY)
    return (OUT_OF_MEMORY + (_summarise_shortage(first) or whole) if short else whole)[:_MOST_OF_A_REASON]


def _summarise_shortage(text: str) -> str:
    """Summarise the report of torch's allocator: the request, the free memory, and which processes hold the rest."""
    asked, room = re.search(_ASKED, text), re.search(_ROOM, text)
    if not asked or not room:
        return ""
    gpu, total, free = room.groups()
    holders = [f"process {pid} uses {nbytes}" for pid, nbytes in re.findall(_OTHERS, text)]
    holders += [f"this rank uses {nbytes}" for nbytes in re.findall(_OWN, text)]
    held = f"; {', '.join(holders)}" if holders else ""
    return f"{asked[1]} were requested, but only {free} of the {total} of GPU {gpu} are free{held}"


class HostError(NcclprobeError):
    """The machine did not answer a question. The subclass shows why."""


class Missing(HostError):
    """No such file, directory, command, library or name."""


class Denied(HostError):
    """It exists, but this user may not read it."""


class TimedOut(HostError):
    """No answer before the deadline; the request was abandoned."""


class OutOfTime(HostError):
    """The question was not asked: this run was out of time, threads or memory, or its row was cut from the capture.

    It says nothing about the machine.
    """


class Failed(HostError):
    """It answered with an error of its own, quoted in the message."""


class NotCaptured(HostError):
    """The replayed capture lacks this question: an older version did not ask it."""


class ParseError(NcclprobeError):
    """An answer that we do not understand. The message quotes part of it."""


class Unlearned(NcclprobeError):
    """A check has its facts, but they do not contain what it needs, so it must not pass.

    `refused` is the name of the HostError behind it, if there was one, as in an Absent fact.
    """

    def __init__(self, why: str, refused: str = "") -> None:
        super().__init__(why)
        self.refused = refused


class ProbeError(NcclprobeError):
    """A measurement could not be completed: a rank is lost, or a phase exceeded its deadline."""


REFUSALS: dict[str, type[HostError]] = {
    kind.__name__: kind for kind in (Missing, Denied, TimedOut, OutOfTime, Failed, NotCaptured)
}
"""The name that a capture uses for each kind of failure to answer."""
