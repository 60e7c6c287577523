"""Comparisons: what must be equal on all nodes of a job, or is probably a mistake if it is not.

``host`` (inventories, kernel, limits, layout), ``software`` (versions, what the job runs, clocks), ``settings``
(variables, from any source), ``links`` (ports, marks of RoCE, NVLink between machines), ``placement`` (zones,
switches), ``addresses`` (also of the interfaces that carry data) and ``roster`` (nodes that are missing or were lost).
A majority may be wrong: nodes that differ are named, and blamed only if they have less than the others. With two nodes
neither is blamed. A fabric manager whose version differs from the driver's concerns one node: ``nvl.fabric``.
"""

from ncclprobe.model.registry import CheckGroup

VERSIONS_GROUP = CheckGroup("versions", "Nodes have different software or firmware")
MACHINE_GROUP = CheckGroup("machine", "The nodes are not machines of the same kind")
LIMITS_GROUP = CheckGroup("limits", "Limits differ between nodes")
NETWORK_GROUP = CheckGroup("network", "The network is configured differently on different nodes")
NODES_GROUP = CheckGroup("nodes", "Nodes of the job did not join, or were lost")
IDENTITY_GROUP = CheckGroup("identity", "Different nodes have the same address or identity")
LOCATION_GROUP = CheckGroup("location", "Nodes of the job are far from each other")
