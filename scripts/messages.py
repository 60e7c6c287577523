#!/usr/bin/env python3
"""Extract what programs say when something fails from their sources: the table that `ncclprobe explain` looks up.

    scripts/messages.py nccl=2.23.4:DIR nccl=2.30.7:DIR torch=2.13.0:DIR      # how the table and the sources differ
    scripts/messages.py … --write                                             # write the table; meanings stay

DIR is a source tree, or for torch the folder site-packages/torch of an installed wheel. All releases of a project are
given together. A row is one text: words with holes (``{rank}``), the releases that have it, its level, what follows
(a return code of NCCL, ``goes on``; of Python the exception's type), its file, and by hand its meaning (see
ncclprobe/logs/messages.py). A new text has the meaning ``?``: the difference of a release is to be judged.
Where a project has a row of level FAMILY, what all its texts have in common, its texts mean that until one is judged to
mean something else, and only these have rows.
Texts of messages are facts; each project's licence stands in the first lines of the table, by hand.
"""

import argparse
import ast
import mmap
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ncclprobe.engine.diagnose import LEFT, every_check
from ncclprobe.logs.messages import FAMILY, HEAD, TABLE, MessageRow, parts, rows, words

SOURCES = {
    "nccl": ("src",), "torch": ("distributed",), "c10d": ("csrc/distributed/c10d",), "gloo": ("gloo",), "ofi": ("src",),
}  # fmt: skip
SKIPPED = re.compile(
    r"/os/windows|/(?:tests?|testing|benchmarks?|_tools|flight_recorder|tensor|_shard|pipelining|nccl_device|device)/"
    r"|UCC|/gloo/(?:mpi|examples|nccl|transport/(?:uv|ibverbs|tcp/tls))|uda|GroupMPI|/quantization|_neuron|/win\."
    r"|c10d/(?:init|Backend|Work|[Ss]ymm|DMA|Functional|Flight|control_coll|logg|intra_node)"
)
MOST_TEXT, LEAST_FIXED = 240, 10

Found = dict[tuple[str, str], tuple[str, str]]
"""By level and text what follows it, and its file."""

MACRO = re.compile(r"\b(?:NCCL_OFI_)?(WARN|INFO)\s*\(")
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
LITERAL = re.compile(r'"((?:\\.|[^"\\\n])*)"')
DIRECTIVE = re.compile(r"%[-+ #0]*(\*|\d+)?(?:\.(\*|\d+))?(?:hh|h|ll|l|z|j|t|L)?([diouxXeEfFgGcspa%])")
RETURNED = re.compile(
    r"\bnccl(?:InvalidUsage|InvalidArgument|SystemError|InternalError|RemoteError|UnhandledCudaError)\b"
)
LEAVES = re.compile(r"\b(?:goto|return|exit|abort)\b")
NEAR = 240
"""Characters of code after a message within which its block says what follows."""


class Message(NamedTuple):
    """One text of a source."""

    level: str
    text: str
    then: str


def in_c(code: str) -> Iterator[Message]:
    """Yield the texts of WARN and INFO in NCCL's sources."""
    code = COMMENT.sub(lambda found: found[0] if found[0][0] == '"' else " ", code)
    for found in MACRO.finditer(code):
        arguments, end = _arguments(code, found.end())
        line = code[code.rfind("\n", 0, found.start()) + 1 : found.start()]
        while arguments and not LITERAL.search(arguments[0]):
            arguments.pop(0)  # the subsystem; a format that is no literal has no text
        if arguments and not line.rstrip().endswith("#define"):
            text = _printf(arguments[0], arguments[1:])
            text = f"NET/OFI {text}" if "_OFI_" in found[0] else text
            yield Message(found[1], text, _then(code, found.start(), end))


def _arguments(code: str, at: int) -> tuple[list[str], int]:
    """Return the arguments of a call whose bracket ends at `at`, and where the call ends."""
    found, depth, begin = [], 0, at
    while at < len(code):
        char = code[at]
        if char == '"' and (literal := LITERAL.match(code, at)):
            at = literal.end()
            continue
        if char in ",)" and depth == 0:
            found.append(code[begin:at].strip())
            begin = at + 1
            if char == ")":
                break
        depth += (char in "([{") - (char in ")]}")
        at += 1
    return found, at + 1


