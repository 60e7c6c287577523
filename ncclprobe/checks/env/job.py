"""What the job's own variables say of its ranks, its identity, its watchdog and its logs."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ncclprobe.checks.env import (
    DEBUG_GROUP,
    IDENTITY_GROUP,
    NAME_GROUP,
    evidence,
    jobs_fail,
    jobs_note,
    jobs_warn,
    nccl_job,
)
from ncclprobe.checks.env.fixtures import ONE_NODE, PLAIN, TWO_NODES, gpus, having, setting
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import NamedMachine
from ncclprobe.facts.nccl_conf import NamedFiles, Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.model.findings import Evidence, Finding, note, seen
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.units import plural
from ncclprobe.nccl.values import read_int

LIST = "CUDA_VISIBLE_DEVICES"
_UUID = r"(GPU|MIG)-[0-9a-fA-F-]+(/\d+/\d+)?"
_DESYNC_MIN_S = 120


@applies
def devices_restricted(environment: Environment) -> bool:
    """if CUDA_VISIBLE_DEVICES is set."""
    return LIST in environment.variables


@check(
    bad=lambda: [(Environment({LIST: "0,1"}), ONE_NODE, gpus(8), Job())],
    good=lambda: [(Environment({LIST: "3"}), ONE_NODE, gpus(8), Job())],
    applies=devices_restricted,
)
def visible(environment: Environment, launch: Launch | Absent, gpus: Gpus | Absent, job: Job) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES shows too few GPUs, no GPU, or not the GPUs that it names.

    Right: CUDA_VISIBLE_DEVICES shows every GPU that it names, and at least one for each rank.
    Why: CUDA silently stops reading the list at the first unknown entry (CUDA programming guide, environment
    variables). Two ranks cannot share a GPU, and ranks without one fail. An empty list, -1 and Slurm's NoDevFiles hide
    all GPUs, while NVML and nvidia-smi still list them.
    Fix: list one GPU for each rank on this node, each GPU once, either all by number or all by UUID.
    """
    text = environment.get(LIST)
    if text is None:
        return
    shown = seen("environment", f"{LIST}={text}")
    entries = [word.strip() for word in text.split(",")] if text.strip() else []
    total = len(gpus.all) if isinstance(gpus, Gpus) else None
    if not text.strip() or not _may_name(entries[0]):
        if job.backend == "nccl":
            yield jobs_fail(LIST, f"is {text!r}, so CUDA sees no GPU", shown)
        return
    repeated = [word for word, times in Counter(entries).items() if times > 1]
    if repeated:
        yield jobs_fail(LIST, f"names {', '.join(repeated)} more than once", shown)
    beyond = [word for word in entries if word.isdecimal() and total is not None and int(word) >= total]
    if beyond:
        yield jobs_fail(
            LIST, f"names GPU {', '.join(beyond)}, but there are only {total}: CUDA stops reading the list there", shown
        )
    strange = [word for word in entries if word and not _may_name(word)]
    if strange:
        yield jobs_fail(
            LIST, f"names {', '.join(strange)}, which is not a GPU: CUDA stops reading the list there", shown
        )
    yield from _uuids(entries, gpus, shown)
    if len({bool(re.fullmatch(_UUID, word)) for word in entries}) > 1:
        yield jobs_warn(LIST, "mixes numbers with UUIDs: CUDA ignores the entries of the other kind", shown)
    ranks = None if isinstance(launch, Absent) else launch.local_world_size
    # One GPU per process is how Slurm and Ray hand them out; a script sets one list for all its ranks.
    scripted = isinstance(launch, Launch) and launch.kind == "single"
    if ranks and ranks > 1 and (len(entries) != 1 or scripted) and len(entries) < ranks:
        yield jobs_fail(LIST, f"shows {plural(len(entries), 'GPU')} to the {ranks} ranks on this node", shown)
    elif not ranks and job.expect_gpus and 1 < len(entries) < job.expect_gpus:
        yield jobs_fail(LIST, f"shows {plural(len(entries), 'GPU')}, {job.expect_gpus} expected (--expect-gpus)", shown)


