"""Play NCCL's own net_ib over soft-RoCE in a guest: two ranks, an RDMA device, and what goes wrong with it.

    python tests/guest/nccl_ib.py OUT [CASE …]    boots a guest; adds to tests/data/nccl_failures/RELEASE-ib.jsonl.gz

NCCL is what scripts/nccl_on_cpu.py built. Both ranks use one device, over which soft-RoCE hands packets on within the
kernel: a cable that is pulled is not seen. Needs what rail_faults.py does; some minutes.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from failures import nccl
from failures.nccl_cases import NcclCase
from gpu_stages import processes
from on_cpu import build, machine

TAG = build.RELEASES[0]
PARTS = ("name", "code", "ranks", "words", "hosts", "env", "per_rank", "library", "leaves_out", "prefix")
_ALL_S, _CASE_S = 1500.0, 150.0
_FAST = {"NCCL_NTHREADS": "64", "NCCL_MAX_NCHANNELS": "1", "NCCL_SOCKET_IFNAME": "lo", "RANK_WAITS_S": "60"}
_IB = {"NCCL_NET": "IB", "NCCL_NET_GDR_LEVEL": "LOC", "NCCL_SHM_DISABLE": "1", "NCCL_P2P_DISABLE": "1"}
_SOON = {"NCCL_IB_TIMEOUT": "12", "NCCL_IB_RETRY_CNT": "2"}
_SAYS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV"}
_STEP = "all_reduce:1000"
_LITTLE = ("prlimit", "--memlock=65536:65536", "setpriv", "--bounding-set=-ipc_lock")
CASES = (
    NcclCase("ib-healthy", "", (), (_STEP, "all_reduce:3000")),
    NcclCase("ib-killed-in-a-call", "rank-crashed", (1,), (_STEP, "1!sleep:2", "1!kill", _STEP), env=_SOON),
    NcclCase("ib-memlock", "memlock", (), (_STEP,), prefix=_LITTLE),
    NcclCase("ib-gid-index", "ib-gid", (), (_STEP,), env={"NCCL_IB_GID_INDEX": "9", **_SOON}),
    NcclCase("ib-device-missing", "ib-hca-wrong", (), (_STEP,), env={"NCCL_IB_HCA": "mlx5_9"}),
    NcclCase("ib-port-down", "ib-hca-wrong", (), (_STEP, "sleep:20", _STEP), env=_SOON),
)
PLANTED = {"ib-port-down": "ip link set v0 down"}
"""What is done to the device before the ranks begin. NCCL takes no port that is down, and so has none."""
READY = (
    "hostname n0; ip link set lo up; modprobe rdma_rxe; modprobe ib_uverbs; modprobe veth; "
    "ip link add v0 type veth peer name v1; ip link set v0 mtu 4200; ip link set v1 mtu 4200; "
    "ip addr add 10.9.0.1/24 dev v0; ip link set v0 up; ip link set v1 up; "
    "rdma link add rxe0 type rxe netdev v0; sleep 1"
)


def main(words: Sequence[str]) -> int:
    """Boot a guest and keep what it left; or be what runs inside."""
    if words[0] == "inside":
        inside(Path(words[1]), words[2:])
        return 0
    out = Path(words[0]).resolve()
    out.mkdir(exist_ok=True)
    boot(out, words[1:])
    path = nccl.RECORDED / f"{TAG.removeprefix('v').removesuffix('-1')}-ib.jsonl.gz"
    rows = nccl.read(path) if path.exists() else {}
    lines = (out / "rows.jsonl").read_text().splitlines() if (out / "rows.jsonl").exists() else []
    rows |= {row["name"]: row for row in map(json.loads, lines)}
    nccl.write(path, rows)
    return 0 if lines else 1


def boot(out: Path, names: Sequence[str]) -> None:
    """Run the guest to its end, or to its deadline."""
    kernel = max(Path("/boot").glob("vmlinuz-*"), key=lambda path: path.name)
    command = [sys.executable, str(Path(__file__).resolve()), "inside", str(out), *names]
    guest = ["vng", "-r", str(kernel), "--force-9p", "--disable-kvm", "--disable-microvm", "--user", "root"]
    guest += ["--rwdir", str(out), "--cpus", "2", "--memory", "2G", "--", shlex.join(command)]
    ended = processes.run(guest, out / "guest.log", os.environ, _ALL_S)
    print(f"guest: exit {ended.code}, {ended.seconds:.0f} s", file=sys.stderr)


def inside(out: Path, names: Sequence[str]) -> None:
    """Play each case, and write its row at once."""
    subprocess.run(["sh", "-c", READY], check=True, timeout=_CASE_S)
    for case in CASES:
        if names and case.name not in names:
            continue
        subprocess.run(["sh", "-c", PLANTED.get(case.name, ":")], check=True, timeout=_CASE_S)
        row = played(case, out)
        with (out / "rows.jsonl").open("a") as rows:
            rows.write(json.dumps(row) + "\n")
        print(case.name, row["exit_codes"], row["seconds"], flush=True)


def played(case: NcclCase, out: Path) -> dict[str, object]:
    """Both ranks of a case, as two hosts that NCCL_HOSTID tells apart."""
    work = out / case.name
    work.mkdir(exist_ok=True)
    lib = build.folder(TAG) / "lib"
    env = {"PATH": os.environ["PATH"], **machine.variables(lib, work, 2), **_FAST, **_IB, **_SAYS, **case.env}
    command = [*case.prefix, sys.executable, str(build.SOURCES / "rank.py"), str(work / "id"), *case.words]
    started = [
        processes.start(
            command,
            work / f"rank{n}.log",
            {**env, "RANK": str(n), "LOCAL_RANK": str(n), "WORLD_SIZE": "2", "NCCL_HOSTID": f"h{n}"},
        )
        for n in range(2)
    ]
    ends = processes.wait(started, _CASE_S)
    about = {name: getattr(case, name) for name in PARTS}
    paths = {str(work): "/opt/job", str(lib): "/opt/nccl", str(ROOT): "/opt/src", str(sys.base_prefix): "/opt/python"}
    logs = {}
    for n, end in enumerate(ends):
        logs[f"rank{n}"] = end.text
        for ours, theirs in paths.items():
            logs[f"rank{n}"] = logs[f"rank{n}"].replace(ours, theirs)
    codes = {f"rank{n}": end.code for n, end in enumerate(ends)}
    return {**about, "exit_codes": codes, "seconds": round(max(end.seconds for end in ends)), "logs": logs}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
