"""What can go wrong, and who catches it.

::

    NcclprobeError
    ├─ UsageError      flags, an unreadable capture or expectation   main(): one line on stderr, exit 2
    ├─ HostError       the machine did not answer                    collect(): Absent
    │   ├─ Missing         there is no such file, command or library
    │   ├─ Denied          it exists and this user may not look
    │   ├─ TimedOut        it did not answer before its deadline
    │   ├─ OutOfTime       this run had no time, thread or memory left to ask
    │   ├─ Failed          it answered with an error of its own
    │   └─ NotCaptured     the capture being replayed never asked
    ├─ ParseError      an answer we do not understand                collect(): Absent, judge(): UNKNOWN; our bug
    ├─ Unlearned       a check cannot tell: its facts do not say      judge(): UNKNOWN, with the reason
    ├─ ProbeError      a rank is lost, a measurement did not end     a finding naming rank and phase
    ├─ WireError       a conversation with another process failed    its kind becomes an outcome: Reach, Path, Trouble
    ├─ WrongPeer       another node answers at an address            walk_path(): the outcome wrong-peer
    ├─ Refused         rank 0 does not want this node                run_worker(): this node is judged alone
    ├─ CannotListen    rank 0 cannot have the port                   run_coordinator(): this node is judged alone
    └─ StoreError      torchrun's store did not serve                run_coordinator(), run_worker(): judged alone

The last five live where they are raised: ``wire``, ``mesh.walk`` and ``rendezvous``.

Anything else that a check raises makes that one verdict UNKNOWN; the other checks still run.
"""

import re
from collections.abc import Iterable, Sequence

_MOST_CHARACTERS, _MOST_SUGGESTED, _AS_NEAR = 80, 3, 0.1
_LAST_ERROR, _TRACE = "Last error:", ("Exception raised from ", "frame #")
_MOST_LINES, _MOST_OF_A_LINE, _MOST_OF_A_REASON = 50, 4000, 600
TAKEN = "busy or unavailable"
"""CUDA's words (cudaErrorDevicesUnavailable) for a GPU that another process has to itself."""
OUT_OF_MEMORY = "out of memory: "
_NO_MEMORY = ("out of memory", "can't allocate memory")
NCCL_NO_MEMORY = ("Failed to CUDA malloc", "Failed to CUDA calloc", "Failed to CUDA host alloc")
"""What NCCL says of an allocation that failed (src/include/alloc.h): for want of memory, or of a GPU that answers."""
_SIZE = r"(\d{1,20}(?:\.\d{1,3})? \w{1,5})"
_ASKED = rf"Tried to allocate {_SIZE}\."
_ROOM = rf"GPU (\d{{1,4}}) has a total capacity of {_SIZE} of which {_SIZE} is free"
_OTHERS = rf"Process (\d{{1,10}}) has {_SIZE} memory in use"
_OWN = rf"this process has {_SIZE} memory in use"


class NcclprobeError(Exception):
    """Root of everything this package raises on purpose."""


class UsageError(NcclprobeError):
    """The caller asked for something that cannot be done. The message names the thing and the remedy."""


def unknown(given: str, kind: str, names: Iterable[str], lists: str = "", near: Sequence[str] = ()) -> UsageError:
    """Return the refusal of a word that is none of `names`: the nearest of them, and where to look for the right one.

    ``ib.stat is no check; did you mean ib.state? `ncclprobe checks` lists them``. `near`: what is near, where the
    caller knows better; `lists`: what lists all, where they are too many to be named here.
    """
    import difflib

    known, wanted = list(names), given[:_MOST_CHARACTERS]
    likely = list(near) or difflib.get_close_matches(wanted, known, _MOST_SUGGESTED, cutoff=0.7)
    if not near and likely:  # only what is about as near as the nearest
        ratios = {each: difflib.SequenceMatcher(None, each, wanted).ratio() for each in likely}
        likely = [each for each in likely if ratios[each] > ratios[likely[0]] - _AS_NEAR]
    shown = given[:_MOST_CHARACTERS] if given.isprintable() and given.strip() else ascii(given[:_MOST_CHARACTERS])
    if likely:
        hint = f"did you mean {' or '.join(likely)}?{' ' * bool(lists)}{lists}"
    else:
        hint = lists or f"choose from {', '.join(known)}"
    return UsageError(f"{shown} is no {kind}; {hint}")


