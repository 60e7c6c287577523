"""What became of a measurement: did every rank come, stay, and carry the right bytes fast enough?

The facts are produced by ``ncclprobe.bandwidth``; on a node where nothing was measured they are absent, and these
checks say so.
"""
