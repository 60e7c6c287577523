"""A site's own checks: of installed distributions, and of a folder that a configuration names.

Their ids begin with ``site-NAME``, which none of ours does. A broken one spoils no other check: one that cannot be
loaded is unknown and required, so that a site never passes because its own checks are absent; one that raises, or does
not end, is unknown.
"""

import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import msgspec

from ncclprobe.host import files
from ncclprobe.host.deadlines import outcome
from ncclprobe.model import bounds
from ncclprobe.model.additions import CHECKS, Addition, installed, module_of
from ncclprobe.model.errors import Unlearned, UsageError
from ncclprobe.model.findings import Finding
from ncclprobe.model.registry import MACHINE, Check, Source, source_of
from ncclprobe.model.units import printable
from ncclprobe.model.values import replace

T = TypeVar("T")
PREFIX = "site-"
_NAME = r"[a-z0-9]+(-[a-z0-9]+)*"


def checks(sources: Collection[Source] | None = None, folder: str = "") -> tuple[Check, ...]:
    """Return the checks of installed distributions, and of the files in `folder`, whose facts come from `sources`.

    Raises UsageError for a folder that another user may write.
    """
    own = (check for each in installed(CHECKS) for check in installed_as(each))
    found = (*own, *(_folder_checks(folder) if folder else ()))
    names = [check.key for check in found]
    named = {check.key: check for check in (_doubled(c) if names.count(c.key) > 1 else c for c in found)}
    return tuple(check for check in named.values() if sources is None or _is_answerable(check, sources))


def origins(checks: Sequence[Check]) -> list[str]:
    """Describe which of `checks` are not ncclprobe's own, and their files, for a note in the report."""
    found = {check.id.partition(".")[0]: check.origin for check in checks if check.origin}
    return [f"{prefix}.* are checks of {printable(origin)}, not of ncclprobe" for prefix, origin in found.items()]


def _is_answerable(check: Check, sources: Collection[Source]) -> bool:
    known = {source_of(need.fact) for need in check.needs} - {None}
    return known <= {*sources} if known else MACHINE in sources


@cache
def installed_as(addition: Addition) -> tuple[Check, ...]:
    """Return the checks of one entry point."""
    return loaded(addition.name, addition.origin, partial(module_of, addition.module))


@cache
def _folder_checks(folder: str) -> tuple[Check, ...]:
    paths = sorted(path for path in files.trusted_folder(Path(folder)).glob("*.py") if not path.name.startswith("_"))
    if len(paths) > bounds.SITE_FILES:
        raise UsageError(f"{folder}: more than {bounds.SITE_FILES} files of checks")
    return tuple(check for path in paths for check in load_file(path))


def load_file(path: Path) -> tuple[Check, ...]:
    """Return the checks in a file, with the file's name as prefix: those in ``bios.py`` begin with ``site-bios``."""
    return loaded(path.stem.replace("_", "-"), str(path), partial(_module_in, path))


def loaded(name: str, origin: str, load: Callable[[], ModuleType]) -> tuple[Check, ...]:
    """Return the checks of the module that `load` imports; if that fails, one that is unknown for that reason."""
    if not re.fullmatch(_NAME, name):
        return (
            _substitute(
                "unnamed", origin, f"{name[:40]!r} is not a valid name: use lower-case letters, digits and hyphens"
            ),
        )
    try:
        module, error = outcome(time.monotonic() + bounds.SITE_LOAD_S, load)
    except TimeoutError:
        return (_substitute(name, origin, f"its import did not finish within {bounds.SITE_LOAD_S:g} s"),)
    if error or module is None:
        return (_substitute(name, origin, f"its import raises {_describe_error(error)}"),)
    found = [value for value in vars(module).values() if isinstance(value, Check)]
    own = [check for check in found if check.run.__module__ == module.__name__]
    return tuple(_adopt(check, name, origin) for check in own) or (_substitute(name, origin, "it contains no check"),)


def _adopt(check: Check, name: str, origin: str) -> Check:
    """Return a site's check with its own prefix, isolated so that it can break no other."""
    applies = check.applies and replace(check.applies, run=partial(_call_in_time, check.applies.run))
    own = {"id": f"{PREFIX}{name}.{check.id.partition('.')[2]}", "origin": origin}
    return replace(check, run=partial(_findings, check.run), applies=applies, **own)


def _findings(run: Callable[..., Iterator[Finding]], *facts: Any) -> Sequence[Finding]:
    """Return the findings of `run`. Raises Unlearned if it does not end, exits, or finds too much."""
    most = bounds.SITE_FINDINGS
    found = _call_in_time(lambda: [_finding(each) for each in islice(run(*facts), most + 1)])
    if len(found) > most:
        raise Unlearned(f"the check returned more than {most} findings")
    return found


def _call_in_time(work: Callable[..., T], *facts: Any) -> T:
    """Call a site's function. Raises its exceptions, and Unlearned if it does not end, or exits.

    Its thread is abandoned: code that holds Python's lock in C cannot be bounded from within.
    """
    try:
        found, error = outcome(time.monotonic() + bounds.SITE_CHECK_S, lambda: work(*facts))
    except TimeoutError:
        raise Unlearned(f"the check did not finish within {bounds.SITE_CHECK_S:g} s") from None
    if error:
        raise error if isinstance(error, Exception) else Unlearned(f"the check itself failed: {_describe_error(error)}")
    return cast(T, found)


def _finding(value: object) -> Finding:
    """Validate the fields of a finding, on which every format relies."""
    if not isinstance(value, Finding):
        raise TypeError(f"it yielded {type(value).__name__} instead of a finding")
    return msgspec.convert(msgspec.to_builtins(value), Finding)


def _doubled(check: Check) -> Check:
    return _substitute(
        check.id.partition(".")[0].removeprefix(PREFIX), check.origin, f"two checks are called {check.key}"
    )


def _substitute(name: str, origin: str, why: str) -> Check:
    """Return a substitute for checks that could not be loaded, which is unknown and required."""

    def run() -> Iterator[Finding]:
        raise Unlearned(f"{origin}: {why}")

    return Check(
        id=f"{PREFIX}{name}.load",
        run=run,
        needs=(),
        title=f"The checks of {origin} cannot be loaded",
        right=f"the checks of {origin} can be loaded",
        why="A site that relies on its own checks must not pass because they are missing.",
        fix=f"Run `ncclprobe checks --test {name}` to see why. To leave them out, pass --ignore '{PREFIX}{name}.*'.",
        bad_examples=tuple,
        good_examples=tuple,
        required=True,
        origin=origin,
    )


def _describe_error(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}".rstrip(": ")


def _module_in(path: Path) -> ModuleType:
    """Run a file as a module, from the opened file whose owner was checked, and without a byte code file."""
    text = files.read(path, limit=bounds.SITE_FILE_BYTES, refuse=partial(files.refuse_foreign, path))
    module = ModuleType(f"ncclprobe_site_{path.stem}")
    module.__file__ = str(path)
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module
