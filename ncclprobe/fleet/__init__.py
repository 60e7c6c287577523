"""The store of reports: each report's record of each node, a test of its numbers over time, and its state."""
