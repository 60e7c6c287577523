"""What the driver has written into the kernel log about GPUs and NVSwitches since the node was booted."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ncclprobe.checks.gpu import at, gpu_job
from ncclprobe.checks.gpu.state import HEALTHY, box
from ncclprobe.facts.kernel_log import Event, KernelLog
from ncclprobe.facts.nvml import Gpus
from ncclprobe.model.findings import Certainty, Finding, fail, note, seen, warn
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent

_DAY_S = 86400.0
_WHOSE = re.compile(r"\b(pid|name)=('[^']*'|[^,]*),? ?")  # of no use here, and of a stranger perhaps
_RECOVERY = "154"  # "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"


class Meaning(NamedTuple):
    """What an Xid means, and whether a job on this GPU is lost (FAIL), at risk (WARN) or to blame itself (NOTE)."""

    words: str
    grave: bool = False
    risky: bool = False


_MEANINGS = {  # docs.nvidia.com/deploy/xid-errors; the gravity is this project's, as is that of a code not named here
    "13": Meaning("graphics engine exception: usually an error of the program"),
    "31": Meaning("MMU fault: usually an error of the program"),
    "43": Meaning("a program was stopped because of its own error"),
    "45": Meaning("a program was ended"),
    "48": Meaning("double-bit ECC error", grave=True),
    "61": Meaning("internal microcontroller breakpoint", risky=True),
    "62": Meaning("internal microcontroller halt", risky=True),
    "63": Meaning("a row of its memory is to be replaced at the next reset", risky=False),
    "64": Meaning("a row of its memory could not be replaced", grave=True),
    "74": Meaning("NVLink error", grave=True),
    "79": Meaning("fallen off the bus", grave=True),
    "92": Meaning("many single-bit ECC errors", risky=True),
    "94": Meaning("ECC error, contained: the program that met it was ended", risky=True),
    "95": Meaning("ECC error, not contained: every program on it is lost", grave=True),
    "109": Meaning("context switch timeout", risky=True),
    "119": Meaning("its firmware (GSP) does not answer", grave=True),
    "120": Meaning("its firmware (GSP) has failed", grave=True),
    "121": Meaning("C2C link error, corrected"),
    "140": Meaning("ECC error that was not corrected", grave=True),
    "143": Meaning("its initialisation failed", grave=True),
}
_NVLINK5 = {  # from Blackwell on, each with a text that says Fatal or Nonfatal
    "144": "NVLink: SAW error",
    "145": "NVLink: RLW error",
    "146": "NVLink: TLW error",
    "147": "NVLink: TREX error",
    "148": "NVLink: NVLPW_CTRL error",
    "149": "NVLink: NETIR error",
    "150": "NVLink: MSE error",
}
_LOST = Meaning("fallen off the bus", grave=True)


def log(*events: Event, uptime_s: float = 7200.0) -> KernelLog:
    """Return a kernel log with these events, for examples."""
    return KernelLog(events, uptime_s, source="/dev/kmsg")


BUS, BOX = "0000:07:00", box(HEALTHY)
FELL = Event(3600.0, "xid", BUS, "79", "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")


_LOGGED = Certainty("high", "kernel log")
_KEEP = "nothing, unless earlier jobs matter: `journalctl -k` has more where the journal is kept on disk."


@check(
    bad=lambda: [(log(FELL), BOX)],
    good=lambda: [(log(), BOX)],
    privilege="root, kernel.dmesg_restrict=0, or the group adm or systemd-journal",
    applies=gpu_job,
)
def xid(log: KernelLog, gpus: Gpus | Absent) -> Iterator[Finding]:
    """The driver has reported errors of a GPU or NVSwitch.

    Right: The driver has reported no grave error of a GPU or NVSwitch.
    Why: an Xid names the cause where a job only sees a collective that hangs or a CUDA error; 48, 64, 74, 79, 95, 119,
    120 and, on Blackwell, the fatal ones of 144 to 150 leave a GPU that needs a reset at least.
    Fix: look the code up at docs.nvidia.com/deploy/xid-errors; for a grave one drain the node, reset the GPU
    (`nvidia-smi --gpu-reset -i N`; after 74 those at both ends of the link that `nvidia-smi nvlink -e` names), and have
    it repaired if the error returns.
    """
    by_kind: defaultdict[tuple[str, str, str], list[Event]] = defaultdict(list)
    for event in log.events:
        if event.kind in ("xid", "sxid", "lost"):
            by_kind[event.kind, event.device, event.code].append(event)
    for events in by_kind.values():
        yield _judged(events, log, gpus)
    if log.oldest_s or log.dropped:
        message = f"begins {_ago(log.uptime_s - log.oldest_s)}: earlier messages are not known"
        yield note("kernel log", message, evidence=log.source, remedy=_KEEP)


def _judged(events: Sequence[Event], log: KernelLog, gpus: Gpus | Absent) -> Finding:
    """Return one finding for all events of one kind on one device, by the last of them; any fatal one makes it
    fatal.
    """
    last = events[-1]
    meaning = _meaning(last, fatal=any(event.fatal for event in events))
    times = f"{len(events)} times, last " if len(events) > 1 else ""
    name = {"xid": f"Xid {last.code}", "sxid": f"SXid {last.code}"}.get(last.kind, "GPU lost")
    message = f"{name}: {meaning.words}; {times}{_ago(log.uptime_s - last.at_s)}"
    text = _WHOSE.sub("", last.text)[:160]
    evidence = seen(log.source, text)
    subject = f"NVSwitch {last.device}" if last.kind == "sxid" else at(last.device, gpus) if last.device else "a GPU"
    if _recovered(last, log.events):
        return note(subject, f"{message}; the driver reports a reset since then", evidence=evidence)
    if not (meaning.grave or meaning.risky):
        return note(subject, message, evidence=evidence)
    recent = log.uptime_s - last.at_s < _DAY_S
    tell = fail if meaning.grave and recent else warn
    return tell(subject, message, blame="node", action="repair", confidence=_LOGGED, evidence=evidence)


def _meaning(event: Event, fatal: bool) -> Meaning:
    if event.kind == "lost":
        return _LOST
    if event.kind == "sxid":
        return Meaning("fatal error of an NVSwitch" if fatal else "error of an NVSwitch, not fatal", grave=fatal)
    if event.code in _NVLINK5:
        said = "fatal" if fatal else "not fatal"
        return Meaning(f"{_NVLINK5[event.code]}, {said}", grave=fatal)
    if event.code == _RECOVERY:
        asked = event.text.rpartition(" to ")[2].rstrip(".")
        return Meaning(f"the driver now asks for: {asked or 'nothing known'}", risky="(None)" not in asked)
    return _MEANINGS.get(event.code, Meaning("see NVIDIA's list of Xids"))


def _recovered(event: Event, all_events: Sequence[Event]) -> bool:
    """Return whether the driver has said later that this device needs nothing any more."""
    return any(
        later.code == _RECOVERY and later.device == event.device and later.at_s >= event.at_s and "to 0x0" in later.text
        for later in all_events
    )


def _ago(seconds: float) -> str:
    for unit, length in (("day", _DAY_S), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= length:
            number = int(seconds // length)
            return f"{number} {unit}{'s' * (number != 1)} ago"
    return "less than a minute ago"
