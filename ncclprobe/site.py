"""What a check of a site is written with, in one import that stays: see docs/site-checks.md.

Facts that are not here are types of ``ncclprobe.facts``, whose fields may change between minor releases.
"""

from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.machine import System
from ncclprobe.facts.memory import Memory
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.model.findings import Evidence, Finding, fail, note, seen, warn
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent, Every, Job

__all__ = [
    "Absent",
    "Cpus",
    "Every",
    "Evidence",
    "Fabric",
    "Finding",
    "Gpus",
    "Interfaces",
    "Job",
    "Memory",
    "Settings",
    "System",
    "check",
    "fail",
    "note",
    "seen",
    "warn",
]
