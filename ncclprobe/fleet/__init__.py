"""The store of reports: what each tells of each node, a test over time of its numbers, and how the node stands."""