_INSTALL = "pip install 'ncclprobe[torch]'"
NO_TORCH = f"torch is not installed for this Python; run it with the job's own, or: {_INSTALL}"


def without_torch(error: ImportError) -> UsageError:
    """Return what a command that measures says where torch cannot be imported."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return UsageError(NO_TORCH)
    return UsageError(f"torch cannot be imported ({error}); run it with the job's own Python, or: {_INSTALL}")


def reason(error: BaseException) -> str:
    """Return in one line what `error` says: its first line, and what NCCL itself gave as the reason.

    torch's first line names the kind of error alone ("unhandled cuda error"); the reason is NCCL's, which torch repeats
    under a line of its own (NCCLUtils.cpp, getNcclErrorDetailStr), empty where NCCL gave none. Memory that ran out is
    said in few words, which begin with OUT_OF_MEMORY.
    """
    first, *others = [line.strip() for line in str(error).strip().splitlines()[:_MOST_LINES]] or [""]
    last = others[others.index(_LAST_ERROR) + 1 :][:1] if _LAST_ERROR in others else []
    last = [line for line in last if line and not line.startswith(_TRACE)]
    whole = "; last error: ".join([first[:_MOST_OF_A_LINE] or type(error).__name__, *last])
    short = OUT_OF_MEMORY not in whole and any(sign in whole.lower() for sign in _NO_MEMORY)
    return (OUT_OF_MEMORY + (_shortage(first) or whole) if short else whole)[:_MOST_OF_A_REASON]


def _shortage(text: str) -> str:
    """Return what torch's allocator says: how much was asked for, what is free, and which processes hold the rest."""
    asked, room = re.search(_ASKED, text), re.search(_ROOM, text)
    if not asked or not room:
        return ""
    gpu, total, free = room.groups()
    holders = [f"{nbytes} by process {pid}" for pid, nbytes in re.findall(_OTHERS, text)]
    holders += [f"{nbytes} by this rank" for nbytes in re.findall(_OWN, text)]
    held = f"; in use are {', '.join(holders)}" if holders else ""
    return f"{asked[1]} were asked for, and of the {total} of GPU {gpu} {free} are free{held}"


class HostError(NcclprobeError):
    """The machine did not answer a question. The class says in which way."""


class Missing(HostError):
    """No such file, directory, command, library or name."""


class Denied(HostError):
    """It exists, and this user may not look at it."""


class TimedOut(HostError):
    """No answer before the deadline; whatever was asked has been abandoned."""


class OutOfTime(HostError):
    """It was not asked: this run had no time, thread or memory left, or its row was cut out of the capture.

    It says nothing about the machine.
    """


class Failed(HostError):
    """It answered with an error of its own, quoted in the message."""


class NotCaptured(HostError):
    """The capture being replayed holds no such question: an older tool did not ask it."""


class ParseError(NcclprobeError):
    """An answer that we do not understand. The message quotes an excerpt."""


class Unlearned(NcclprobeError):
    """A check has its facts, but they do not say what it needs to know: it must not pass.

    `refused` is the name of the HostError behind that, if there was one, as in a fact that is Absent.
    """

    def __init__(self, why: str, refused: str = "") -> None:
        super().__init__(why)
        self.refused = refused


class ProbeError(NcclprobeError):
    """A measurement could not be completed: a rank is lost, or a phase outlived its deadline."""


REFUSALS: dict[str, type[HostError]] = {
    kind.__name__: kind for kind in (Missing, Denied, TimedOut, OutOfTime, Failed, NotCaptured)
}
"""The name a capture uses for each way of not answering."""
