"""Logs of releases and settings that do not fit: what each cause must find, and what it must leave alone."""

from ncclprobe.checks.log.versions import HUNG
from tests.checks.cases import INFO, WARN, Cases

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

CASES: Cases = {
    "log.known-bugs": [
        (
            "FAIL image: n1:7 on n1",
            f"{INFO}NCCL version 2.24.3+cuda12.6\n"
            "n1:7:7 [0] include/alloc.h:140 NCCL WARN Cuda failure 304 'operation not permitted'",
        ),
        f"{INFO}NCCL version 2.27.3+cuda12.8\n{WARN}Cuda failure 'OS call failed or operation not supported on this "
        "OS'",
    ],
    "log.versions/settings-differ": [
        (
            "FAIL job: NCCL_BUFFSIZE on n1; FAIL job: NCCL_BUFFSIZE on n2",
            f"{INFO}NCCL_BUFFSIZE set by environment to 8388608.\nn2:8:8 [0] NCCL INFO NCCL_BUFFSIZE set by "
            f"environment to 4194304.\n{HUNG}",
        ),
        (
            "FAIL job: NCCL_P2P_DISABLE on n1",
            f"{INFO}NCCL_P2P_DISABLE set by environment to 1\n{INFO}Init COMPLETE\nn2:8:8 [0] NCCL INFO Init "
            f"COMPLETE\n{HUNG}",
        ),
        (
            "FAIL job: NCCL_SOCKET_FAMILY on n1",
            f"{INFO}NCCL_SOCKET_FAMILY set by environment to AF_INET6\nn2:8:8 [0] NCCL INFO comm 0x1 rank 1 nranks 2 "
            f"- Init START\n{HUNG}",
        ),
        (
            "FAIL job: NCCL_PROTO on n1; FAIL job: NCCL_PROTO on n2",
            f"{INFO}NCCL_PROTO set by environment to Simple\nn2:8:8 [0] NCCL INFO NCCL_PROTO set by environment to "
            "LL\nn2:8:8 [0] NCCL INFO misc/socket.cc:707 (ncclSocketTryRecv) -> 3",
        ),
        # Wrong data and no error: what ranks of 2.30.7 over sockets end with.
        (
            "FAIL job: NCCL_BUFFSIZE on n1",
            f"{INFO}NCCL_BUFFSIZE set by environment to 262144.\n{INFO}Init COMPLETE\nn2:8:8 [0] NCCL INFO Init "
            "COMPLETE\nrank 0: done",
        ),
        f"{INFO}NCCL_PROTO set by environment to Simple\nn2:8:8 [0] NCCL INFO NCCL_PROTO set by environment to LL",
        f"{INFO}NCCL_BUFFSIZE set by environment to 262144.\n{INFO}Init COMPLETE\nn2:8:8 [0] NCCL INFO NCCL_BUFFSIZE "
        "set by environment to 262144.\nn2:8:8 [0] NCCL INFO Init COMPLETE",
        f"{INFO}NCCL_SOCKET_IFNAME set by environment to a\nn2:8:8 [0] NCCL INFO NCCL_SOCKET_IFNAME set by "
        f"environment to b\n{HUNG}",
        f"{INFO}NCCL_PROTO set by environment to LL\nn2:8:8 [0] NCCL INFO Init START\n{HUNG}",
    ],
    "log.versions/nccl-versions-differ": [
        (
            "FAIL image: n1:7 on n1",
            f"{WARN}Mismatched NCCL version detected : rank 0 version 23007 rank 1 version 22703",
        ),
        (
            "FAIL image: rank 0 on n1; FAIL image: rank 1 on n2",
            f"{_ONE_JOB}\n{WARN}Connection closed by remote peer",
            f"{_TWO_JOBS}\n{GARBLED}",
            f"{_TWO_JOBS}\n{WARN}Failed to malloc -468000 bytes",
        ),
        f"{INFO}NCCL version 2.18.3+cuda12.2\nn2:8:8 [0] bootstrap.cc:77 NCCL WARN Message truncated : received 264 "
        "bytes instead of 256",
        f"{_TWO_JOBS}\n{WARN}Connection closed by remote peer",
        f"{_TWO_JOBS}\n{WARN}Failed to malloc 468000 bytes",
    ],
    "log.versions/another-library": [
        ("FAIL image: example", "OSError: libnccl.so.2: cannot open shared object file: No such file or directory"),
        (
            "FAIL image: n1:7 on n1",
            f"{WARN}NCCL library is too old. This application was compiled with NCCL version 2.30.7.",
        ),
    ],
}
