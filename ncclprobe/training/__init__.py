"""What real training asks of the network: the groups of a hybrid-parallel job, and the collectives of one step.

Plans only: which ranks, how many bytes, in which order, and what that should take. :mod:`ncclprobe.probes` plays them.
"""
