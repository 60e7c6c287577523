"""A running job: its ranks on a node, two snapshots of each rank's activity, and torch's record of its calls."""

SOURCE = "job"
