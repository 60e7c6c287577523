"""Settings in pasted text: what a shell, a launcher, a container or a manifest gives a job.

There are two kinds of lines. `export A=1`, `-x A=1`, `name: A` and the like are settings wherever they are. A bare
`A=1` is one only among others: it may be a line of a log.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,120}"
_OURS = r"(?:NCCL|TORCH|OFI_NCCL|GLOO|UCX|FI|NVSHMEM|OMPI_MCA)_[A-Za-z0-9_]{1,120}"
_BARE = re.compile(rf"({_NAME})=(.*)")
_OPTION = re.compile(r"(?:-e|-x|-v|--env|-genv)")
_GLUED = re.compile(rf"(?:--env=?|--set(?:env)?=|-e=?)({_NAME}=.*)")
_SHELL = ("export", "setenv", "declare", "ENV", "set", "env")
_PYTHON = re.compile(
    rf"os\.environ(?:\[|\.setdefault\()[\"']({_NAME})[\"'](?:\]\s{{0,8}}=|,)\s{{0,8}}[rf]?[\"']([^\"']{{0,1024}})[\"']"
)
_PAIR = re.compile(
    rf"[\"']({_OURS})[\"']\s{{0,8}}:\s{{0,8}}"
    r"(\"[^\"]{0,1024}\"|'[^']{0,1024}'|[\w.]{1,64})"
)
"""A pair of JSON or of a dictionary of Python."""
_FLOW = re.compile(
    rf"[\"']?name[\"']?:\s{{0,8}}[\"']?({_NAME})[\"']?,\s{{0,8}}[\"']?value[\"']?:\s{{0,8}}(\"[^\"]*\"|'[^']*'|[^\s,}}]+)"
)
_QUOTED = re.compile(rf"[\"']({_NAME})=([^\"']{{0,1024}})[\"'],?")
"""An entry of ``"Env": [...]`` in what docker inspect prints."""
_KEY = re.compile(r"[\"']?(name|value)[\"']?:\s{0,8}(.{0,1024}?),?")
_MAPPED = re.compile(r"([A-Z][A-Z0-9_]{1,120}):\s{1,8}(.{1,1024})")
_COMMANDS = re.compile(
    r"(?:torchrun|python[\d.]*|mpirun|mpiexec|srun|accelerate|deepspeed|bash|sh|numactl|nohup|exec|\.{0,2}/\S*|[\w/.-]*_perf)"
)
_OF_VARIABLES = re.compile(r"[A-Z][A-Z0-9]+_.+|[A-Z][A-Z0-9_]*|nccl_.+")
"""A name such as NCCL_DEBUG, PATH or OMPI_MCA_btl, as opposed to one of a log or a script."""
_SPACED = re.compile(rf"(?:export\s{{1,4}})?({_OURS})\s{{1,4}}=\s{{0,4}}(\S.{{0,1024}})")
"""No shell sets this: a blank ends the name."""
_GREPPED = r"^(?:[\w./-]{1,80}:)?\d{1,5}[:-](?=\s{0,8}(?:export |#SBATCH |[A-Z][A-Z0-9_]{1,80}=))"
"""What ``grep -n`` puts before a line."""
_OF_CONTAINERS = r"^(?:APPTAINERENV|SINGULARITYENV)_(?=[A-Z])"
"""What Apptainer takes off the name of a variable for its container."""
_LEAST = 3
"""One in so many lines has to be a bare setting: any log or script has fewer."""
_LOG = re.compile(
    r"NCCL (?:INFO|WARN|ERROR)|Traceback \(most recent|^\[rank\d|"
    r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d.{0,40}(?:INFO|WARN|ERROR)"
)


_TYPED = re.compile(r"export |[\w.@:~/\[\] -]{0,80}[$#%] (?:export|setenv|docker|podman|nerdctl|mpirun|mpiexec|srun) ")
"""Commands that set variables and may stand above a log of the job."""


class OptionOf(NamedTuple):
    """An option of a command. It is searched once, from the first of the command's words on, so that no line takes
    long.
    """

    command: re.Pattern[str]
    option: re.Pattern[str]

    def finditer(self, line: str) -> Iterator[re.Match[str]]:
        """Yield each place of the option in a line."""
        start = self.command.search(line)
        return self.option.finditer(line, start.end()) if start else iter(())

    def search(self, line: str) -> re.Match[str] | None:
        """Return the first place of the option in a line."""
        return next(self.finditer(line), None)


def settings(lines: Sequence[str], literal: bool = False) -> dict[str, str]:
    """Return the variables that a text sets, by name, each as it was set last; empty: it is not about settings.

    `literal`: quotation marks belong to the values, as in a file that docker reads with ``--env-file``.
    """
    found: dict[str, str] = {}
    bare: dict[str, str] = {}
    written = list(_arguments([line.strip() for line in whole(lines) if line.strip() and not _is_comment(line)]))
    told = 0
    for own, line in _mark_blocks(written):
        sure = dict(_explicit(line)) or (dict(_mapped(line, literal)) if own or re.match(_OURS, line) else {})
        plain = {} if sure else dict(_plain(line, literal))
        found |= sure
        bare |= plain
        told += bool(plain)
    found |= dict(_listed(written))
    if found and any(map(_LOG.search, written)):
        found = {name: value for line in filter(_TYPED.match, written) for name, value in _explicit(line)}
    if _LEAST * told >= len(written) or (found and bare):
        found = bare | found
    bare_names = {re.sub(_OF_CONTAINERS, "", name): value for name, value in found.items()}
    return {name: value for name, value in bare_names.items() if "$" not in value and "`" not in value}


def whole(lines: Sequence[str]) -> Iterator[str]:
    """Yield lines, joined with the next one if they end in a backslash."""
    held = ""
    for line in lines:
        bare = re.sub(_GREPPED, "", line, count=1)
        if bare.endswith("\\"):
            held += bare[:-1] + " "
        else:
            yield held + bare
            held = ""
    yield held


def _arguments(written: Sequence[str]) -> Iterator[str]:
    """Yield lines, an option that is an item of a list together with its value: ``- -x`` and ``- A=1``."""
    held = ""
    for line in written:
        item = line.removeprefix("- ").strip("\"'")
        if line.startswith("- ") and _OPTION.fullmatch(item):
            held = item
        else:
            yield f"{held} {item}" if held and line.startswith("- ") else line
            held = ""


def _is_comment(line: str) -> bool:
    return bool(re.match(r"\s*(?:#(?!\s*\$|(?:SBATCH|PBS) )|//)", line))


def _mark_blocks(written: Sequence[str]) -> Iterator[tuple[bool, str]]:
    """Yield each line, and whether it is in an ``environment:`` or ``env:`` of a manifest: until another key begins."""
    inside = False
    for line in written:
        key = line.rstrip(":").lower().removeprefix("- ")
        if line.endswith(":"):
            inside = key in ("environment", "env", "envvars", "env_vars", "runtime_env")
        yield inside, line


def _explicit(line: str) -> Iterator[tuple[str, str]]:
    """Yield what a line sets without doubt."""
    if spaced := _SPACED.fullmatch(line):
        yield f"{spaced[1]} ", spaced[2]
        return
    for found in _PYTHON.finditer(line):
        yield found[1], found[2]
    if line.startswith("Environment="):  # of a unit of systemd
        yield from (each for word in _words(line.partition("=")[2]) for each in _assignment(word))
        return
    if quoted := _QUOTED.fullmatch(line):
        yield quoted[1], quoted[2]
    for pattern in (_FLOW, _PAIR):
        yield from ((found[1], _unquoted(found[2])) for found in pattern.finditer(line))
    for command in _commands(line):
        words = _words(command)
        if words[:1] and words[0] in _SHELL:
            yield from _shell_settings(words)
        for option, word, *after in zip(words, words[1:], [*words[2:], ""], [*words[3:], "", ""], strict=False):
            if _OPTION.fullmatch(option) and after[0] == "=" and re.fullmatch(_OURS, word):
                yield f"{word} ", after[1]
            elif _OPTION.fullmatch(option):  # apptainer --env A=1,B=2
                yield from (each for part in _apart(word) for each in _assignment(part))
        for word in words:
            if glued := _GLUED.fullmatch(word):
                yield from (each for part in _apart(glued[1]) for each in _assignment(part))
            elif word.startswith("--export="):  # each comma ends a value: srun(1)
                yield from (each for part in word.partition("=")[2].split(",") for each in _assignment(part))
        if words[:5] == ["conda", "env", "config", "vars", "set"]:
            yield from (each for word in words[5:] for each in _assignment(word))
        if words[1:3] == ["set", "env"]:  # kubectl, oc
            yield from (each for word in words[3:] for each in _assignment(word))
        if leading := _leading(words):
            yield from leading


def _commands(line: str) -> list[str]:
    """Return what `;` and `&&` separate, without the prompt, or what makes a line one of sbatch or qsub."""
    bare = re.sub(r"^(?:[\w.@:~/\[\] -]{0,80}[$#>%+] |#(?:SBATCH|PBS) )?", "", line, count=1)
    return [part.strip() for part in re.split(r";\s|;$|\s&&\s", bare)]


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command, comments=True)
    except ValueError:  # an open quotation mark
        return command.split()


def _shell_settings(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    if words[0] in ("setenv", "ENV") and len(words) == 3 and "=" not in words[1]:
        yield words[1], words[2]
    if words[0] == "set" and len(words) == 4 and re.fullmatch(r"-[gUx]{1,2}", words[1]):  # of fish
        yield words[2], words[3]
    for word in words[1:]:
        if not word.startswith("-"):
            yield from _assignment(word)


def _leading(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return the assignments before a command, if there is one: `A=1 B=2 torchrun …`."""
    found: list[tuple[str, str]] = []
    for word in words:
        assigned = list(_assignment(word))
        if not assigned:
            return found if _COMMANDS.fullmatch(word) else []
        found += assigned
    return found if len(found) > 1 else []


