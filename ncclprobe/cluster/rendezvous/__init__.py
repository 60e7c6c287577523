"""Let the nodes of a job find each other before the job does, and send their facts to rank 0.

``token`` is the secret they share, ``reach`` the layers of the way to rank 0 and what the other nodes do there,
``coordinator`` rank 0's side, ``messages`` the protocol, ``store`` the detour if torchrun has the port, ``siblings``
the ranks of one node, ``run_in_thread`` a thread for calls that may never return.
"""
