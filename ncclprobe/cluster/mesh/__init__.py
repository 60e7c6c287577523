"""Who reaches whom: every node listens on its roads, and each calls those that a plan names.

A *road* is an interface that nodes have in common: ``nccl0``, ``nccl1``, … as NCCL would choose them, and ``default``.
"""

from ncclprobe.cluster.mesh.listeners import Doors, Road, open_doors
from ncclprobe.cluster.mesh.plan import NodePlan, answering, plan_mesh
from ncclprobe.cluster.mesh.retest import doubtful, merged
from ncclprobe.cluster.mesh.walk import walk

__all__ = ["Doors", "NodePlan", "Road", "answering", "doubtful", "merged", "open_doors", "plan_mesh", "walk"]
