"""What NCCL will log, and where to."""

from collections.abc import Iterator

from ncclprobe.checks.env import evidence, jobs_note, jobs_warn
from ncclprobe.checks.env.fixtures import TWO_NODES, having, setting
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.named_files import NamedFiles
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.model.findings import Finding, note
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent

_QUIET = ("", "VERSION")
_PIPED = ("slurm", "openmpi", "pmi", "pytorchjob")
"""Launchers that never leave a rank a terminal."""
_PER_CALL = ("COLL", "CALL", "P2P", "ALL")


def _level(settings: Settings) -> str:
    return (settings.get("NCCL_DEBUG") or "").upper()


@check(
    bad=lambda: [
        (having(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE="/tmp/nccl.log"), NamedFiles(log_writable=True), TWO_NODES)
    ],
    good=lambda: [(setting("NCCL_DEBUG_FILE", "/tmp/nccl.log"), NamedFiles(log_writable=True), TWO_NODES)],
)
def debug_file(settings: Settings, named_files: NamedFiles, launch: Launch | Absent) -> Iterator[Finding]:
    """NCCL_DEBUG_FILE is one file for many ranks, or cannot be written.

    Right: NCCL_DEBUG_FILE is writable and a file of its own for every rank.
    Why: every rank opens it anew, so that the last one leaves its lines and no other; where it cannot be opened NCCL
    writes to stdout instead (src/debug.cc:103), and to that too where the variable is not set: only a file is written
    line by line.
    Fix: NCCL_DEBUG_FILE=/tmp/nccl.%h.%p
    """
    name = settings.get("NCCL_DEBUG_FILE")
    if not name:
        if _level(settings) not in _QUIET and isinstance(launch, Launch) and launch.kind in _PIPED:
            text = (
                f"writes to standard output, a pipe under {launch.kind}, which NCCL does not flush: the last lines of a"
            )
            yield jobs_note("NCCL_DEBUG", f"{text} rank that is killed are lost", evidence(settings, "NCCL_DEBUG"))
        return
    shown = evidence(settings, "NCCL_DEBUG_FILE", "NCCL_DEBUG")
    if _level(settings) in _QUIET:
        yield jobs_note("NCCL_DEBUG_FILE", "has no effect unless NCCL_DEBUG is WARN or more", shown)
        return
    here = None if isinstance(launch, Absent) else launch.local_world_size
    special = name.lower() in ("stdout", "stderr") or name.startswith("/dev/")
    if not special and "%p" not in name and (here or 1) > 1:
        yield jobs_warn(
            "NCCL_DEBUG_FILE", f"has no %p: the {here} ranks of this node overwrite each other's lines", shown
        )
    elif not special and "%h" not in name and isinstance(launch, Launch) and launch.several_nodes:
        yield jobs_note(
            "NCCL_DEBUG_FILE", "has no %h: nodes that share the folder may overwrite each other's files", shown
        )
    if named_files.log_writable is False:
        folder = named_files.log_folder
        yield jobs_warn("NCCL_DEBUG_FILE", f"{folder} does not exist or is not writable: the log goes to stdout", shown)
    elif isinstance(named_files.log_writable, Absent):
        yield note(
            "NCCL_DEBUG_FILE", f"whether it can be written is not known: {named_files.log_writable.why}", evidence=shown
        )


@check(
    slows=True,
    bad=lambda: [(setting("NCCL_DEBUG", "TRACE"),)],
    good=lambda: [(setting("NCCL_DEBUG", "INFO"),)],
)
def debug_storm(settings: Settings) -> Iterator[Finding]:
    """NCCL writes a line for every call.

    Right: NCCL_DEBUG does not write a line for every call.
    Why: the lines of every collective of every rank cost time in the launch path and fill disks.
    Fix: NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,ENV,NET, or WARN in production.
    """
    level, text = _level(settings), settings.get("NCCL_DEBUG_SUBSYS") or ""
    if level not in ("INFO", "ABORT", "TRACE"):
        return
    words = {word.upper() for word in text.removeprefix("^").split(",")}
    listed = [word for word in _PER_CALL if word in words]
    inverted = text.startswith("^") and not {"COLL", "ALL"} & words
    shown = evidence(settings, "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS")
    if level == "TRACE":
        yield jobs_warn(
            "NCCL_DEBUG", "is TRACE, which writes lines from inside every transfer in builds with tracing", shown
        )
    elif inverted or (listed and not text.startswith("^")):
        what = f"all but {text[1:]}" if inverted else ", ".join(listed)
        yield jobs_warn("NCCL_DEBUG_SUBSYS", f"makes NCCL write a line for every call ({what})", shown)
