"""Find out which nodes reach each other: every node listens on its interfaces and calls the ones that a plan names.

Nodes call each other on interfaces of the same *role*: ``nccl0``, ``nccl1``, … in NCCL's order, ``default``, and
``gloo0``, … for interfaces that only gloo groups would listen on.
"""