def _apart(text: str) -> list[str]:
    """Return `A=1` and `B=2,3` of ``A=1,B=2,3``."""
    return re.split(rf",(?={_NAME}=)", text)


def _assignment(word: str) -> Iterator[tuple[str, str]]:
    if found := _BARE.fullmatch(word):
        yield found[1], found[2]


def _plain(line: str, literal: bool) -> Iterator[tuple[str, str]]:
    """Yield a line of `env`: all behind the sign is the value."""
    found = _BARE.fullmatch(line.removeprefix("- "))
    if found and _OF_VARIABLES.fullmatch(found[1]):
        yield found[1], found[2] if literal else _unquoted(found[2])


def _mapped(line: str, literal: bool) -> Iterator[tuple[str, str]]:
    """Yield a pair of a mapping, or an item of a list, whose own quotation marks belong to the value."""
    if found := _MAPPED.fullmatch(line):
        yield found[1], _unquoted(found[2])
    elif found := _BARE.fullmatch(line if literal else _unquoted(line.removeprefix("- "))):
        yield found[1], found[2] if literal or line.startswith("- ") else _unquoted(found[2])


def _listed(written: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield ``name:`` and the ``value:`` below it."""
    name = ""
    for line in written:
        found = _KEY.fullmatch(line.removeprefix("- ").strip("{} "))
        if found and found[1] == "name":
            name = _unquoted(found[2])
        elif found and re.fullmatch(_NAME, name):
            yield name, _unquoted(found[2])
        if not found or found[1] == "value":
            name = ""


def _unquoted(text: str) -> str:
    value = text.strip()
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
