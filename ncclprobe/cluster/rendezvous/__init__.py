"""How the nodes of a job find each other before the job does, and hand what they know to rank 0.

``token`` is the secret they share, ``reach`` the way to rank 0 in layers, ``listener`` its port, ``hub`` rank 0's side
and ``spoke`` that of the others, ``messages`` what they say, ``store`` the detour where torchrun has the port,
``siblings`` the ranks of one node among themselves, ``aside`` a thread for what may never come back.
"""
