"""Logs of releases and settings that do not fit: what each cause must find, and what it must leave alone."""

from ncclprobe.checks.log.versions import HUNG
from tests.checks.cases import Cases, alike

_TWO_RELEASES = (
    "n1:7:7 [0] NCCL INFO NCCL version 2.27.7+cuda13.0\nn2:8:8 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n"
    "n1:7:7 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 busId 7 commId 0x9 - Init START\n"
    "n2:8:8 [0] NCCL INFO ncclCommInitRank comm 0x2 rank 1 nranks 2 cudaDev 0 busId 7 commId {other} - Init START"
)
_ONE_JOB, _TWO_JOBS = _TWO_RELEASES.format(other="0x9"), _TWO_RELEASES.format(other="0x8")
GARBLED = (
    "n1:7:9 [0] bootstrap.cc:335 (bootstrapRoot) NCCL WARN Bootstrap Root : mismatch in info from procs, "
    "nranks 4 vs 4, nroots 1 vs 1, iroot 0 vs 0, offset 0 vs 462553090"
)

CASES = {
    "log.known-bugs": Cases(
        bad=[
            (
                "FAIL image: n1:7 on n1",
                "n1:7:7 [0] NCCL INFO NCCL version 2.24.3+cuda12.6\n"
                "n1:7:7 [0] include/alloc.h:140 NCCL WARN Cuda failure 304 'operation not permitted'",
            )
        ],
        good=[
            "n1:7:7 [0] NCCL INFO NCCL version 2.27.3+cuda12.8\n"
            "n1:7:7 [0] transport/shm.cc:590 NCCL WARN Cuda failure 'OS call failed or operation not supported on this "
            "OS'"
        ],
    ),
    "log.versions/settings-differ": Cases(
        bad=[
            (
                "FAIL job: NCCL_BUFFSIZE on n1; FAIL job: NCCL_BUFFSIZE on n2",
                "n1:7:7 [0] NCCL INFO NCCL_BUFFSIZE set by environment to 8388608.\n"
                f"n2:8:8 [0] NCCL INFO NCCL_BUFFSIZE set by environment to 4194304.\n{HUNG}",
            ),
            (
                "FAIL job: NCCL_P2P_DISABLE on n1",
                "n1:7:7 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1\nn1:7:7 [0] NCCL INFO Init COMPLETE\n"
                f"n2:8:8 [0] NCCL INFO Init COMPLETE\n{HUNG}",
            ),
            (
                "FAIL job: NCCL_SOCKET_FAMILY on n1",
                f"n1:7:7 [0] NCCL INFO NCCL_SOCKET_FAMILY set by environment to AF_INET6\n"
                f"n2:8:8 [0] NCCL INFO comm 0x1 rank 1 nranks 2 - Init START\n{HUNG}",
            ),
            (
                "FAIL job: NCCL_PROTO on n1; FAIL job: NCCL_PROTO on n2",
                "n1:7:7 [0] NCCL INFO NCCL_PROTO set by environment to Simple\n"
                "n2:8:8 [0] NCCL INFO NCCL_PROTO set by environment to LL\n"
                "n2:8:8 [0] NCCL INFO misc/socket.cc:707 (ncclSocketTryRecv) -> 3",
            ),
            # Wrong data and no error: what ranks of 2.30.7 over sockets end with.
            (
                "FAIL job: NCCL_BUFFSIZE on n1",
                "n1:7:7 [0] NCCL INFO NCCL_BUFFSIZE set by environment to 262144.\nn1:7:7 [0] NCCL INFO Init COMPLETE\n"
                "n2:8:8 [0] NCCL INFO Init COMPLETE\nrank 0: done",
            ),
        ],
        good=[
            "n1:7:7 [0] NCCL INFO NCCL_PROTO set by environment to Simple\n"
            "n2:8:8 [0] NCCL INFO NCCL_PROTO set by environment to LL",
            "n1:7:7 [0] NCCL INFO NCCL_BUFFSIZE set by environment to 262144.\nn1:7:7 [0] NCCL INFO Init COMPLETE\n"
            "n2:8:8 [0] NCCL INFO NCCL_BUFFSIZE set by environment to 262144.\nn2:8:8 [0] NCCL INFO Init COMPLETE",
            f"n1:7:7 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to a\n"
            f"n2:8:8 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to b\n{HUNG}",
            f"n1:7:7 [0] NCCL INFO NCCL_PROTO set by environment to LL\nn2:8:8 [0] NCCL INFO Init START\n{HUNG}",
        ],
    ),
    "log.versions/nccl-versions-differ": Cases(
        bad=[
            (
                "FAIL image: n1:7 on n1",
                "n1:7:7 [0] init.cc:9 NCCL WARN Mismatched NCCL version detected : rank 0 version 23007 rank 1 version "
                "22703",
            ),
            *alike(
                "FAIL image: rank 0 on n1; FAIL image: rank 1 on n2",
                f"{_ONE_JOB}\nn1:7:7 [0] misc/socket.cc:71 NCCL WARN Connection closed by remote peer",
                f"{_TWO_JOBS}\n{GARBLED}",
                f"{_TWO_JOBS}\nn1:7:9 [0] include/alloc.h:178 NCCL WARN Failed to malloc -468000 bytes",
            ),
        ],
        good=[
            "n1:7:7 [0] NCCL INFO NCCL version 2.18.3+cuda12.2\n"
            "n2:8:8 [0] bootstrap.cc:77 NCCL WARN Message truncated : received 264 bytes instead of 256",
            f"{_TWO_JOBS}\nn1:7:7 [0] misc/socket.cc:71 NCCL WARN Connection closed by remote peer",
            f"{_TWO_JOBS}\nn1:7:9 [0] include/alloc.h:178 NCCL WARN Failed to malloc 468000 bytes",
        ],
    ),
    "log.versions/another-library": Cases(
        bad=[
            ("FAIL image: example", "OSError: libnccl.so.2: cannot open shared object file: No such file or directory"),
            (
                "FAIL image: n1:7 on n1",
                "n1:7:7 [0] dev_runtime.cc:90 NCCL WARN NCCL library is too old. This application was compiled with "
                "NCCL version 2.30.7, but is running with NCCL library version 2.29.2.",
            ),
        ]
    ),
}
