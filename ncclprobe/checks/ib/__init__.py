"""InfiniBand and RoCE: the NICs and ports that NCCL's own transport takes, one at a time and against each other."""