def _uuids(entries: Sequence[str], gpus: Gpus | Absent, shown: Evidence) -> Iterator[Finding]:
    """Yield beginnings of UUIDs that are of several GPUs, or of none."""
    uuids = [gpu.uuid for gpu in gpus.all] if isinstance(gpus, Gpus) else []
    several = [word for word in entries if word.startswith("GPU-") and sum(u.startswith(word) for u in uuids) > 1]
    if several:
        message = f"names {', '.join(several)}, a prefix of several UUIDs: CUDA stops reading the list there"
        yield jobs_fail(LIST, message, shown)
    absent = [word for word in entries if word.startswith("GPU-") and not any(u.startswith(word) for u in uuids)]
    if absent and uuids and all(uuids):
        left = plural(entries.index(absent[0]), "GPU")
        message = (
            f"names {', '.join(absent)}, which is not a GPU on this node: CUDA stops reading the list there and "
            f"shows {left}"
        )
        yield jobs_fail(LIST, message, shown)


def _may_name(word: str) -> bool:
    """Return whether CUDA may take `word` for a GPU: a number, or the beginning of a UUID."""
    return word.isdecimal() or word.upper().startswith(("GPU-", "MIG-"))


@applies
def text_pasted(named: NamedMachine | Absent) -> bool:
    """to pasted texts."""
    return isinstance(named, NamedMachine)


@check(
    group=NAME_GROUP,
    bad=lambda: [(NamedMachine(withheld=("NCCL_IB_HCA",)),)],
    good=lambda: [(NamedMachine(),)],
    applies=text_pasted,
)
def withheld(named: NamedMachine) -> Iterator[Finding]:
    """mpirun does not pass a variable to the other nodes.

    Right: mpirun passes every exported variable to the other nodes.
    Why: Open MPI passes a variable to ranks on other hosts only if -x names it (mpirun(1)). Other variables stay unset
    there, so NCCL chooses differently on different nodes, and the job hangs or is slow.
    Fix: add -x NAME for each variable, or set the variables in /etc/nccl.conf on every node.
    """
    if named.withheld:
        verb = "is" if len(named.withheld) == 1 else "are"
        message = f"{verb} exported only here: mpirun passes a variable to other nodes only if -x names it"
        tell = jobs_note if {*named.withheld} <= _FOUND_ANYWAY else jobs_warn
        yield tell(", ".join(named.withheld), message, "the command line of mpirun")


