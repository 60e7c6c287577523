"""Deliver a finished report to the terminal, and to the files named on the command line."""

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from ncclprobe.host import files
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.layout import Style, columns, unstyled
from ncclprobe.model.report import Report
from ncclprobe.model.units import printable
from ncclprobe.model.values import Struct, field
from ncclprobe.report import text as as_text

_COLOUR = re.compile(r"(\x1b\[[0-9;]{0,20}m)")
SUMMARY = "GITHUB_STEP_SUMMARY"
GITHUB = "github"
"""Value of ``--markdown`` in place of a path: GitHub Actions' job summary, with annotations."""

_MPI = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
"""Launchers of MPI set at least one of these."""

FORMATS = {
    "json": "Also write the report as JSON.",
    "junit": "Also write it as JUnit XML, for a CI server.",
    "markdown": f"Also write it as Markdown; {GITHUB} writes the GitHub Actions job summary.",
    "html": "Also write it as one page that opens offline.",
    "prometheus": "Also write it as NAME.prom for Prometheus's textfile collector.",
}
"""Options and their help; each names a module of :mod:`ncclprobe.report` with ``render(report) -> str`` and
``recognises(text) -> bool``, which is true for a complete file of its own that may be overwritten.
"""


class Output(Struct, frozen=True):
    """The outputs that a command line requests: in `files` the path by format, and how a report is shown."""

    files: Mapping[str, str] = field(default_factory=dict)
    nodes_out: Path | None = None
    quiet: bool = False
    verbose: bool = False
    no_color: bool = False

    @property
    def on_stdout(self) -> str | None:
        """Return the format that is the only output on standard output."""
        return next((name for name, path in self.files.items() if path == "-"), None)


def deliver(report: Report, output: Output, *, measured: bool = True, shown: bool | None = None) -> int:
    """Write `report` to all outputs, and return the exit code.

    It is the report's own if every output succeeded. A failed output is reported, and does not affect the others. Then
    a 4 that was delivered anywhere stays 4, and every other code becomes wrong usage, because the caller has no report.
    Text on standard output is required if there is no file. `measured`: as in :func:`show`. `shown`: the result of
    standard output, if known.
    """
    alone, files_taken = output.on_stdout, [_try_write(each) for each in _files(report, output)]
    if shown is None:
        text = partial(write, alone, report, "-") if alone else partial(show, report, output, measured=measured)
        shown = _try_write(text, to_the_end=bool(alone))
    lost = not all(files_taken) or not (shown or (files_taken and not alone))
    stays = report.exit_code == ExitCode.FAIL and (shown or any(files_taken))
    return int(ExitCode.USAGE if lost and not stays else report.exit_code)


def _try_write(write_it: Callable[[], None], *, to_the_end: bool = True) -> bool:
    """Return whether an output accepted the text; `to_the_end`: including a pipe whose reader has left."""
    try:
        write_it()
    except UsageError as error:
        complain(str(error))
    except BrokenPipeError:  # `… | head`
        silence_stdout()
        return not to_the_end
    except (OSError, ValueError) as error:  # full, closed, of another encoding, or too narrow for any text
        silence_stdout()
        complain(f"standard output cannot be written: {getattr(error, 'strerror', None) or error}")
    else:
        return True
    return False


def complain(text: str) -> None:
    """Report on standard error that an output failed."""
    with contextlib.suppress(OSError, ValueError):
        print(f"ncclprobe: {printable(text)}", file=sys.stderr, flush=True)


def silence_stdout() -> None:
    """Discard buffered standard output: Python would try to write it again at exit, and fail."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def rendered(report: Report, name: str) -> str:
    """Render `report` as ``text``, or in one of FORMATS. Raises UsageError for another format or a missing package."""
    if name == "text":
        from ncclprobe.report import causes

        return causes.render(report, width=100) if report.files else as_text.render(report, width=100)
    if name not in FORMATS:
        raise UsageError(f"format {name!r} is unknown; choose from text, {', '.join(FORMATS)}")
    try:
        return str(importlib.import_module(f"ncclprobe.report.{name}").render(report))
    except ImportError as error:
        raise UsageError(f"{name} needs {error.name}: pip install {error.name}") from None


def recognises(name: str) -> Callable[[str], bool]:
    """Return a format's function that recognises a complete file of that format."""
    known: Callable[[str], bool] = importlib.import_module(f"ncclprobe.report.{name}").recognises
    return known


def write(name: str, report: Report, path: str) -> None:
    """Write `report` in one of FORMATS to `path`, atomically; ``-`` is standard output.

    Raises UsageError if it cannot be written.
    """
    text = rendered(report, name)
    if path == "-" and name in ("text", "markdown"):
        text = harmless(text)
    put(text, path, ours=recognises(name) if name in FORMATS else None)


