"""Machine types, GPUs and links as reviewed tables: every number beside its source."""
