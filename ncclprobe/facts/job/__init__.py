"""What a running job shows: its ranks on a node, what each does, twice, and what torch has recorded of its calls."""

SOURCE = "job"
