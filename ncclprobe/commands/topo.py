"""``ncclprobe topo [FILE]``: how GPUs and NICs reach each other, as ``nvidia-smi topo`` prints it here or in FILE."""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from ncclprobe import bounds
from ncclprobe.commands import arguments
from ncclprobe.errors import HostError, ParseError, UsageError
from ncclprobe.facts.topo_matrix import Matrix, parse
from ncclprobe.host import files
from ncclprobe.host.live import LiveHost
from ncclprobe.model.values import asdict
from ncclprobe.units import printable

NEAREST_FIRST = ("PIX", "PXB", "PHB", "NODE", "SYS", "SOC")


def main(argv: Sequence[str]) -> int:
    """Print every matrix. Raises UsageError for a text that must be refused, naming the cause."""
    options = _parser().parse_args(argv)
    text = _saved(options.file) if options.file else _printed_here()
    try:
        matrices = parse(text)
    except ParseError as error:
        raise UsageError(f"{options.file or 'nvidia-smi topo -m'}: {printable(str(error))}") from None
    if options.json:
        print(json.dumps({"matrices": [asdict(matrix) for matrix in matrices]}, indent=2))
    else:
        print("\n\n".join("\n".join(_shown(matrix)) for matrix in matrices))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(
        "topo", "Show how GPUs and NICs reach each other, from `nvidia-smi topo -m` here or in FILE."
    )
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="Read the output of `nvidia-smi topo -m` from FILE (default: run it).",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    return parser


def _saved(path: Path) -> str:
    text = files.read_start(path, limit=bounds.TOPO_BYTES + 1)
    if len(text) > bounds.TOPO_BYTES:
        raise UsageError(f"{path}: larger than {bounds.TOPO_BYTES >> 20} MiB: not the output of `nvidia-smi topo -m`")
    return text


def _printed_here() -> str:
    host = LiveHost((), lambda _name: False)
    try:
        return host.ask("run", "nvidia-smi", "topo", "-m")
    except HostError as error:
        raise UsageError(f"{error}; name a file that holds what `nvidia-smi topo -m` printed") from None
    finally:
        host.close()


def _shown(matrix: Matrix) -> Iterator[str]:
    yield f"{matrix.kind}: {len(matrix.gpus)} GPUs, {len(matrix.nics)} NICs"
    names = (*matrix.gpus, *matrix.nics)
    rows = [[name, *(matrix.links[name].get(other, "-") for other in names)] for name in names if name in matrix.links]
    yield _aligned([["", *names], *rows])
    if matrix.kind != "p2p":
        affinities = zip(matrix.gpus, matrix.cpu_affinity, matrix.numa_affinity, matrix.gpu_numa_id, strict=True)
        known = [[gpu, *("-" if value is None else value for value in values)] for gpu, *values in affinities]
        yield ""
        yield _aligned(
            [["GPU", "CPUs", "NUMA", "GPU NUMA", "nearest NICs"]]
            + [[*row, nearest(matrix, gpu)] for row, gpu in zip(known, matrix.gpus, strict=True)]
        )
    yield from (f"incomplete: {printable(what)}" for what in matrix.incomplete)


def nearest(matrix: Matrix, gpu: str) -> str:
    """Return the NICs that are nearest to a GPU, with the path to them; empty without NICs or without the GPU's row."""
    near = {nic: link for nic, link in matrix.links.get(gpu, {}).items() if nic in matrix.nics}
    best = next((link for link in NEAREST_FIRST if link in near.values()), "")
    return best and f"{best}: {' '.join(nic for nic, link in near.items() if link == best)}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    from tabulate import tabulate  # as dear as all the rest of this command

    cells = [[printable(cell) for cell in row] for row in rows]
    table: str = tabulate(cells, tablefmt="plain", disable_numparse=True)
    return table
