"""``ncclprobe mcp``: answer an assistant over standard input and output, by the Model Context Protocol.

Nothing is measured, started or changed: tools read text, or files below the folders that were named at the start.
"""

import functools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclprobe import __version__
from ncclprobe.commands import arguments
from ncclprobe.host.opener import copy_below
from ncclprobe.model.errors import NcclprobeError, UsageError
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.values import replace

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

    from ncclprobe.engine.diagnose import Question
    from ncclprobe.model.registry import Source
    from ncclprobe.model.report import Report

MOST_TEXT, MOST_ANSWER, MOST_BYTES = 2 << 20, 40_000, 256 << 20
"""Characters of pasted text, and of an answer; bytes of a file."""
_TIMEOUT_S = 120.0
INSTRUCTIONS = """\
Give `explain` the whole log of a job: it names the cause and the line that shows it. Give `doctor` captures, or output
of nvidia-smi, ibstat or env. Ask `lookup` before you recommend a variable. What is unknown is not healthy."""


class Reader:
    """What tools may read, and how answers are written. `folders`: paths below them only; none: no paths."""

    def __init__(self, folders: Sequence[Path], *, redact: bool) -> None:
        from ncclprobe.redact.redactor import Redactor, random_key

        self.folders = [folder.resolve() for folder in folders]
        self.redactor = Redactor(random_key()) if redact else None

    def explain(self, text: str = "", paths: Sequence[str] = ()) -> str:
        """Say why a job failed, hung or was slow.

        Args:
            text: Its whole log, or that of one rank.
            paths: Or its files: logs, flight-recorder dumps, captures of `ncclprobe attach --keep`.
        """
        from ncclprobe.engine import diagnose
        from ncclprobe.engine.doctor import within
        from ncclprobe.engine.explain import explain
        from ncclprobe.host import job_files
        from ncclprobe.report import json

        with self._copy_inputs(text, paths) as (folder, given):
            files = job_files.named(list(map(str, given)))
            question = _question("mcp.explain", diagnose.LEFT, gates=False)
            return self._report_text(within(question, _TIMEOUT_S, lambda: explain(question, files, json.read)), folder)

    def doctor(self, text: str = "", paths: Sequence[str] = (), backend: str = "nccl") -> str:
        """Judge whether machines are fit for NCCL, from captures of them or from output of commands.

        Args:
            text: Output of one machine: `nvidia-smi topo -m`, `nvidia-smi -q`, ibstat, ibv_devinfo, env, `ulimit -a`.
            paths: Or files with such output, or captures of `ncclprobe capture`, one for each node.
            backend: nccl, or gloo for machines without GPUs.
        """
        from ncclprobe.engine import diagnose
        from ncclprobe.engine.captures import judge_captures
        from ncclprobe.engine.doctor import within
        from ncclprobe.model.registry import Collector, discover

        if backend not in ("nccl", "gloo"):
            raise UsageError("backend is nccl or gloo")
        collectors = discover("ncclprobe.facts", Collector, diagnose.MACHINE)
        with self._copy_inputs(text, paths) as (folder, given):
            question = _question("mcp.doctor", diagnose.MACHINE, backend)
            report = within(question, _TIMEOUT_S, lambda: judge_captures(question, collectors, given))
            return self._report_text(report, folder)

    def expect(
        self,
        machine: str,
        nodes: int = 1,
        operations: Sequence[str] = ("all_reduce",),
        sizes: Sequence[int] = (1 << 20, 64 << 20, 1 << 30, 8 << 30),
    ) -> str:
        """Say which bus bandwidth and which time a machine should reach, with the source of each number.

        Args:
            machine: A type such as dgx-h100 or p5.48xlarge, or its parts: "8 x L40S, 2 sockets".
            nodes: How many of them.
            operations: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, sendrecv.
            sizes: Bytes, as nccl-tests counts them.
        """
        from ncclprobe.engine.expect_target import outlook

        found = outlook(machine, None, nodes, (), tuple(operations), tuple(sizes), 1.0)
        lines = [f"{found.machine or machine}, {nodes} nodes: {found.why}"]
        for line in found.lines:
            value = line.expectation
            mark = f"below {value.threshold:.4g} it {value.worst}s" if value.worst != "unjudged" else "not judged"
            rate = f"{line.op} of {line.nbytes} bytes: {value.value:.4g} GB/s busbw"
            lines.append(f"{rate}, {mark}; {value.basis}: {value.source}")
        return self._text("\n".join(lines))

    def judge(self, text: str = "", path: str = "", machine: str = "", nodes: int = 0) -> str:
        """Judge the numbers of nccl-tests by what their machine should reach.

        Args:
            text: The whole output of nccl-tests.
            path: Or a file with it.
            machine: The machine's type or parts, as for expect; empty: what the GPUs in the output are usually in.
            nodes: How many nodes took part, if the output does not say.
        """
        from ncclprobe.commands.judged_log import Wanted, judged_file
        from ncclprobe.engine.expect_target import machine_of
        from ncclprobe.expect import elsewhere
        from ncclprobe.expect.recognise import ExpectationContext
        from ncclprobe.model.snapshot import Absent

        here = machine_of(machine, None) if machine else ExpectationContext(Absent("no machine is named"))
        with self._copy_inputs(text, [path] if path else []) as (_, (file,)):
            wanted = Wanted(here, bool(machine), nodes or None)
            return self._text(elsewhere.as_text(judged_file(str(file), wanted).runs, [path or "the text"]))

    def lookup(self, name: str) -> str:
        """Explain a check, a cause, or a variable of NCCL, torch and their plugins: does anything read it, and how?

        Args:
            name: Such as NCCL_IB_TIMEOUT, env.value, iface-missing; or the beginning of several: NCCL_IB_, gpu.
        """
        from ncclprobe.engine.explain_pages import entry

        return self._text("\n".join(entry(name[:200].strip(), "check, cause or variable")))

    @contextmanager
    def _copy_inputs(self, text: str, paths: Sequence[str]) -> Iterator[tuple[str, list[Path]]]:
        """Yield a folder of copies, and the ones to read: of the named files, or of `text`. Errors name no folder."""
        if bool(text.strip()) == bool(paths):
            raise UsageError("give text or paths, one of them")
        if len(text) > MOST_TEXT or len(paths) > 256:
            raise UsageError(f"too long: at most {MOST_TEXT} characters or 256 paths")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "pasted"
            file.write_text(text, encoding="utf-8", errors="backslashreplace")
            copies = [copy for path in paths for copy in self._copies(path, folder)]
            try:
                yield folder, list(map(_refuse_references, copies or [file]))
            except NcclprobeError as error:
                raise UsageError(str(error).replace(f"{folder}/", "")) from error

    def _copies(self, path: str, to: str) -> list[Path]:
        """Copy the files that `path` names below one of the folders; return the copies. Raises UsageError."""
        from ncclprobe.host import job_files

        for folder in self.folders:
            with suppress(OSError, ValueError, UsageError):
                return [
                    copy_below(folder, each.name, Path(to), MOST_BYTES)
                    for each in job_files.named([str(folder / path)])
                ]
        named = ", ".join(map(str, self.folders)) or "none: start it with ncclprobe mcp --folder DIR"
        raise UsageError(
            f"{path[:200]}: no such file of at most 256 MiB below the folders that may be read ({named}); or give text"
        )

    def _report_text(self, report: "Report", folder: str) -> str:
        """Return the report as text, with the requested file names instead of those of the copies in `folder`."""
        from ncclprobe.report import causes, json
        from ncclprobe.report import text as as_text

        report = json.parse(json.render(report).replace(f"{folder}/", ""), "")
        report = self.redactor.report(report) if self.redactor else report
        return _cut((causes.render if report.files else as_text.render)(report, width=100))

    def _text(self, text: str) -> str:
        return _cut(self.redactor.text(text) if self.redactor else text)


