"""Names of variables: unknown, misspelt, retired, or not read yet."""

from collections.abc import Iterator

from ncclprobe.checks.env import as_evidence, jobs_note, jobs_warn, loaded, written
from ncclprobe.checks.env.fixtures import NO_NCCL, nccl, setting
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.software import Software, Version, parse_version, reaches
from ncclprobe.model.findings import Finding, note, warn
from ncclprobe.model.registry import check
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent
from ncclprobe.nccl.parameters import NEWEST, nearest, table

_MOST_NAMES = 100  # comparing spellings takes milliseconds each, and a file may hold thousands


@check(
    bad=lambda: [(setting("NCCL_SOCKET_IFNAMES", "eth0"), NO_NCCL)],
    good=lambda: [(setting("NCCL_SOCKET_IFNAME", "eth0"), NO_NCCL)],
    required=True,
)
def unknown_var(settings: Settings, software: Software | Absent) -> Iterator[Finding]:
    """NCCL does not read a variable that looks like one of its own.

    Right: NCCL reads every variable that looks like one of its own.
    Why: NCCL ignores names that it does not know without a message, so a misspelt setting is no setting.
    Fix: correct the name, or unset it.
    """
    strange = [entry for entry in settings.named("NCCL_", "TORCH_NCCL_") if _unread(entry)]
    version = loaded(software)
    newer = version is not None and version > NEWEST
    if len(strange) > _MOST_NAMES:
        first, last = strange[_MOST_NAMES], strange[-1]
        message = f"and {len(strange) - _MOST_NAMES} more names, to {last.name}, were not compared with NCCL's"
        yield note(first.name, message, evidence=as_evidence(first))
    for entry in strange[:_MOST_NAMES]:
        known = table().get(entry.name)
        better = known.instead if known else nearest(entry.name)
        if newer and entry.name.startswith("NCCL_"):
            message = f"is newer than this ncclprobe knows, if {written(version)} reads it"
            message += f"; a misspelt {better} otherwise" if better else ""
            yield note(entry.name, message, evidence=as_evidence(entry))
        elif known and not better:
            message = f"no library reads it. {known.hazard}"
            yield warn(entry.name, message, blame="job", action="fix-job", evidence=as_evidence(entry))
        elif better:
            message = f"no library reads it; did you mean {better}?"
            yield warn(repr(entry.name).strip("'"), message, blame="job", action="fix-job", evidence=as_evidence(entry))
        else:
            message = f"is not a variable of {written(NEWEST)} or older, nor of a known plugin or framework"
            yield note(entry.name, message, evidence=as_evidence(entry))


def _unread(entry: Setting) -> bool:
    """Return whether no program reads this name. Blanks around one in a file are what env.conf-files reports."""
    known = table().get(entry.name)
    in_a_file = entry.origin != "environment"
    return not (known and known.owner != "none") and not (in_a_file and entry.name != entry.name.strip())


@check(
    bad=lambda: [(setting("NCCL_SHM_USE_CUDA_MEMCPY", "1"), nccl(2, 30, 7))],
    good=lambda: [(setting("NCCL_SHM_USE_CUDA_MEMCPY", "1"), nccl(2, 29, 7))],
)
def retired_var(settings: Settings, software: Software | Absent) -> Iterator[Finding]:
    """The NCCL that is loaded does not read a variable any more, or does not read it yet.

    Right: Every variable is one that the loaded NCCL and torch read.
    Why: NCCL ignores what it does not know, so a setting from an old guide, or for a newer version, does nothing.
    Fix: use the name that took its place, or unset it.
    """
    versions = {"nccl": loaded(software), "torch": _torch(software)}
    for entry in settings.effective.values():
        known = table().get(entry.name)
        if not known or known.owner not in versions:
            continue
        version, nccls = versions[known.owner], known.owner == "nccl"
        now = f"; {known.instead} replaces it" if known.instead else ""
        if known.gone and (nccls or version is None or version >= known.gone):
            if not reaches(version, known.gone):
                continue
            gone = ".".join(map(str, known.gone))
            tell = jobs_warn if nccls or version else jobs_note
            yield tell(entry.name, f"is not read since {known.owner} {gone}{now}", as_evidence(entry))
        elif not nccls and known.instead:
            yield jobs_note(entry.name, f"is an old name that torch still reads{now}", as_evidence(entry))
        elif nccls and known.since and not reaches(version, known.since):
            since = ".".join(map(str, known.since))
            yield jobs_note(entry.name, f"is not known to {written(version)}: it came with {since}", as_evidence(entry))


def _torch(software: Software | Absent) -> Version | None:
    """Return the version of the installed torch; None where none is, or it is not known."""
    found = software.packages.get("torch") if isinstance(software, Software) else None
    return parse_version(found) if found else None
