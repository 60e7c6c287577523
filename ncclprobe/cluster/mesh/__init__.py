"""Find out which nodes reach each other: every node listens on its interfaces and calls those that a plan names.

Nodes call each other on interfaces of the same *role*: ``nccl0``, ``nccl1``, … in NCCL's order, ``default``, and
``gloo0``, … for what gloo groups alone would listen on.
"""
