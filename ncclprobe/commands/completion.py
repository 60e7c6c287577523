"""``ncclprobe completion``: shell completion (bash, zsh, fish) of commands, options, values and check ids.

shtab generates it from the parsers, so no option is forgotten, and no key press starts Python.
"""

import argparse
import importlib
from collections.abc import Sequence
from typing import Any

from ncclprobe import commands
from ncclprobe.commands import arguments
from ncclprobe.engine.diagnose import every_check
from ncclprobe.model.findings import ExitCode

_SHELLS = ("bash", "zsh", "fish")
_FILES = ("PATH", "FILE", "CAPTURE", "OLD", "NEW", "add FILE|node NAME")
_FOLDERS = ("DIR",)
_IDS = ("GLOB", "FILE|ID")
"""Metavars of values that are check ids."""

_MORE = """bash, for one user:

  cd ~/.local/share/bash-completion/completions
  ncclprobe completion bash >ncclprobe

zsh, if ~/.zfunc is in fpath before compinit:

  ncclprobe completion zsh >~/.zfunc/_ncclprobe

fish:

  ncclprobe completion fish >~/.config/fish/completions/ncclprobe.fish"""

_PREAMBLE = {
    "bash": '_ncclprobe_ids() {{ compgen -W "{ids}" -- "$1"; compgen -f -- "$1"; }}',
    "zsh": "_ncclprobe_ids() {{ compadd {ids}; _files }}",
    "fish": "set -g _ncclprobe_ids {ids}",
}
_COMPLETE_IDS = {
    "bash": "_ncclprobe_ids",
    "zsh": "_ncclprobe_ids",
    "fish": "(string join \\n $_ncclprobe_ids; __fish_complete_path (commandline -ct))",
}


def main(argv: Sequence[str]) -> int:
    """Print the completion script for a shell. Raises UsageError."""
    shell = _parser().parse_args(argv).shell
    print(script(shell))
    return ExitCode.OK


def script(shell: str) -> str:
    """Return the completion script for `shell`."""
    import shtab

    ids = sorted({check.id for check in every_check()})
    preamble: Any = {name: text.format(ids=" ".join(ids)) for name, text in _PREAMBLE.items()}
    text = str(shtab.complete(whole(), shell, preamble=preamble))
    return text.replace('"(*):', '"*:') if shell == "zsh" else text  # shtab's form completes the first word only


def whole() -> argparse.ArgumentParser:
    """Return one parser with a subparser per command, whose values state how they are completed."""
    import shtab

    parser = argparse.ArgumentParser("ncclprobe")
    parser.add_argument("--version", action="store_true", help="Print the version.")
    each = parser.add_subparsers(metavar="COMMAND")
    ways: dict[str, object] = {**dict.fromkeys(_FILES, shtab.FILE), **dict.fromkeys(_FOLDERS, shtab.DIRECTORY)}
    ways |= dict.fromkeys(_IDS, _COMPLETE_IDS)
    for name, about in commands.COMMANDS.items():
        own = importlib.import_module(f"{commands.__name__}.{name}")._parser()
        for action in own._actions:
            named = str(action.metavar).partition("[")[0]
            if action.choices is None and named in ways:
                action.complete = ways[named]
        each.add_parser(name, help=about, description=about, parents=[own], add_help=False)
    return parser


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser("completion", "Print a shell's completion script for ncclprobe.", _MORE)
    parser.add_argument("shell", choices=_SHELLS, help="Print it for this shell.")
    return parser
