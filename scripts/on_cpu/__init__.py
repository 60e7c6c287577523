"""NCCL, and torch above it, on a machine without a GPU: what scripts/nccl_on_cpu.py and torch_on_cpu.py share."""