def _printf(format_: str, arguments: Sequence[str]) -> str:
    """Return the text of a printf format; macros between its literals are holes, or end a directive."""
    joined = re.sub(r'"\s*PRI[a-zA-Z]*(\d+|PTR)\s*"', "d", format_)
    pieces = LITERAL.split(joined)
    text = pieces[0] and "{text}"
    for number, piece in enumerate(pieces[1:]):
        text += piece if number % 2 == 0 else "{text}" if piece.strip() and number < len(pieces) - 2 else ""
    text, waiting = re.sub(r"\\[nt]", "\n", text).replace('\\"', '"'), list(arguments)

    def hole(found: "re.Match[str]") -> str:
        if found[3] == "%":
            return "%"
        for size in found.groups()[:2]:
            if size == "*" and waiting:
                waiting.pop(0)
        return f"{{{_kind(waiting.pop(0) if waiting else '', found[3] in 'sc')}}}"

    return DIRECTIVE.sub(hole, text)


def _kind(expression: str, is_text: bool, other: str = "number") -> str:
    """Return what a hole holds, by the expression that fills it; else `other`."""
    low = expression.lower()
    if is_text:
        kinds = {
            "strerror": "error", "errorstring": "error", "tostring": "address", "addr": "address", "peer_": "address",
            "remote": "address", "devname": "device", "ifname": "device", "hca": "device",
        }  # fmt: skip
        return next((kind for word, kind in kinds.items() if word in low), "text")
    if "peer" in low or "remote" in low:
        return "peer"
    if re.search(r"rank(?!s)", low) and "nranks" not in low:
        return "rank"
    return other


def _then(code: str, begin: int, end: int) -> str:
    """Return what the program does after the message, as far as its block says it."""
    after = code[end : end + NEAR].partition("}")[0]
    after = after.partition("WARN")[0]
    before = code[max(begin - NEAR, 0) : begin].rpartition("{")[2].rpartition("WARN")[2]
    code_of = RETURNED.search(after) or (LEAVES.search(after) and RETURNED.search(before))
    if code_of:
        return code_of[0]
    return "fails" if LEAVES.search(after) and "ncclSuccess" not in after else "goes on"


THROWN = re.compile(
    r"\b(?P<macro>GLOO_(?:ENFORCE|THROW)\w*|GLOO_ERROR_MSG|GLOO_ERROR|GLOO_WARN|TORCH_CHECK\w*"
    r"|TORCH_WARN\w*|REDUCER_CHECK|C10D?_THROW_ERROR|invalidArgument)\s*\("
    r"|\bLOG\((?P<level>ERROR|WARNING)\)|\b(?:std::string|auto)\s+\w*(?:[mM]sg|[mM]essage|[eE]rror)\w*\s*[=({]"
)
BEFORE_TEXT = {
    "GLOO_ENFORCE": 1, "TORCH_CHECK_WITH": 2, "REDUCER_CHECK": 2, "C10_THROW_ERROR": 1, "C10D_THROW_ERROR": 1,
}  # fmt: skip
"""Arguments of a macro before its text: what must hold, and the exception's type."""
STATEMENT = re.compile(r'(?:"(?:\\.|[^"\\\n])*"|[^";])*')
NO_VALUE = re.compile(r"c10::str|fmt::format|std::string|[\s,<>+(){}=]")


def in_cpp(code: str) -> Iterator[Message]:
    """Yield what gloo's and torch's C++ throws, and logs as warnings and errors."""
    code = COMMENT.sub(lambda found: found[0] if found[0][0] == '"' else " ", code)
    for found in THROWN.finditer(code):
        macro = found["macro"] or ""
        if not macro:
            said = STATEMENT.match(code, found.end())
            text, then = _concatenated(said[0] if said else ""), "goes on" if found["level"] else "RuntimeError"
        else:
            arguments, _ = _arguments(code, found.end())
            before = 2 if macro.startswith("GLOO_ENFORCE_") else BEFORE_TEXT.get(macro, macro.startswith("TORCH_CHECK"))
            text, kind = _concatenated(", ".join(arguments[before:])), arguments[0].rpartition("::")[2]
            text = f"[enforce fail at {{text}}. {text}" if macro.startswith("GLOO_ENFORCE") and text else text
            then = kind if kind.isidentifier() and kind.endswith("Error") else "RuntimeError"
        level = "WARN" if "WARN" in macro else "ERROR" if macro == "GLOO_ERROR" else "RAISED"
        yield Message({"ERROR": "ERROR", "WARNING": "WARN"}.get(found["level"] or "", level), text, then)


