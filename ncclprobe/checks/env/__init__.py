"""What the environment and NCCL's configuration files say, read as NCCL reads it.

Where to find what: ``values`` (how a variable is written), ``files`` (configuration, topology and plugin files, and
which NCCL would be loaded), ``interfaces``, ``hcas`` and ``gids`` (what NCCL chooses by them), ``transports`` (what is
taken out of its hands), ``choices`` (what it chooses as a whole, and what vendors prescribe), ``job`` and ``uniform``.
``fixtures`` holds what the examples of several of them share.
"""

from ncclprobe.checks import JOB
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.software import Software, Version
from ncclprobe.model.findings import Evidence, Finding, Sources, fail, note, seen, warn
from ncclprobe.model.registry import applies
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent, Job


@applies
def nccl_job(job: Job) -> bool:
    """to jobs on GPUs (--backend nccl)."""
    return job.backend == "nccl"


def as_evidence(entry: Setting) -> Evidence:
    """Return a setting as it was written, and where: the environment, or a file and its line."""
    file, _, line = entry.origin.rpartition(":")
    text = entry.name if entry.value is None else f"{entry.name}={entry.value}"
    return seen(file, text, int(line)) if file and line.isdecimal() else seen(entry.origin, text)


def evidence(settings: Settings, *names: str) -> tuple[Evidence, ...]:
    """Return those of `names` that are set."""
    return tuple(as_evidence(settings.effective[name]) for name in names if name in settings.effective)


def loaded(software: Software | Absent) -> Version | None:
    """Return the version of the NCCL that a job would load; None: not known, which stands for the newest."""
    return software.nccl_version if isinstance(software, Software) else None


def written(version: Version | None, name: str = "NCCL") -> str:
    """Return ``NCCL 2.29.7``."""
    return f"{name} {'.'.join(map(str, version))}" if version else f"the newest {name}"


def jobs_fail(subject: str, message: str, evidence: Sources, remedy: str = "") -> Finding:
    """Return a setting that stops the job."""
    return fail(subject, message, **JOB, evidence=evidence, remedy=remedy)


def jobs_warn(subject: str, message: str, evidence: Sources, remedy: str = "") -> Finding:
    """Return a setting that costs the job something."""
    return warn(subject, message, **JOB, evidence=evidence, remedy=remedy)


def jobs_note(subject: str, message: str, evidence: Sources, remedy: str = "") -> Finding:
    """Return a setting worth knowing."""
    return note(subject, message, blame="job", evidence=evidence, remedy=remedy)