_FOUND_ANYWAY = {"NCCL_SOCKET_IFNAME", "UCX_NET_DEVICES", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS"}
"""Variables without which the other nodes most often choose the same."""


@check(
    group=IDENTITY_GROUP,
    bad=lambda: [(setting("NCCL_HOSTID", "node", "/etc/nccl.conf:3"), TWO_NODES)],
    good=lambda: [(PLAIN, TWO_NODES)],
    applies=nccl_job,
)
def hostid(settings: Settings, launch: Launch | Absent) -> Iterator[Finding]:
    """NCCL_HOSTID can give several nodes the same identity.

    Right: NCCL_HOSTID does not give two nodes the same identity.
    Why: NCCL treats ranks with the same identity as one node. It then tries shared memory and P2P between machines, and
    fails (src/misc/utils.cc:117, nccl#879). If a file in the image sets the variable, every node has the same identity.
    Fix: unset NCCL_HOSTID; the host name and the boot id already distinguish nodes.
    """
    entry = settings.effective.get("NCCL_HOSTID")
    if entry is None:
        return
    several = isinstance(launch, Launch) and launch.several_nodes
    if several and entry.origin != "environment":
        yield jobs_warn(entry.name, "is set in a file that other nodes may share", evidence(settings, entry.name))
    else:
        yield jobs_note(entry.name, "is set; it must be different on every node", evidence(settings, entry.name))


@check(
    bad=lambda: [(setting("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "0"),)],
    good=lambda: [(setting("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "1800"),)],
)
def torch_timeouts(settings: Settings) -> Iterator[Finding]:
    """torch's watchdog is configured to kill healthy jobs, or does not record hangs.

    Right: torch's watchdog tolerates healthy jobs and records hangs.
    Why: torch's monitor kills a process whose watchdog was silent for TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC, and a slow CUDA
    or file system call can take a minute. Without a flight recorder a hang leaves no record of the rank that was
    behind. Without NCCL's RAS `ncclprobe attach` cannot see which rank has launched fewer calls. Without asynchronous
    error handling a collective that fails or times out hangs forever. With TORCH_NCCL_BLOCKING_WAIT torch starts no
    watchdog, so TORCH_NCCL_ASYNC_ERROR_HANDLING has no effect (ProcessGroupNCCL.cpp, "NO watchdog thread is created").
    Fix: leave the heartbeat at its default (480 s) and the recorder on (TORCH_FR_BUFFER_SIZE=2000). Unset
    TORCH_NCCL_ASYNC_ERROR_HANDLING, TORCH_NCCL_BLOCKING_WAIT and NCCL_RAS_ENABLE.
    """
    yield from _heartbeat(settings)
    yield from _error_handling(settings)
    ras = settings.get("NCCL_RAS_ENABLE")
    if ras is not None and read_int(ras, -1).value == 0:
        message = "is 0, so `ncclprobe attach` sees less of a job that hangs"
        yield jobs_note("NCCL_RAS_ENABLE", message, evidence(settings, "NCCL_RAS_ENABLE"))
    for name in ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"):
        text = settings.get(name)
        if text is not None and read_int(text, -1).value == 0:
            yield jobs_note(name, "is 0: a hang leaves no flight record", evidence(settings, name))


def _heartbeat(settings: Settings) -> Iterator[Finding]:
    name = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
    text = settings.get(name)
    seconds = read_int(text, 480).value if text else 480
    if seconds < _DESYNC_MIN_S:
        message = f"is {seconds} s: a rank that is slow for that long is killed as if it hung"
        yield jobs_warn(name, message, evidence(settings, name))


def _error_handling(settings: Settings) -> Iterator[Finding]:
    """Yield what keeps torch from ending a job whose collective has failed. It reads the older names as well."""
    waiting, handling = (
        next((name for name in (f"TORCH_{old}", old) if settings.get(name)), "")
        for old in ("NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING")
    )
    blocks = (settings.get(waiting) or "").lower() in _TRUE_TO_TORCH
    if blocks and handling:
        message = f"is {settings.get(waiting)}: torch starts no watchdog, and {handling} has no effect"
        yield jobs_note(waiting, message, evidence(settings, waiting, handling))
    elif handling and not blocks and read_int(settings.get(handling) or "", 3).value == 0:
        message = "is 0: a collective that fails or times out hangs forever"
        yield jobs_warn(handling, message, evidence(settings, handling))
    for name, cost in _WATCHERS.items():
        if (settings.get(name) or "").lower() in _FALSE_TO_TORCH:
            yield jobs_note(name, f"is {settings.get(name)}: {cost}", evidence(settings, name))


_TRUE_TO_TORCH, _FALSE_TO_TORCH = ("y", "yes", "1", "t", "true"), ("n", "no", "0", "f", "false")
_WATCHERS = {
    "TORCH_NCCL_ENABLE_MONITORING": "a process with a hung watchdog is not killed",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "a collective that times out leaves no flight record",
}
_QUIET = ("", "VERSION")
_PIPED = ("slurm", "openmpi", "pmi", "pytorchjob")
"""Launchers that never leave a rank a terminal."""
_PER_CALL = ("COLL", "CALL", "P2P", "ALL")


def _level(settings: Settings) -> str:
    return (settings.get("NCCL_DEBUG") or "").upper()


@check(
    group=DEBUG_GROUP,
    bad=lambda: [(having(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE="/tmp/nccl.log"), NamedFiles(), TWO_NODES)],
    good=lambda: [(setting("NCCL_DEBUG_FILE", "/tmp/nccl.log"), NamedFiles(), TWO_NODES)],
)
def debug_file(settings: Settings, named_files: NamedFiles, launch: Launch | Absent) -> Iterator[Finding]:
    """Ranks share one NCCL_DEBUG_FILE, or a debugging file cannot be written.

    Right: NCCL's log and torch's flight record are writable, and every rank has its own file.
    Why: every rank truncates the file when it opens it, so only the last rank's lines remain. If the file cannot be
    opened, or the variable is not set, NCCL writes to stdout (src/debug.cc:103), which it does not flush after each
    line. torch does not create the folder of its flight record: if it is missing, a hang leaves only "Error opening
    file for writing".
    Fix: set NCCL_DEBUG_FILE=/tmp/nccl.%h.%p, and create the folders with `mkdir -p` before the job.
    """
    yield from _folders(settings, named_files)
    name = settings.get("NCCL_DEBUG_FILE")
    if not name:
        if _level(settings) not in _QUIET and isinstance(launch, Launch) and launch.kind in _PIPED:
            text = (
                f"writes to standard output, a pipe under {launch.kind} that NCCL does not flush, so the last lines "
                "of a"
            )
            yield jobs_note("NCCL_DEBUG", f"{text} rank that is killed are lost", evidence(settings, "NCCL_DEBUG"))
        return
    shown = evidence(settings, "NCCL_DEBUG_FILE", "NCCL_DEBUG")
    if _level(settings) in _QUIET:
        yield jobs_note("NCCL_DEBUG_FILE", "has no effect unless NCCL_DEBUG is WARN or more verbose", shown)
        return
    here = None if isinstance(launch, Absent) else launch.local_world_size
    special = name.lower() in ("stdout", "stderr") or name.startswith("/dev/")
    if not special and "%p" not in name and (here or 1) > 1:
        yield jobs_warn(
            "NCCL_DEBUG_FILE", f"has no %p, so the {here} ranks on this node overwrite each other's lines", shown
        )
    elif not special and "%h" not in name and isinstance(launch, Launch) and launch.several_nodes:
        yield jobs_note(
            "NCCL_DEBUG_FILE", "has no %h, so nodes that share the folder may overwrite each other's files", shown
        )


_LOST = {
    "NCCL_DEBUG_FILE": "the log goes to stdout",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "torch cannot create its pipe and ends the process",
}


def _folders(settings: Settings, named_files: NamedFiles) -> Iterator[Finding]:
    for name, (folder, writable) in named_files.folders.items():
        lost = _LOST.get(name, "a hang leaves no flight record")
        if name == "NCCL_DEBUG_FILE" and _level(settings) in _QUIET:
            continue
        if writable is False:
            message = f"{folder} does not exist or is not writable: {lost}"
            yield jobs_warn(name, message, evidence(settings, name))
        elif isinstance(writable, Absent):
            message = f"it is unknown whether {folder} is writable: {writable.why}"
            yield note(name, message, evidence=evidence(settings, name))


@check(
    group=DEBUG_GROUP,
    slows=True,
    bad=lambda: [(setting("NCCL_DEBUG", "TRACE"),)],
    good=lambda: [(setting("NCCL_DEBUG", "INFO"),)],
)
def debug_storm(settings: Settings) -> Iterator[Finding]:
    """NCCL writes a line for every call.

    Right: NCCL_DEBUG does not write a line for every call.
    Why: a line for every collective of every rank slows each launch and fills disks.
    Fix: set NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,ENV,NET, or NCCL_DEBUG=WARN in production.
    """
    level, text = _level(settings), settings.get("NCCL_DEBUG_SUBSYS") or ""
    if level not in ("INFO", "ABORT", "TRACE"):
        return
    words = {word.upper() for word in text.removeprefix("^").split(",")}
    listed = [word for word in _PER_CALL if word in words]
    inverted = text.startswith("^") and not {"COLL", "ALL"} & words
    shown = evidence(settings, "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS")
    if level == "TRACE":
        yield jobs_warn("NCCL_DEBUG", "is TRACE, which in builds with tracing writes lines for every transfer", shown)
    elif inverted or (listed and not text.startswith("^")):
        what = f"all but {text[1:]}" if inverted else ", ".join(listed)
        yield jobs_warn("NCCL_DEBUG_SUBSYS", f"makes NCCL write a line for every call ({what})", shown)