def _concatenated(code: str) -> str:
    """Return the text of literals and values that are put together, the values as holes."""
    pieces = LITERAL.split(code)
    text = ""
    for number, piece in enumerate(pieces):
        if number % 2:
            text += re.sub(r"\\[nt]", "\n", piece).replace('\\"', '"')
        elif value := NO_VALUE.sub("", piece):
            text += f"{{{_kind(value, 'rank' not in value.lower())}}}"
    format_ = LITERAL.search(code)
    return format_[1].replace("{}", "{text}") if format_ and "{}" in text else text  # of fmt: its values follow


LOGGED = {"warning": "WARN", "warn": "WARN", "error": "ERROR", "exception": "ERROR", "critical": "ERROR"}


def in_python(code: str) -> Iterator[Message]:
    """Yield the texts that Python code raises, warns of or logs as warnings and errors."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            name = ast.unparse(node.exc.func).rpartition(".")[2]
            yield Message("RAISED", _text(node.exc.args[0]), name)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            level = LOGGED.get(node.func.attr)
            yield from [Message(level, _logged(node.args), "goes on")] if level else ()


def _logged(arguments: Sequence[ast.expr]) -> str:
    text, waiting = _text(arguments[0]), [ast.unparse(each) for each in arguments[1:]]
    return DIRECTIVE.sub(
        lambda f: "%" if f[3] == "%" else f"{{{_kind(waiting.pop(0) if waiting else '', False, 'text')}}}", text
    )


def _text(node: ast.expr) -> str:
    """Return the text of an expression, its parts that are not literals as holes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.FormattedValue):
        return f"{{{_kind(ast.unparse(node.value), False, 'text')}}}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return DIRECTIVE.sub("{text}", _text(node.left))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return re.sub(r"\{[^{}]*\}", "{text}", _text(node.func.value))
    return "{text}"


OF_SOCKETS = re.compile(r"socket|client|timeout after")
IN_LIBRARY = re.compile(rb"(?<=\0)[\x20-\x7e]{12,400}(?=\0)")


