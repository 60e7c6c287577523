"""Where a finished report goes: the terminal, and the files that the command line names."""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

from ncclprobe.errors import UsageError
from ncclprobe.host import files
from ncclprobe.layout import Style, unstyled
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.report import Report
from ncclprobe.report import text as as_text
from ncclprobe.units import printable

SUMMARY = "GITHUB_STEP_SUMMARY"
GITHUB = "github"
"""What ``--markdown`` takes instead of a path: the job summary of GitHub Actions, with annotations."""

_MPI = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
"""Set by the launchers of MPI, one of them at least."""

FORMATS = ("json", "junit", "markdown", "html", "prometheus")
"""Each an option, and the module of :mod:`ncclprobe.report` with its ``render(report) -> str``; and its
``recognises(text) -> bool``, which says whether a file is one of its own as a whole, and may so be written over."""


class Wanted(Protocol):
    """What a command line asks to be written: an option of :func:`arguments` each, None where it was not given."""

    @property
    def json(self) -> str | None: ...
    @property
    def junit(self) -> str | None: ...
    @property
    def markdown(self) -> str | None: ...
    @property
    def html(self) -> str | None: ...
    @property
    def prometheus(self) -> str | None: ...
    @property
    def nodes_out(self) -> Path | None: ...
    @property
    def quiet(self) -> bool: ...
    @property
    def verbose(self) -> bool: ...
    @property
    def no_color(self) -> bool: ...


def deliver(report: Report, wanted: Wanted, *, measured: bool = True, shown: bool | None = None) -> int:
    """Write `report` wherever it is `wanted`, and return the exit code.

    That is the report's own where all took it. An output that did not is said, and keeps it from no other: then a 4
    that got anywhere stays 4, and all else is wrong usage, for who asked for a report has none. Text on standard output
    is asked for where no file is. `measured`: as of :func:`show`. `shown`: what became of standard output, where known.
    """
    alone, files_taken = on_stdout(wanted), [_taken(each) for each in _files(report, wanted)]
    if shown is None:
        text = partial(write, alone, report, "-") if alone else partial(show, report, wanted, measured=measured)
        shown = _taken(text, to_the_end=bool(alone))
    lost = not all(files_taken) or not (shown or (files_taken and not alone))
    stays = report.exit_code == ExitCode.FAIL and (shown or any(files_taken))
    return int(ExitCode.USAGE if lost and not stays else report.exit_code)


def _taken(write_it: Callable[[], None], *, to_the_end: bool = True) -> bool:
    """Return whether an output took what was written; `to_the_end`: also of a pipe whose reader has left."""
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
    """Say on standard error what an output could not take."""
    with contextlib.suppress(OSError, ValueError):
        print(f"ncclprobe: {printable(text)}", file=sys.stderr, flush=True)


