"""Find out which nodes reach each other: every node listens on its interfaces and calls those that a plan names.

Nodes call each other on interfaces of the same *role*: ``nccl0``, ``nccl1``, … in NCCL's order, ``default``, and
``gloo0``, … for what gloo groups alone would listen on.
"""

from ncclprobe.cluster.mesh.listeners import Listeners, MeshInterface, reserve_listeners
from ncclprobe.cluster.mesh.plan import NodePlan, answering, plan_mesh
from ncclprobe.cluster.mesh.walk import doubtful, merged, walk

__all__ = [
    "Listeners",
    "MeshInterface",
    "NodePlan",
    "answering",
    "doubtful",
    "merged",
    "plan_mesh",
    "reserve_listeners",
    "walk",
]