def in_library(path: Path) -> Iterator[Message]:
    """Yield the texts with holes of torch's store and sockets, in C++: their level and what follows is not known."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for found in IN_LIBRARY.finditer(data):
            text = found[0].decode()
            if "{}" in text and OF_SOCKETS.search(text) and " " in text:
                yield Message("ANY", text.replace("{}", "{text}"), "")


CPP = ("c10d", "gloo")
READERS = {".cc": in_c, ".h": in_c, ".cpp": in_c, ".py": in_python}


def extracted(project: str, tree: Path, signs: Sequence[str]) -> Found:
    """Return the texts of one release: what fails, and of the rest what `signs` search for."""
    found: Found = {}
    if (library := tree / "lib" / "libtorch_cpu.so").exists():
        of_library = {(each.level, each.text): (each.then, "libtorch_cpu.so") for each in in_library(library)}
        found |= {key: value for key, value in of_library.items() if words(key[1])}
    endings = {".cc", ".h", ".cpp", ".hpp"} if project in CPP else READERS.keys()
    for path in sorted(path for top in SOURCES[project] for path in (tree / top).rglob("*") if path.suffix in endings):
        place = path.relative_to(tree).as_posix()
        if SKIPPED.search(f"/{place}"):
            continue
        reader = in_cpp if project in CPP else READERS[path.suffix]
        for each in reader(path.read_text(encoding="utf-8", errors="replace")):
            text = next((line.strip() for line in each.text.split("\n") if line.strip()), "")
            text = text if len(text) <= MOST_TEXT else text[:MOST_TEXT].rpartition(" ")[0]
            fixed = parts(text)
            wanted = each.level != "INFO" or any(sign in text for sign in signs)
            if wanted and sum(map(len, fixed)) >= LEAST_FIXED and words(text):
                found.setdefault((each.level, text), (each.then, place.removeprefix("src/")))
    return found


def table(releases: Mapping[str, Mapping[str, Found]], known: Iterable[MessageRow]) -> list[MessageRow]:
    """Return the rows of all projects, with the meanings that are known. `releases`: of each project, oldest first."""
    known = [*known]
    meanings = {(row.project, row.text): row.meaning for row in known}
    families = {row.project: row.meaning for row in known if row.level == FAMILY}
    merged: dict[tuple[str, str, str], tuple[list[str], str, str]] = {}
    for project, by_release in releases.items():
        for release, found in by_release.items():
            for (level, text), (then, place) in found.items():
                old = merged.get((project, level, text), ([], "", ""))[0]
                merged[project, level, text] = ([*old, release], then, place)
    often = Counter(word for _, _, text in merged for word in set(words(text)))
    return sorted(
        MessageRow(
            min(words(text), key=lambda word: (often[word], -len(word), word)),
            project, _span(has, list(releases[project])), level, then, place, meaning, text,
        )
        for (project, level, text), (has, then, place) in merged.items()
        if (meaning := meanings.get((project, text), families.get(project, "?"))) != families.get(project)
    )  # fmt: skip


def _span(has: Sequence[str], every: Sequence[str]) -> str:
    """Return ``2.27-2.30`` of releases that follow each other, and the first and last of each such group."""
    groups: list[list[str]] = []
    for release in every:
        if release in has:
            follows = groups and every.index(release) == every.index(groups[-1][-1]) + 1
            groups[-1].append(release) if follows else groups.append([release])
    short = [[".".join(each.split(".")[:2]) for each in group] for group in groups]
    return ",".join(each[0] if len(each) == 1 else f"{each[0]}-{each[-1]}" for each in short)


def _read_again(row: MessageRow, releases: Mapping[str, Mapping[str, Found]]) -> bool:
    """Return whether the sources hold a release of a row: those of other releases stay as they are."""
    given = {".".join(release.split(".")[:2]) for release in releases.get(row.project, ())}
    return bool(given & {*re.split("[-,]", row.releases)})


def differences(old: Sequence[MessageRow], new: Sequence[MessageRow]) -> Iterator[str]:
    """Yield the rows that are new, gone, or of other releases; what is to be judged is marked ``?``."""
    before, after = ({(row.project, row.level, row.text): row for row in some} for some in (old, new))
    for key in sorted(before.keys() | after.keys()):
        one, two = before.get(key), after.get(key)
        if two is None:
            yield f"- {one.project} {one.releases} {one.level} [{one.meaning}] {one.text}"  # type: ignore[union-attr]
        elif one is None:
            yield f"+ {two.project} {two.releases} {two.level} {two.place} [{two.meaning}] {two.text}"
        elif one[2:6] != two[2:6]:
            yield f"~ {two.project} {one.releases} -> {two.releases} {two.level} {one.then} -> {two.then} {two.text}"


def main() -> int:
    """Print the differences, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", metavar="PROJECT=RELEASE:DIR")
    parser.add_argument("--write", action="store_true", help="write the table")
    parser.add_argument("--table", type=Path, default=TABLE, help="the table (default: the package's)")
    options = parser.parse_args()
    signs = [
        sign for check in every_check(LEFT) if check.cause for sign in check.cause.signs if len(sign) >= LEAST_FIXED
    ]
    releases: dict[str, dict[str, Found]] = {}
    for source in options.sources:
        project, _, rest = source.partition("=")
        release, _, tree = rest.partition(":")
        if project not in SOURCES or not Path(tree).is_dir():
            parser.error(f"{source}: PROJECT=RELEASE:DIR with a folder, and of {', '.join(SOURCES)}")
        releases.setdefault(project, {})[release] = extracted(project, Path(tree), signs)
    known = [*rows(options.table)] if options.table.exists() else []
    made = [*(row for row in known if not _read_again(row, releases)), *table(releases, known)]
    print("\n".join(differences(known, made)))
    if options.write:
        old = options.table.read_text(encoding="utf-8").splitlines() if options.table.exists() else []
        licences = [line for line in old if line.startswith("#")]
        lines = ["\t".join(row) for row in sorted(made)]
        options.table.write_text("\n".join((*licences, "\t".join(HEAD), *lines)) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
