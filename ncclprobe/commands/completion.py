"""``ncclprobe completion``: what lets bash or zsh complete commands, options, their values and the ids of checks.

It is made of the parsers, so that no option is forgotten; it holds all of it, so that no key press starts Python.
"""

import argparse
import importlib
import pkgutil
import re
import shlex
from collections.abc import Iterator, Sequence

from ncclprobe import commands
from ncclprobe.commands import arguments
from ncclprobe.engine.diagnose import every_check
from ncclprobe.model.findings import ExitCode

_FILES = ("PATH", "FILE", "CAPTURE", "OLD", "NEW", "add FILE|node NAME")
_FOLDERS = ("DIR",)
_IDS = ("GLOB", "FILE|ID")
"""By what a parser calls a value: metavar. Words of small letters in it are typed as they are: ``add FILE``."""

_MORE = """bash, for all users and for one:

  ncclprobe completion bash >/etc/bash_completion.d/ncclprobe
  cd ~/.local/share/bash-completion/completions
  ncclprobe completion bash >ncclprobe

zsh, where ~/.zfunc stands in fpath before compinit:

  ncclprobe completion zsh >~/.zfunc/_ncclprobe"""

_BASH = """\
# bash completion of ncclprobe, printed by `ncclprobe completion bash`
_ncclprobe() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}}
  local options rest values=
  [ "$cur" = = ] && cur=
  [ "$prev" = = ] && prev=${{COMP_WORDS[COMP_CWORD-2]}}
  case $command in
{options}
    *) options= rest=@none ;;
  esac
  case "$command $prev" in
{values}
  esac
  [ -n "$values" ] || case $cur in -*) values=$options ;; *) values=$rest ;; esac
  [ "$COMP_CWORD" = 1 ] && values="{names} --help --version"
  case $values in
    @none) COMPREPLY=() ;;
    @files*) compopt -o filenames
      mapfile -t COMPREPLY < <(compgen -W "${{values#@files}}" -- "$cur"; compgen -f -- "$cur") ;;
    @folders) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
    @ids) mapfile -t COMPREPLY < <(compgen -W "$_ncclprobe_ids" -- "$cur"; compgen -f -- "$cur") ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$values" -- "$cur") ;;
  esac
}}
_ncclprobe_ids="{ids}"
complete -F _ncclprobe ncclprobe
"""

_ZSH = """\
#compdef ncclprobe
# zsh completion of ncclprobe, printed by `ncclprobe completion zsh`
_ncclprobe_ids=({ids})
_ncclprobe() {{
  local -a commands=(
{names}
  )
  if (( CURRENT == 2 )); then
    if [[ $PREFIX == -* ]]; then compadd -- --help --version; else _describe command commands; fi
    return
  fi
  shift words
  (( CURRENT-- ))
  case $words[1] in
{options}
  esac
}}
if [ "$funcstack[1]" = _ncclprobe ]; then _ncclprobe "$@"; else compdef _ncclprobe ncclprobe; fi
"""


def main(argv: Sequence[str]) -> int:
    """Print the completion for a shell. Raises UsageError."""
    shell = _parser().parse_args(argv).shell
    parsers = _parsers()
    ids = " ".join(sorted(check.id for check in every_check()))
    print((_bash if shell == "bash" else _zsh)(parsers, ids), end="")
    return ExitCode.OK


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser("completion", "Print what lets a shell complete the words after ncclprobe.", _MORE)
    parser.add_argument("shell", choices=("bash", "zsh"), help="Print it for this shell.")
    return parser


def _parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command: of each module here that has one."""
    names = [each.name for each in pkgutil.iter_modules(commands.__path__)]
    modules = {name: importlib.import_module(f"{commands.__name__}.{name}") for name in names}
    return {name: module._parser() for name, module in modules.items() if hasattr(module, "_parser")}


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the options and arguments that --help shows."""
    return [action for action in parser._actions if action.help != argparse.SUPPRESS]


def _takes(action: argparse.Action) -> str:
    """Return what an option or an argument takes: words, @files (and words), @folders, @ids, @none; empty: a flag."""
    if action.choices is not None:
        return " ".join(map(str, action.choices))
    if action.nargs == 0:
        return ""
    named = str(action.metavar).partition("[")[0]
    kinds = {"@ids": _IDS, "@files": _FILES, "@folders": _FOLDERS}
    kind = next((kind for kind, names in kinds.items() if named in names), "@none")
    return " ".join((kind, *re.findall(r"\b[a-z]+\b", named))) if kind == "@files" else kind


def _bash(parsers: dict[str, argparse.ArgumentParser], ids: str) -> str:
    values, options = [], []
    for name, parser in parsers.items():
        rest = next((_takes(action) for action in _actions(parser) if not action.option_strings), "@none")
        flags = " ".join(flag for action in _actions(parser) for flag in action.option_strings)
        options.append(f'    {name}) options="{flags}" rest="{rest}" ;;')
        for action in _actions(parser):
            if action.option_strings and (takes := _takes(action)):
                spelt = " | ".join(f'"{name} {flag}"' for flag in action.option_strings)
                values.append(f'    {spelt}) values="{takes}" ;;')
    return _BASH.format(names=" ".join(parsers), values="\n".join(values), options="\n".join(options), ids=ids)


def _zsh(parsers: dict[str, argparse.ArgumentParser], ids: str) -> str:
    names = [f"    {shlex.quote(f'{name}:{_first_sentence(parser)}')}" for name, parser in parsers.items()]
    options = []
    for name, parser in parsers.items():
        specs = " ".join(shlex.quote(spec) for action in _actions(parser) for spec in _specs(action))
        options.append(f"    {name}) _arguments -s -S {specs} ;;")
    return _ZSH.format(names="\n".join(names), options="\n".join(options), ids=ids)


_IN_ZSH = {
    "@none": " ",
    "@files": "_files",
    "@folders": "_files -/",
    "@ids": "{ compadd -a _ncclprobe_ids; _files }",
}


def _specs(action: argparse.Action) -> Iterator[str]:
    """Yield what ``_arguments`` of zsh wants to know: of an option for each spelling, or of an argument."""
    takes = _takes(action)
    kind, _, words = takes.partition(" ")
    inside = "{ compadd " + words + "; _files }" if kind == "@files" and words else _IN_ZSH.get(takes, f"({takes})")
    value = f":{_plain(str(action.metavar or action.dest))}:{inside}" if takes else ""
    about = _plain((action.help or "").replace("%%", "%").partition(" (default: ")[0])
    for flag in action.option_strings:
        yield f"{'*' * isinstance(action.default, list)}{flag}[{about}]{value}"
    if not action.option_strings:
        yield f"*{value}"


def _first_sentence(parser: argparse.ArgumentParser) -> str:
    return (parser.description or "").partition("\n")[0].partition(". ")[0]


def _plain(text: str) -> str:
    """Return `text` without what ``_arguments`` takes for syntax."""
    return text.translate(str.maketrans("[]:\n", "(); "))
