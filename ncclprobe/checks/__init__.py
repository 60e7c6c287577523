"""The rules: one module per id prefix, each rule a pure function from facts to findings.

A check never looks at the machine. Its docstring is its explanation: what the problem is, why it matters, how to fix
it; its decorator holds an example that triggers it and one that does not, and both run as tests.

Prefixes: ``env`` environment variables and NCCL's files; ``host`` limits, memory, processors and clocks of the node;
``gpu``, ``nvl``, ``pci``, ``ib`` devices and the links between them; ``launch`` which ranks take part and how nodes
find each other; ``path`` measurements between nodes, ``rail`` over RDMA; ``sync`` what has to be equal on all nodes;
``run`` what a run measured; ``trend`` a node's history in a store of reports. A folder's ``__init__`` holds what its
checks share; ``fixtures`` holds small facts for examples.

`blame` is whose fault it is: the job's settings, the image, the node, a link or the fabric between nodes; `action` is
what helps: fix-job, fix-image, retest (the cause may have passed) or repair (a part needs service). `applies` names the
jobs or machines that the question makes sense for; all others are skipped. A check whose fact is missing is unknown
without it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ncclprobe.facts.machine import System
from ncclprobe.model.registry import applies
from ncclprobe.model.snapshot import Absent, Every

Blamed = Mapping[str, Any]
JOB: Blamed = MappingProxyType({"blame": "job", "action": "fix-job"})
IMAGE: Blamed = MappingProxyType({"blame": "image", "action": "fix-image"})
NODE: Blamed = MappingProxyType({"blame": "node", "action": "repair"})
FABRIC: Blamed = MappingProxyType({"blame": "fabric", "action": "repair"})
"""Whose fault a finding is, and what helps: most of what checks say of that."""


@applies
def several(nodes: Every[System | Absent]) -> bool:
    """if several nodes were examined."""
    return len(nodes) > 1
