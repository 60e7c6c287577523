"""NCCL's own estimate: its channel search, its cost model by version, and the dumps that say what it found."""
