"""Machine types, GPUs and links as reviewed tables: every number with its source."""
