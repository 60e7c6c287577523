"""NCCL's own rules as pure functions: texts and interfaces in, NCCL's interpretation out.

Nothing here looks at a machine. Every rule names the file and line of NCCL v2.30.7 that it was read from, and the first
version that has it if that matters; a ``version`` of ``None`` means the newest one known.

* ``parameters``: the table of variables, and which known name a misspelt one resembles
* ``values``: how one value is read
* ``lists``: the grammar of NCCL_SOCKET_IFNAME and NCCL_IB_HCA
* ``interfaces``: which network interfaces are used
* ``hcas``, ``gids``: which RDMA ports are used, and which GID of each
* ``gpudirect``, ``p2p``: how GPU memory reaches NICs and other GPUs
* ``algorithms``: the grammar of NCCL_ALGO and NCCL_PROTO

Version numbers are :mod:`ncclprobe.facts.software`'s, configuration files :mod:`ncclprobe.facts.nccl_conf`'s.
"""