def put(text: str, path: str, ours: Callable[[str], bool] | None = None) -> None:
    """Write `text` to `path`, overwriting only what `ours` recognises; ``-`` is standard output. Raises UsageError."""
    if path == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        files.write(Path(path), text, ours=ours)


def _files(report: Report, output: Output) -> Iterator[Callable[[], None]]:
    """Yield a writer for each file of `output`. It raises UsageError if the file cannot be written."""
    for name, path in output.files.items():
        if name == "markdown" and path == GITHUB:
            yield partial(_tell_github, report, to_stderr=output.on_stdout is not None)
        elif path != "-":
            yield partial(write, name, report, path)
    if output.nodes_out:
        yield partial(_write_lists, report, output.nodes_out)


def _tell_github(report: Report, *, to_stderr: bool) -> None:
    """Append to the step's summary, which its other commands may have written too, and annotate the run."""
    from ncclprobe.report import markdown

    path = os.environ.get(SUMMARY, "")
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(markdown.render(report))
    except OSError as error:
        raise UsageError(f"--markdown {GITHUB}: {SUMMARY}={path} cannot be written: {error.strerror}") from None
    stream = sys.stderr if to_stderr else sys.stdout
    with contextlib.suppress(OSError):  # the reader has closed the pipe: the summary is written
        stream.flush()
        for line in markdown.annotations(report):  # commands of ours: a text stream would spell them out
            stream.buffer.write(f"{line}\n".encode())
        stream.buffer.flush()


def _write_lists(report: Report, folder: Path) -> None:
    """Write all four lists, even empty ones: one of an earlier run must not be mistaken for this one's."""
    from ncclprobe.report import nodes

    try:
        files.make_folder(folder)
    except OSError as error:
        raise UsageError(f"--nodes-out {folder}: {error.strerror}; name a folder that can be written") from None
    lists = nodes.lists(report)
    for name, text in lists.texts.items():
        files.write(folder / name, text, ours=recognises("nodes"))
    if lists.left_out:
        shown = printable(", ".join(lists.left_out[:3]))
        print(f"ncclprobe: --nodes-out: in no list, because no host has this name: {shown}", file=sys.stderr)


def show(report: Report, output: Output, *, measured: bool = True) -> None:
    """Print `report` to standard output; without `measured`, its rows were already shown as they arrived."""
    quiet, verbose, no_color = output.quiet, output.verbose, output.no_color
    if report.files:
        text = _causes(report, quiet=quiet, verbose=verbose, no_color=no_color)
    elif quiet:
        line = as_text.quiet(report)
        text = as_text.shortened(line, width()) if sys.stdout.isatty() else line
    else:
        above = "" if measured or not report.measurements else "\n"
        text = above + as_text.render(report, measured=measured, verbose=verbose, width=width(), style=style(no_color))
    put(harmless(text, styled=style(no_color) is not unstyled), "-")


def harmless(text: str, *, styled: bool = False) -> str:
    """Remove control characters that could control a terminal; `styled`: keep our own colours.

    The streams themselves escape what would control a workflow runner: see `ncclprobe.commands`.
    """
    kept = _COLOUR.split(text) if styled else [text]
    return "".join(part if number % 2 else _escaped(part) for number, part in enumerate(kept))


def _escaped(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def _causes(report: Report, *, quiet: bool, verbose: bool, no_color: bool) -> str:
    from ncclprobe.report import causes

    if quiet:
        return causes.quiet(report)
    columns = width() if report.standing else min(width(), 80)
    return causes.render(report, width=columns, verbose=verbose, style=style(no_color))


def width() -> int:
    """Return the columns of standard output, at most 160; 100 if it is not a terminal."""
    return min(columns(100), 160)


def style(no_color: bool) -> Style:
    """Return colours if standard output is a terminal that wants them."""
    if no_color or os.environ.get("NO_COLOR") or not (os.environ.get("FORCE_COLOR") or _writes_to_terminal()):
        return unstyled
    from rich.style import Style as Rich  # at a terminal alone

    colours = {"fail": "bold red", "warn": "bold yellow", "unknown": "bold magenta", "pass": "green", "ok": "green"}
    return lambda text, status: Rich.parse(colours.get(status, "bold")).render(text)


def _writes_to_terminal() -> bool:
    """Return whether standard output is a terminal that a person looks at.

    Open MPI gives every rank a pseudo-terminal and forwards its output, perhaps to a file. Under an MPI
    launcher a terminal therefore counts only if it is this process's controlling one, as `srun --pty` makes it:
    tcgetpgrp(3) fails for any other.
    """
    if not sys.stdout.isatty():
        return False
    if not any(name in os.environ for name in _MPI):
        return True
    try:
        os.tcgetpgrp(sys.stdout.fileno())
    except OSError:
        return False
    return True
