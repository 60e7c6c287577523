"""A rank of one, of NCCL without torch: ``refused_rank.py LIBRARY``; exits with 1 if NCCL does not start."""

import ctypes
import sys


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


nccl = ctypes.CDLL(sys.argv[1])
unique, comm = UniqueId(), ctypes.c_void_p()
nccl.ncclGetErrorString.restype = ctypes.c_char_p
nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int]
nccl.ncclGetUniqueId(ctypes.byref(unique))
if code := nccl.ncclCommInitRank(ctypes.byref(comm), 1, unique, 0):
    print(f"rank 0: ncclCommInitRank: {nccl.ncclGetErrorString(code).decode()}", file=sys.stderr)
sys.exit(bool(code))
