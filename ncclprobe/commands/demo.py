"""``ncclprobe demo NAME``: what a command prints for a fault, on any machine, from files inside the package."""

import gzip
import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ncclprobe.commands import arguments
from ncclprobe.commands import main as run
from ncclprobe.host import files
from ncclprobe.model.findings import ExitCode

if TYPE_CHECKING:
    from importlib.abc import Traversable

DEMOS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "hang": ("explain", "hang"),
        "slow-nic": ("doctor", "slow-nic", "--select", "run.*"),
        "bad-env": ("doctor", "bad-env.jsonl"),
        "sick-node": ("doctor", "sick-node.jsonl"),
    }
)
"""Each demo and its command line, over names below ncclprobe/demo."""


def main(argv: Sequence[str]) -> int:
    """Run the command of one demo in a folder with the files; return 0, whatever its verdict."""
    options = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="ncclprobe-demo-") as scratch:
        folder = options.keep or Path(scratch)
        _unpack(resources.files("ncclprobe").joinpath("demo"), folder)
        print(f"$ ncclprobe {shlex.join(DEMOS[options.name])}", flush=True)
        here = Path.cwd()
        os.chdir(folder)
        try:
            code = run(DEMOS[options.name])
        finally:
            os.chdir(here)
    print(f"\nThat command read recorded or made-up files, and its exit code was {code}.")
    print("`--keep DIR` keeps the files. Other demos: " + ", ".join(each for each in DEMOS if each != options.name))
    return ExitCode.OK


def _unpack(package: "Traversable", folder: Path) -> None:
    """Write the files of all demos below `folder`; an overlay names its machine in the same folder."""
    for each in package.iterdir():
        if each.is_dir():
            files.make_folder(folder / each.name)
            _unpack(each, folder / each.name)
        else:
            held = each.read_bytes()
            text = gzip.decompress(held) if each.name.endswith(".gz") else held
            files.write(folder / each.name.removesuffix(".gz"), text.decode())


def _parser() -> arguments.Parser:
    parser = arguments.Parser(
        "demo",
        "Show the report for a fault. It runs a command on captures that are part of the package, and needs no GPU, no "
        "cluster and no network.",
    )
    parser.add_argument("name", nargs="?", choices=tuple(DEMOS), default="hang", metavar="NAME",
        help="Show this one (default: hang): hang, a rank that blocks two others; slow-nic, one slow NIC among eight; "
        "bad-env, settings that NCCL does not read as intended; sick-node, a node with two slow links.")  # fmt: skip
    parser.add_argument("--keep", type=arguments.folder, metavar="DIR",
        help="Write the files to this folder, so that you can run other commands over them.")  # fmt: skip
    return parser