def _refuse_references(path: Path) -> Path:
    """Return `path`. Raises UsageError for a capture with rows of another file, which could be outside the folders."""
    from ncclprobe.host.capture import is_overlay

    if path.is_file() and is_overlay(path):
        raise UsageError(f"{path.name}: a 'like' row names another file; give a whole capture")
    return path


def _cut(text: str) -> str:
    return text if len(text) <= MOST_ANSWER else f"{text[:MOST_ANSWER]}\n… {len(text) - MOST_ANSWER} characters more"


def _question(name: str, sources: "frozenset[Source]", backend: str = "nccl", *, gates: bool = True) -> "Question":
    """Return a question asked now, whenever this process began."""
    from ncclprobe.engine import diagnose
    from ncclprobe.engine.suppressions import NO_FILE
    from ncclprobe.model.snapshot import Job

    job = Job("gloo" if backend == "gloo" else "nccl", local=False)
    asked = diagnose.ask(diagnose.Judging((), (), NO_FILE, gates=gates), (name,), job, sources)
    return replace(asked, clock=time.monotonic(), started=datetime.now(timezone.utc))


def server(reader: Reader) -> "MCPServer":
    """Return the server of `reader`'s tools. Raises UsageError without the protocol's package."""
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations
    except ImportError as error:
        raise UsageError(f"mcp needs the package {error.name}: pip install mcp") from None
    made = MCPServer("ncclprobe", version=__version__, instructions=INSTRUCTIONS, log_level="ERROR")

    def one_line(tool: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(tool)
        def asked(*args: Any, **kwargs: Any) -> str:
            try:
                return tool(*args, **kwargs)
            except NcclprobeError as error:
                raise ToolError(str(error)) from None

        return asked

    for tool in (reader.explain, reader.doctor, reader.expect, reader.judge, reader.lookup):
        made.add_tool(one_line(tool), annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
    return made


def main(argv: Sequence[str]) -> int:
    """Serve until standard input ends. Raises UsageError."""
    options = _parser().parse_args(argv)
    server(Reader(options.folder, redact=not options.no_redact)).run("stdio")
    return ExitCode.OK


def _parser() -> arguments.Parser:
    parser = arguments.Parser(
        "mcp",
        "Serve explain, doctor, expect, judge and lookup to an assistant, over the Model Context Protocol on standard "
        "input and output. The tools only read text and files below the named folders. Names in answers are replaced "
        "with pseudonyms.",
    )
    parser.add_argument("--folder", type=arguments.existing_folder, action="append", default=[], metavar="DIR",
        help="Let tools read files below this folder; may be repeated (default: none, text only).")  # fmt: skip
    parser.add_argument("--no-redact", action="store_true", help="Leave names and addresses as they are.")
    return parser
