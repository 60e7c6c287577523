"""The environment and NCCL's configuration files, read as NCCL reads them.

Where to find what: ``values`` (how a variable is written), ``files`` (configuration, topology and plugin files, and
which NCCL would be loaded), ``interfaces``, ``hcas`` and ``gids`` (what NCCL chooses by them), ``transports`` (what a
setting takes out of its hands), ``choices`` (what it chooses as a whole, and what vendors prescribe), ``job`` and
``uniform``. ``fixtures`` holds what the examples of several of them share.
"""

from ncclprobe.checks import JOB
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.software import Software, Version
from ncclprobe.model.findings import Evidence, Finding, Sources, fail, note, seen, warn
from ncclprobe.model.registry import CheckGroup, applies
from ncclprobe.model.report import AttainableRate, Setting
from ncclprobe.model.snapshot import Absent, Job

HCA_GROUP = CheckGroup("hca", "NCCL_IB_HCA does not name the ports that the job needs")
IFNAME_GROUP = CheckGroup("ifname", "A variable names interfaces that do not reach the other nodes")
VALUE_GROUP = CheckGroup("value", "A variable's value is misread or rejected")
NAME_GROUP = CheckGroup("name", "A variable is not read, has no effect, or is overridden")
DEBUG_GROUP = CheckGroup("debug", "A debugging setting slows the job, or its output is lost")
TRANSPORT_GROUP = CheckGroup("transport", "A fast transport is switched off, missing or not chosen")
GID_GROUP = CheckGroup("gid", "The GIDs that NCCL uses do not lead to the other nodes")
FILES_GROUP = CheckGroup("files", "A file that NCCL reads has wrong content")
LIBRARIES_GROUP = CheckGroup("libraries", "A library that NCCL loads is missing or incomplete")
START_GROUP = CheckGroup("start", "NCCL or torch cannot start on this node")
DANGER_GROUP = CheckGroup("danger", "A setting can make results wrong, or hides a fault")
IDENTITY_GROUP = CheckGroup("identity", "NCCL_COMM_ID or NCCL_HOSTID is wrong")


@applies
def nccl_job(job: Job) -> bool:
    """to jobs on GPUs (--backend nccl)."""
    return job.backend == "nccl"


def as_evidence(entry: Setting) -> Evidence:
    """Return a setting as it was written, and its place: the environment, or a file and its line."""
    file, _, line = entry.origin.rpartition(":")
    text = entry.name if entry.value is None else f"{entry.name}={entry.value}"
    return seen(file, text, int(line)) if file and line.isdecimal() else seen(entry.origin, text)


def evidence(settings: Settings, *names: str) -> tuple[Evidence, ...]:
    """Return those of `names` that are set."""
    return tuple(as_evidence(settings.effective[name]) for name in names if name in settings.effective)


UNPRICED = Absent("no expected bandwidth is known for this machine")


def costs_nothing(predicted: AttainableRate | Absent, name: str) -> bool:
    """Return whether nodes are known to lose nothing by a setting of the network, because NVLink joins them."""
    return isinstance(predicted, AttainableRate) and predicted.nvlinked and name not in predicted.settings


def loaded(software: Software | Absent) -> Version | None:
    """Return the version of the NCCL that a job would load; None if it is not known; callers then assume the newest."""
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
