"""Quotas of this user and its group where a path is: quotactl_fd(2), Linux 5.14 and newer; asked by path_child.py.

File systems without quotas refuse the question at once. A file server's quotas are behind a protocol of their own
(rquotad, lfs quota) which is not spoken; some servers show them as the size of the file system (CephFS, ZFS, project
quotas of XFS), which statvfs(3) then has.
"""

import ctypes
import os
from typing import Any

_QUOTACTL_FD = 443
"""The same number on all architectures: it is younger than the common table."""
_GETQUOTA, _KINDS = 0x800007, {"user": 0, "group": 1}
_BLOCK = 1024
"""Of limits: QIF_DQBLKSIZE."""
_NUMBERS = ("bhardlimit", "bsoftlimit", "curspace", "ihardlimit", "isoftlimit", "curinodes", "btime", "itime")


class _Block(ctypes.Structure):
    """``struct if_dqblk`` of linux/quota.h."""

    _fields_ = [*((name, ctypes.c_uint64) for name in _NUMBERS), ("valid", ctypes.c_uint32)]


def quotas(path: str) -> list[dict[str, Any]]:
    """Return the hard limits that are set there, with what is used of them. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        whose = {"user": os.geteuid(), "group": os.getegid()}
        asked = {kind: _asked(fd, kind, number) for kind, number in whose.items()}
    finally:
        os.close(fd)
    return [
        {
            "kind": kind,
            "limit_bytes": block.bhardlimit * _BLOCK,
            "used_bytes": block.curspace,
            "limit_files": block.ihardlimit,
            "used_files": block.curinodes,
        }
        for kind, block in asked.items()
        if block and (block.bhardlimit or block.ihardlimit)
    ]


def _asked(fd: int, kind: str, number: int) -> _Block | None:
    block, command = _Block(), _GETQUOTA << 8 | _KINDS[kind]
    libc = ctypes.CDLL(None, use_errno=True)
    words = (_QUOTACTL_FD, fd, command, number)
    failed = libc.syscall(*map(ctypes.c_long, words), ctypes.byref(block))
    return None if failed else block
