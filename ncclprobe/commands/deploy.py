"""``ncclprobe deploy``: write the launch files of the package for Slurm, Kubernetes, GitHub or Prometheus."""

import argparse
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from types import MappingProxyType

from ncclprobe.commands import arguments
from ncclprobe.host import files
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.layout import wrap
from ncclprobe.report import delivery

FILES: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "slurm": ("slurm_batch", "slurm_prolog", "slurm_health"),
        "kubernetes": ("kubernetes_init.yaml", "kubernetes_job.yaml", "kubernetes_jobset.yaml"),
        "github": ("github_actions.yaml",),
        "prometheus": ("prometheus/rules.yaml", "prometheus/rules_test.yaml", "prometheus/dashboard.json"),
    }
)
"""Files by launcher: names below ncclprobe/deploy."""


_MOST_BYTES = 1 << 20


def main(argv: Sequence[str]) -> int:
    """Write the files of one launcher and describe each. Raises UsageError, before any file is written."""
    options = _parser().parse_args(argv)
    folder = options.folder or options.out
    texts = {folder / Path(name).name: launch_text(name) for name in FILES[options.launcher]}
    for path, text in texts.items():
        if path.exists() and files.read(path, limit=_MOST_BYTES) != text:
            raise UsageError(f"{path} exists and differs; move it away, or give another folder")
    for path, text in texts.items():
        files.write(path, text)
        if text.startswith("#!"):
            path.chmod(0o755)
        about = summary(text)
        print("\n".join([str(path), *(wrap("  ", about, delivery.width()) if about else [])]))
    return ExitCode.OK


def launch_text(name: str) -> str:
    return resources.files("ncclprobe").joinpath(f"deploy/{name}").read_text(encoding="utf-8")


def summary(text: str) -> str:
    """Return a file's description of itself: the first sentence of its first comment, or the description in JSON."""
    if text.startswith("{"):
        return str(json.loads(text)["description"])
    lines = text.removeprefix("#!/bin/sh\n").splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("# "), lines)
    return re.split(r"(?<=\.)\s(?=[A-Z])|\n(?=[A-Z])", "\n".join(line[2:] for line in comment))[0].replace("\n", " ")


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(
        "deploy",
        "Write the launch files of this release to a folder. Comments in each file explain what to change. Nothing is "
        "installed or started.",
    )
    parser.add_argument("launcher", choices=tuple(FILES), help="Write the files for this.")
    parser.add_argument("folder", nargs="?", type=_folder, metavar="DIR",
        help="Write to this folder (default: the working directory).")  # fmt: skip
    parser.add_argument("-o", dest="out", type=_folder, default=Path(), metavar="DIR", help="The same.")
    return parser


def _folder(text: str) -> Path:
    """Make a world-readable folder, for argparse."""
    path = Path(text)
    try:
        files.make_folder(path)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{ascii(text)[:200]} cannot be created: {error.strerror}") from None
    return path
