"""RDMA between two ports through libibverbs, by ctypes. Never loads torch."""
