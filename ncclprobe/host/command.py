"""Start processes without ever being blocked by one; nothing else starts any.

Each process leads its own session, whose group is killed as a whole, by the kernel if this process was itself killed.
No caller waits for a process that survives SIGKILL in uninterruptible sleep, nor for its pipes. Programs, libraries and
modules are never searched for in the working directory, which may be writable by others.
"""

import contextlib
import errno
import fcntl
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

from ncclprobe import signals
from ncclprobe.host import files
from ncclprobe.model import bounds
from ncclprobe.model.errors import Denied, Failed, HostError, Missing, OutOfTime, TimedOut, UsageError

_DYING_S = 0.5
_LOOK_AGAIN_S = 0.1
Stream = int | IO[bytes] | None
"""Standard input, output or error of a process, as subprocess takes it. None: inherit ours."""
_SEARCHED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX")
"""Variables that list folders; an empty or relative entry means the working directory (ld.so(8))."""
_LEFT_OUT = ("PYTHONINSPECT",)
"""Would make a process of ours wait for input when it has finished."""
RUNNING: "dict[subprocess.Popen[bytes], int]" = {}
"""Running processes, each with the end of a pipe that only this process holds. Each leads its own group, which a signal
to our group does not reach: they are killed when this process exits.
"""
_F_SETSIG = 10  # fcntl(2)


def found(name: str, more: Sequence[str] = ()) -> str | None:
    """Find the program `name` in PATH or in the folders `more`, if it may be started; None: not found.

    Root starts only what only root can change: the program, the target of its link, and the folders of both. Raises
    PermissionError if all candidates are unsafe.
    """
    folders = [*more, *os.environ.get("PATH", os.defpath).split(os.pathsep)]
    there = [path for each in folders if each.startswith("/") and _is_executable(path := f"{each.rstrip('/')}/{name}")]
    if own := next((each for each in there if os.geteuid() or is_own(each)), None):
        return own
    if there:
        why = f"not started as root, because other users may change {there[0]}; move it to a folder of root"
        raise PermissionError(errno.EACCES, why)
    return None


def _is_executable(path: str) -> bool:
    """Return whether an executable is there, like shutil.which, which loads three compressors at every start."""
    return os.access(path, os.X_OK) and not Path(path).is_dir()


@cache
def is_own(program: str) -> bool:
    """Return whether root or this user owns the program, and nobody else may change it."""
    try:
        files.trusted_folder(Path(program).parent)
        real = Path(program).resolve(strict=True)
        files.trusted_folder(real.parent)
        files.refuse_foreign(real, real.stat())
    except (UsageError, OSError, RuntimeError):
        return False
    return True


def start(
    argv: Sequence[str],
    *,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = subprocess.DEVNULL,
    stderr: Stream = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    variables: Mapping[str, str] | None = None,
) -> "subprocess.Popen[bytes]":
    """Start `argv`, with `variables` over our environment. Raises OSError.

    End it with :func:`abandon`; it is killed when this process exits.
    """
    program = argv[0] if "/" in argv[0] else found(argv[0]) or argv[0]
    theirs, ours = os.pipe()
    try:
        process = subprocess.Popen(
            argv,
            executable=program,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=(*pass_fds, theirs),
            start_new_session=True,
            env=safe_environment({**os.environ, **(variables or {})}),
        )
        _end_with_us(theirs, process.pid)
        RUNNING[process], ours = ours, -1
    finally:
        os.close(theirs)
        if ours >= 0:
            os.close(ours)
    return process


def _end_with_us(pipe: int, group: int) -> None:
    """Make the kernel send SIGKILL to `group`, which also holds `pipe`, when nobody holds the pipe's other end.

    This works however this process ends. The signal for a parent's death (prctl(2)) does not: it is also sent when the
    thread that started the process ends.
    """
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -group)
    fcntl.fcntl(pipe, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


def safe_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return `variables` without entries that search the working directory."""
    kept = {name: value for name, value in variables.items() if name not in _LEFT_OUT}
    for name in _SEARCHED:
        if means_here(name, variables):
            whole = [each for each in _elements(name, kept.pop(name)) if each.startswith(("/", "$"))]
            kept |= {name: os.pathsep.join(whole)} if whole else {}
    return kept


def means_here(name: str, variables: Mapping[str, str] = os.environ) -> bool:
    """Return whether an entry of the folder list in variable `name` means the working directory."""
    return any(not each.startswith(("/", "$")) for each in _elements(name, variables.get(name, "")))


def _elements(name: str, text: str) -> list[str]:
    return (text.replace(";", ":") if name == "LD_LIBRARY_PATH" else text).split(os.pathsep) if text else []


def run(argv: Sequence[str], patience_s: float) -> str:
    """Return the standard output of a command that exits with 0 within `patience_s` seconds; otherwise
    kill its group.
    """
    what = " ".join(argv)
    try:
        process = start(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, variables={"LC_ALL": "C"})
    except OSError as error:
        raise as_host_error(error, argv[0]) from None
    try:
        out, err = _collect_output(process, time.monotonic() + patience_s)
        code = process.poll()
    finally:
        abandon(process)
    if len(out) + len(err) > bounds.ANSWER_BYTES:
        raise Failed(f"{what}: printed more than {bounds.ANSWER_BYTES >> 20} MiB")
    if code is None:
        raise TimedOut(f"{what}: no answer within {max(0.0, patience_s):.3g} s")
    if code:
        words = " ".join((err or out).decode(errors="replace").split())[:300]
        raise Failed(f"{what}: exit code {code}: {words}")
    return out.decode(errors="replace")


def _collect_output(process: "subprocess.Popen[bytes]", deadline: float) -> tuple[bytes, bytes]:
    """Collect the output of `process` until it has exited and its pipes are empty, time is up, or it is too much."""
    texts = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        for pipe in texts:
            assert pipe
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map() and (left_s := deadline - time.monotonic()) > 0:
            ready = selector.select(min(left_s, _LOOK_AGAIN_S))
            if not ready and process.poll() is not None:  # it has ended: other holders of its pipes are not waited for
                break
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 16)
                texts[key.fileobj] += chunk  # type: ignore[index]
                if not chunk:
                    selector.unregister(key.fileobj)
            if sum(map(len, texts.values())) > bounds.ANSWER_BYTES:
                break
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    return bytes(texts[process.stdout]), bytes(texts[process.stderr])


def abandon(process: "subprocess.Popen[bytes]") -> None:
    """Kill `process` and its group, close its pipes, and wait no longer than a normal exit takes."""
    _kill(process)
    if process in RUNNING:
        os.close(RUNNING.pop(process))
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with contextlib.suppress(OSError):  # unsent input of a broken pipe
                pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_DYING_S)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _kill_all() -> None:
    for process in list(RUNNING):
        if process.returncode is None:  # else its number may be another's by now
            _kill(process)


signals.LAST.append(_kill_all)


def as_host_error(error: BaseException, what: str) -> HostError:
    """Convert an operating system error about `what` to a HostError."""
    if isinstance(error, HostError):
        return error
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Missing(f"{what}: not there")
    if isinstance(error, PermissionError):
        return Denied(
            f"{what}: {error.strerror or 'permission denied'}".replace("Permission denied", "permission denied")
        )
    if isinstance(error, MemoryError):
        return OutOfTime(f"{what}: not asked, because {signals.NO_MEMORY}")
    return Failed(f"{what}: {getattr(error, 'strerror', None) or error}")
