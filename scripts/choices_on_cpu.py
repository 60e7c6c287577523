#!/usr/bin/env python3
"""Plays ranks of NVIDIA's NCCL on made-up machines, on a processor, and keeps what they choose.

    scripts/choices_on_cpu.py FILE [--tag v2.30.7-1] [--select GLOB…]

FILE: tests/data/on_cpu/choices.jsonl.gz, to which is added what it lacks. For each machine that
scripts/on_cpu/topologies.py makes up, and each of some settings: the graphs, the transport of each pair, algorithm,
protocol and channels by operation and size, as NCCL prints them (NCCL_DEBUG=INFO). Nodes are told apart by NCCL_HOSTID;
their NICs are a plugin's (tests/cuda_stand_in/nics.c). Needs gcc, and what scripts/nccl_on_cpu.py builds.
"""

import argparse
import fnmatch
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from child import fail
from gpu_stages import processes
from gpu_stages.machine import free_port
from on_cpu import build, machine
from on_cpu.topologies import TOPOLOGIES, Topology

_P2P = ({"NCCL_P2P_LEVEL": "PXB"}, {"NCCL_P2P_LEVEL": "SYS"}, {"NCCL_P2P_DISABLE": "1"})
_TREE = {"NCCL_ALGO": "allreduce:Tree", "NCCL_PROTO": "^LL128"}
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
SIZES = tuple(8 << shift for shift in range(0, 28, 3))
_NVLS = {"NCCL_NVLS_ENABLE": "2"}
_FIXED = {"NCCL_NVLS_ENABLE": "0", "NCCL_GRAPH_REGISTER": "0", "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "INFO"}
_FIXED |= {"NCCL_DEBUG_SUBSYS": "INIT,GRAPH,TUNING,P2P,SHM,NET,ENV"}
_GRAPH = re.compile(
    r"Pattern (\d+), crossNic \d+, nChannels (\d+), bw ([\d.]+)/([\d.]+), type (\w+)/(\w+), sameChannels (\d)"
)
_VIA = re.compile(r"Channel \d\d(?:/\d)? : (\d+)\[\d+\] -> (\d+)\[\d+\] (?:\[(\w+)\] )?via (\S+)")
_CHOICE = re.compile(r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")
_DEADLINE_S, _COMPILE_S = 240.0, 60.0
_HOPPER = 90
_MOST_PAIRED = 8
"""GPUs of which each connects with each, which takes NCCL seconds where two processors play them all."""


def main() -> int:
    """Play them, one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--tag", default=build.RELEASES[0], help="NCCL's release (%(default)s)")
    parser.add_argument("--select", default=["*"], nargs="+", metavar="GLOB")
    args = parser.parse_args()
    found = build.cached(args.tag)
    if not found:
        fail(f"NCCL {args.tag} is not built: run scripts/nccl_on_cpu.py first")
    assert found is not None
    lines = gzip.decompress(args.file.read_bytes()).decode().splitlines() if args.file.exists() else []
    known = [(row["machine"], row["settings"]) for row in map(json.loads, lines)]
    for each in TOPOLOGIES:
        chosen = any(fnmatch.fnmatch(each.name, pattern) for pattern in args.select)
        for settings in settings_of(each) if chosen else ():
            if (each.name, settings) not in known:
                row = play(each, settings, found / "lib", args.tag)
                print(each.name, settings, row["exit_codes"], flush=True)
                lines.append(json.dumps(row, separators=(",", ":")))
                args.file.write_bytes(gzip.compress("\n".join([*lines, ""]).encode(), 9, mtime=0))
    return 0


def settings_of(each: Topology) -> list[dict[str, str]]:
    """With which settings a machine is played: those of P2P where NVLink does not join all GPUs of the only node."""
    switched = -1 in each.links(0, each.gpus)
    joined = switched or len(each.links(0, each.gpus)) >= each.gpus - 1
    alone = each.nodes == 1
    nvls = [_NVLS] if switched and each.sm >= _HOPPER and each.gpus > 1 else []
    return [{}, *(_P2P if alone and not joined else ()), *([_TREE] if alone and each.gpus <= 4 else []), *nvls]


def play(each: Topology, settings: dict[str, str], lib: Path, tag: str) -> dict[str, object]:
    """Start a rank on each GPU; return what they printed."""
    ranks = each.gpus * each.nodes
    with tempfile.TemporaryDirectory() as work:
        path, log = Path(work) / "topology.xml", Path(work) / "nccl-%p"
        path.write_text(each.xml())
        shown = machine.variables(lib, Path(work), each.gpus)
        env = {**os.environ, **shown, **_FIXED, **settings, "NCCL_TOPO_FILE": str(path), "NCCL_DEBUG_FILE": str(log)}
        env |= {"FAKE_NVML_BUS": ",".join(each.buses), "FAKE_CUDA_SM": str(each.sm), "FAKE_NVML_LINKS": "0"}
        env |= {"FAKE_NVML_P2P": str(int(each.p2p)), "WORLD_SIZE": str(ranks), "MASTER_PORT": str(free_port())}
        env |= {"FAKE_CUDA_MULTICAST": str(int(settings == _NVLS))}
        if each.nics:
            plugin = Path(work) / "nics.so"
            command = ["gcc", "-shared", "-fPIC", "-w", str(build.SOURCES / "nics.c"), "-o", str(plugin)]
            subprocess.run(command, check=True, timeout=_COMPILE_S)
            env |= {"NCCL_NET_PLUGIN": str(plugin), "FAKE_NICS": each.shown_nics, "FAKE_NICS_GDR": str(int(each.gdr))}
        words = [f"choose:{name}:{size}" for name in OPERATIONS for size in SIZES]
        words = ["pairs", *words] if ranks <= _MOST_PAIRED else words
        command = [sys.executable, str(build.SOURCES / "rank.py"), str(Path(work) / "id"), *words]
        own = ({"RANK": str(n), "LOCAL_RANK": str(n % each.gpus), "NCCL_HOSTID": f"n{n // each.gpus}"}
               for n in range(ranks))  # fmt: skip
        started = [processes.start(command, Path(work) / f"rank{n}.log", {**env, **of}) for n, of in enumerate(own)]
        codes = [end.code for end in processes.wait(started, _DEADLINE_S)]
        said = "".join(path.read_text() for path in sorted(Path(work).glob("nccl-*")))
    return {"nccl": tag, "machine": each.name, "settings": settings, "exit_codes": codes, **read(said)}


def read(said: str) -> dict[str, object]:
    """Return what NCCL's lines tell: of rings and trees by their pattern, and of what all ranks print, each once."""
    graphs = {pattern: [int(count), float(intra), float(inter), one, other, int(same)]
              for pattern, count, intra, inter, one, other, same in _GRAPH.findall(said)}  # fmt: skip
    pairs = {f"{one}-{other}{'-' + end if end else ''}": _way(via) for one, other, end, via in _VIA.findall(said)}
    choices = sorted({(name, int(size), algorithm, protocol, int(last) - int(first) + 1)
                      for name, size, algorithm, protocol, first, last in _CHOICE.findall(said)})  # fmt: skip
    return {"graphs": graphs, "pairs": dict(sorted(pairs.items())), "choices": choices}


def _way(via: str) -> str:
    """``P2P`` of ``P2P/CUMEM``; of a NIC also whether it reaches the GPU: ``NET/GDRDMA`` of ``NET/Nics/0/GDRDMA``."""
    first, *rest = via.split("/")
    return "/".join([first, *(word for word in rest if first == "NET" and word.startswith("GDRDMA"))])


if __name__ == "__main__":
    sys.exit(main())
