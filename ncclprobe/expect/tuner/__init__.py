"""NCCL's own estimate: its channel search, its cost model by version, and the dumps that show its results."""