def silence_stdout() -> None:
    """Discard what is buffered for standard output: Python would try to write it again at exit, and fail."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def on_stdout(wanted: Wanted) -> str | None:
    """Return the format that is to stand on standard output, with nothing else there."""
    return next((name for name in FORMATS if getattr(wanted, name) == "-"), None)


def rendered(report: Report, name: str) -> str:
    """Return `report` as ``text``, or in one of FORMATS. Raises UsageError for another, and without its packages."""
    if name == "text":
        from ncclprobe.report import causes

        return causes.render(report) if report.files else as_text.render(report, width=100)
    if name not in FORMATS:
        raise UsageError(f"format {name!r} is unknown; choose from text, {', '.join(FORMATS)}")
    try:
        return str(importlib.import_module(f"ncclprobe.report.{name}").render(report))
    except ImportError as error:
        raise UsageError(f"{name} needs {error.name}: pip install {error.name}") from None


def recognises(name: str) -> Callable[[str], bool]:
    """Return what says whether a text is, as a whole, what was rendered in one of FORMATS."""
    known: Callable[[str], bool] = importlib.import_module(f"ncclprobe.report.{name}").recognises
    return known


def write(name: str, report: Report, path: str) -> None:
    """Write `report` in one of FORMATS to `path`; ``-`` is standard output. A reader never sees half a file.

    Raises UsageError where it cannot be written.
    """
    put(rendered(report, name), path)


def put(text: str, path: str) -> None:
    """Write `text` to `path`; ``-`` is standard output. Raises UsageError where it cannot be written."""
    if path == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        files.write(Path(path), text)


def _files(report: Report, wanted: Wanted) -> Iterator[Callable[[], None]]:
    """Yield what writes each file that is `wanted`. It raises UsageError where that cannot be written."""
    for name in FORMATS:
        path = getattr(wanted, name)
        if name == "markdown" and path == GITHUB:
            yield partial(_tell_github, report, to_stderr=on_stdout(wanted) is not None)
        elif path and path != "-":
            yield partial(write, name, report, path)
    if wanted.nodes_out:
        yield partial(_write_lists, report, wanted.nodes_out)


def _tell_github(report: Report, *, to_stderr: bool) -> None:
    """Add to the step's summary, as its other commands may have, and annotate the run."""
    from ncclprobe.report import markdown

    path = os.environ.get(SUMMARY, "")
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(markdown.render(report))
    except OSError as error:
        raise UsageError(f"--markdown {GITHUB}: {SUMMARY}={path} cannot be written: {error.strerror}") from None
    with contextlib.suppress(OSError):  # the reader has closed the pipe: the summary is written
        for line in markdown.annotations(report):
            print(line, file=sys.stderr if to_stderr else sys.stdout, flush=True)


def _write_lists(report: Report, folder: Path) -> None:
    """All four lists, empty ones too: one of an earlier run must not be taken for this one's."""
    from ncclprobe.report import nodes

    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"--nodes-out {folder}: {error.strerror}; name a folder that can be written") from None
    lists = nodes.lists(report)
    for name, text in lists.texts.items():
        files.write(folder / name, text)
    if lists.left_out:
        shown = printable(", ".join(lists.left_out[:3]))
        print(f"ncclprobe: --nodes-out: in no list, because no host is called so: {shown}", file=sys.stderr)


def show(report: Report, wanted: Wanted, *, measured: bool = True) -> None:
    """Print `report` to standard output; without `measured`, its rows were shown as they came."""
    quiet, verbose, no_color = wanted.quiet, wanted.verbose, wanted.no_color
    if report.files:
        text = _causes(report, quiet=quiet, verbose=verbose, no_color=no_color)
    elif quiet:
        line = as_text.quiet(report)
        text = as_text.shortened(line, width()) if sys.stdout.isatty() else line
    else:
        above = "" if measured or not report.measurements else "\n"
        text = above + as_text.render(report, measured=measured, verbose=verbose, width=width(), style=style(no_color))
    put(text, "-")


def _causes(report: Report, *, quiet: bool, verbose: bool, no_color: bool) -> str:
    from ncclprobe.report import causes

    if quiet:
        return causes.quiet(report)
    return causes.render(report, width=width(), verbose=verbose, style=style(no_color))


def width() -> int:
    """Return how many columns standard output has, 160 at most; 100 where it is no terminal."""
    import shutil  # it brings three compressors along

    return min(shutil.get_terminal_size((100, 24)).columns, 160)


def style(no_color: bool) -> Style:
    """Return colour on a terminal that wants it."""
    if no_color or os.environ.get("NO_COLOR") or not (os.environ.get("FORCE_COLOR") or _on_terminal()):
        return unstyled
    from rich.style import Style as Rich  # at a terminal alone

    colours = {"fail": "bold red", "warn": "bold yellow", "unknown": "bold magenta", "pass": "green", "ok": "green"}
    return lambda text, status: Rich.parse(colours.get(status, "bold")).render(text)


def _on_terminal() -> bool:
    """Return whether standard output is a terminal that a person looks at.

    Open MPI gives every rank a pseudo-terminal and forwards what comes out of it, perhaps to a file. Under an MPI
    launcher a terminal therefore counts only where it is this process's controlling one, as `srun --pty` makes it:
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
