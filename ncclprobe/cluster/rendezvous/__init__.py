"""Let the nodes of a job find each other before the job does, and send their facts to rank 0.

``token`` is the shared secret, ``reach`` finds rank 0 layer by layer and acts as a node towards it, ``coordinator`` is
rank 0's side, ``messages`` the protocol, ``store`` the detour if torchrun has the port, ``siblings`` the ranks of one
node, ``run_in_thread`` a thread for calls that may never return.
"""
