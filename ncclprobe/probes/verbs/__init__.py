"""The verbs zone: RDMA between two ports through libibverbs, by ctypes. It never loads torch."""
