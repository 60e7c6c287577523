"""How variables are written: their names, numbers, and texts if a reader knows a few words.

All of it comes from the table of variables. Numbers are NCCL's own, read by its own rule, and those of other readers,
which refuse or misread what NCCL would take. Some are right or wrong only in comparison with those of the other nodes.
"""

import re
from collections.abc import Iterator

from ncclprobe.checks import IMAGE, JOB
from ncclprobe.checks.env import (
    DEBUG_GROUP,
    GID_GROUP,
    NAME_GROUP,
    VALUE_GROUP,
    as_evidence,
    evidence,
    jobs_fail,
    jobs_note,
    jobs_warn,
    loaded,
    written,
)
from ncclprobe.checks.env.fixtures import (
    LINK_LOCAL,
    NO_NCCL,
    PLAIN,
    PRIVATE,
    USUAL,
    V1,
    V2,
    fabric,
    having,
    nccl,
    roce,
    setting,
)
from ncclprobe.checks.majority import unlike
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.software import Software, Version, parse_version, reaches
from ncclprobe.model.findings import Finding, fail, note, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent, Every, Job, vote
from ncclprobe.nccl.hcas import family, pick, roce_version, select_by, wish
from ncclprobe.nccl.parameters import NEWEST, Parameter, nearest, table
from ncclprobe.nccl.values import Reading, intent, keeps_default, read_int, read_setting

_OF_BUILDS = frozenset(
    {
        *("HOME", "ROOT", "DIR", "DIRS", "PATH", "PREFIX", "VERSION", "LIB", "LIBRARY", "LIBRARIES", "INCLUDE", "BIN"),
        *("INSTALL", "SRC", "SOURCE", "BUILD", "TEST", "TESTS", "TAG", "BRANCH", "REPO"),
    }
)
"""Words of variables that scripts have for themselves, such as NCCL_HOME and NCCL_TESTS_DIR."""
_HELD_IN_PART = ("GLOO_", "NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_", "NCCL_TCPX_")
"""How names of gloo and of Google's plugins begin, whose sources are not public: there are more than are known."""
_MOST_NAMES = 100  # comparing spellings takes milliseconds each, and a file may hold thousands


@check(
    group=NAME_GROUP,
    bad=lambda: [(setting("NCCL_SOCKET_IFNAMES", "eth0"), NO_NCCL)],
    good=lambda: [(setting("NCCL_SOCKET_IFNAME", "eth0"), NO_NCCL)],
    required=True,
)
def unknown_var(settings: Settings, software: Software | Absent) -> Iterator[Finding]:
    """NCCL does not read a variable that looks like one of its own.

    Right: NCCL reads every variable that looks like one of its own.
    Why: NCCL, torch and gloo ignore unknown names without a message, so a misspelt or invented name has no effect.
    Names that build scripts use, such as NCCL_HOME, are only noted.
    Fix: correct the name, or unset it.
    """
    strange = [entry for entry in settings.named("") if _unread(entry)]
    version = loaded(software)
    newer = version is not None and version > NEWEST
    if len(strange) > _MOST_NAMES:
        first, last = strange[_MOST_NAMES], strange[-1]
        message = f"and {len(strange) - _MOST_NAMES} more names up to {last.name} were not compared with NCCL's"
        yield note(first.name, message, evidence=as_evidence(first))
    for entry in strange[:_MOST_NAMES]:
        known = table().get(entry.name)
        better = known.instead if known else nearest(entry.name)
        if entry.name != entry.name.strip():
            message = (
                "is not set: in a shell a space before the = ends the name; elsewhere the space becomes part of the "
                "name"
            )
            yield warn(entry.name.strip(), message, **JOB, evidence=as_evidence(entry))
        elif newer and entry.name.startswith("NCCL_"):
            message = f"is unknown to this ncclprobe; {written(version)} is newer and may read it"
            message += f"; if not, it is a misspelt {better}" if better else ""
            yield note(entry.name, message, evidence=as_evidence(entry))
        elif known and not better:
            message = f"no library reads it. {known.hazard}"
            yield warn(entry.name, message, **JOB, evidence=as_evidence(entry))
        elif better:
            message = f"no library reads it; did you mean {better}?"
            yield warn(repr(entry.name).strip("'"), message, **JOB, evidence=as_evidence(entry))
        else:
            message = f"is not a variable of {written(NEWEST)} or older, or of a known plugin or framework"
            builds = _OF_BUILDS.issuperset(entry.name.split("_")[1:])
            harmless = builds or entry.name.startswith(_HELD_IN_PART) or _may_be_a_plugins(entry.name, settings)
            yield (jobs_note if harmless else jobs_warn)(entry.name, message, as_evidence(entry))


def _may_be_a_plugins(name: str, settings: Settings) -> bool:
    """Return whether a network plugin that is chosen by hand, such as spcx, may read this name."""
    plugin = (settings.get("NCCL_NET_PLUGIN") or "none").lower()
    return name.startswith(("NCCL_IB_", "NCCL_NET_")) and plugin not in _OF_NO_PLUGIN


_OF_NO_PLUGIN = ("none", "internal", "static_plugin")


def _unread(entry: Setting) -> bool:
    """Return whether no program reads this name. Blanks around one in a file are what env.files reports.

    Of other libraries' names, which the table does not hold in full, only a likely misspelling counts.
    """
    known = table().get(entry.name)
    if (known and known.owner != "none") or (entry.origin != "environment" and entry.name != entry.name.strip()):
        return False
    return entry.name.startswith(("NCCL_", "TORCH_NCCL_", "GLOO_")) or bool(nearest(entry.name))


@check(
    group=NAME_GROUP,
    bad=lambda: [(setting("NCCL_SHM_USE_CUDA_MEMCPY", "1"), nccl(2, 30, 7))],
    good=lambda: [(setting("NCCL_SHM_USE_CUDA_MEMCPY", "1"), nccl(2, 29, 7))],
)
def retired_var(settings: Settings, software: Software | Absent) -> Iterator[Finding]:
    """The loaded NCCL does not read a variable that other releases read.

    Right: Every variable is one that the loaded NCCL and torch read.
    Why: NCCL ignores unknown names, so a setting from an old guide, or for a newer version, does nothing.
    Fix: use the name that replaced it, or unset it.
    """
    versions = {"nccl": loaded(software), "torch": _torch(software)}
    for entry in settings.effective.values():
        known = table().get(entry.name)
        if not known or known.owner not in versions:
            continue
        version, nccls = versions[known.owner], known.owner == "nccl"
        now = f"; {known.instead} replaces it" if known.instead else ""
        if known.gone and (nccls or version is None or version >= known.gone):
            if not reaches(version, known.gone):
                continue
            gone = ".".join(map(str, known.gone))
            tell = jobs_warn if nccls or version else jobs_note
            yield tell(entry.name, f"has not been read since {known.owner} {gone}{now}", as_evidence(entry))
        elif known.since and not reaches(version, known.since):
            since, by = ".".join(map(str, known.since)), written(version, "NCCL" if nccls else "torch")
            yield jobs_note(entry.name, f"is unknown to {by}: it was added in {since}", as_evidence(entry))
        elif not nccls and known.instead and reaches(version, table()[known.instead].since or (0,)):
            yield jobs_note(entry.name, f"is an old name that torch still reads{now}", as_evidence(entry))


def _torch(software: Software | Absent) -> Version | None:
    """Return the version of the installed torch; None if none is, or it is not known."""
    found = software.packages.get("torch") if isinstance(software, Software) else None
    return parse_version(found) if found else None


_BIT_FIELDS = {"NCCL_IB_TIMEOUT", "NCCL_IB_SL", "NCCL_IB_TC"}  # mlx5_ifc.h: 5, 4 and 8 bits
_REFUSED_BY_IB = {*_BIT_FIELDS, "NCCL_IB_QPS_PER_CONNECTION"}
_BUFFERS = {"NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE"}
_CRAWLS = 4096
"""Bytes below which data is cut into steps so small that their latency decides: a channel that moves so little in one
step of 2 us moves 2 GB/s at most, of the 20 that it could.
"""
_LATER = r"(\S+?)(?: \([^)]*\))? from v(\d+\.\d+\.\d+)"


def _integers(settings: Settings) -> Iterator[tuple[Setting, Parameter, Reading]]:
    """Yield the set variables that NCCL reads as an integer, with what it makes of their text."""
    for entry in settings.named("NCCL_"):
        parameter = table().get(entry.name)
        if parameter and parameter.is_integer and entry.value is not None:
            yield entry, parameter, read_int(entry.value, default=0)


@check(
    group=VALUE_GROUP,
    slows=True,
    bad=lambda: [(setting("NCCL_IB_DISABLE", "true"), NO_NCCL)],
    good=lambda: [(setting("NCCL_IB_DISABLE", "1"), NO_NCCL)],
    required=True,
)
def bool_word(settings: Settings, software: Software | Absent) -> Iterator[Finding]:
    """A word is set where NCCL expects a number.

    Right: Every on/off variable is a number.
    Why: NCCL reads integers with strtoll, which silently returns 0 for every word (src/misc/param.cc:95). So
    NCCL_IB_DISABLE=true leaves InfiniBand on, and NCCL_NVLS_ENABLE=yes turns NVLS off. Since 2.32 NCCL reports that the
    value is invalid and keeps its default. torch's own switches do accept words.
    Fix: write 1 for on and 0 for off, such as NCCL_IB_DISABLE=1.
    """
    version = loaded(software)
    keeps = keeps_default(version)
    for entry, parameter, reading in _integers(settings):
        if reading.note != "word":
            continue
        value = default_of(parameter, version) if keeps else 0
        meant = intent(entry.value or "")
        read_as = f"rejects, so the default applies ({parameter.default})" if keeps else "reads as 0"
        message = f"is {entry.value!r}, which NCCL {read_as}"
        if meant is None or value is None:
            yield warn(entry.name, message, **JOB, evidence=as_evidence(entry))
        elif bool(value) == meant:
            yield note(entry.name, f"{message}; that is what the word means", evidence=as_evidence(entry))
        else:
            contrary = f"{message}: the opposite of what was meant"
            yield fail(entry.name, contrary, **JOB, evidence=as_evidence(entry))


@check(
    group=VALUE_GROUP,
    slows=True,
    bad=lambda: [(setting("NCCL_IB_TIMEOUT", "022"),)],
    good=lambda: [(setting("NCCL_IB_TIMEOUT", "0x16"),)],
)
def number_text(settings: Settings) -> Iterator[Finding]:
    """NCCL misreads a number.

    Right: NCCL reads every number as it was written.
    Why: NCCL does not support suffixes, fractions or comments (it reads 4M as 4). It reads a number with a leading 0 as
    octal (010 is 8), and uses its default if the number exceeds 64 bits (src/misc/param.cc:95). With steps of only a
    few bytes, transfers are extremely slow.
    Fix: write plain decimal digits: 4194304 for 4M.
    """
    for entry, parameter, reading in _integers(settings):
        if reading.note in ("tail", "octal", "overflow"):
            read_as = f"its default ({parameter.default})" if reading.note == "overflow" else str(reading.value)
            message = f"is {entry.value!r}, which NCCL reads as {read_as}"
            if crawls := reading.note != "overflow" and _crawls(parameter, reading.value):
                message += f" bytes: {_SHORT}, and moves almost nothing"
            yield (jobs_fail if crawls else jobs_warn)(entry.name, message, as_evidence(entry))


def _crawls(parameter: Parameter, value: int) -> bool:
    """Return whether `value` bytes are too few for what moves in one step."""
    moved = parameter.type == "size" and parameter.name.endswith(("BUFFSIZE", "CHUNKSIZE", "CHUNK_SIZE"))
    return moved and 0 < value < _CRAWLS


@check(
    group=VALUE_GROUP,
    slows=True,
    bad=lambda: [(setting("NCCL_IB_TIMEOUT", "32"),)],
    good=lambda: [(setting("NCCL_IB_TIMEOUT", "22"),)],
    required=True,
)
def range(settings: Settings) -> Iterator[Finding]:
    """A number is outside the range of its variable.

    Right: Every number is within the range of its variable.
    Why: the NCCL_IB_ variables are bit fields of a queue pair (timeout 5 bits, retry count 3). The NIC rejects or wraps
    a value that does not fit, and NCCL does not check it first. With 0 queue pairs NCCL creates an empty completion
    queue, which the NIC rejects, and divides by 0 (src/transport/net_ib.cc:2184, v2.28.9). It also accepts any buffer
    size and divides it into 8 steps (src/init.cc:827, src/include/device.h:26). NCCL clips or ignores other invalid
    values, with an INFO line at most.
    Fix: choose a value inside the range, or unset the variable.
    """
    for entry, parameter, reading in _integers(settings):
        low, high = parameter.low, parameter.high
        if reading.note in ("word", "overflow", "empty"):
            continue
        if problem := _no_size(parameter, reading.value):
            tell = jobs_fail if entry.name in _BUFFERS else jobs_warn
            yield tell(entry.name, problem, as_evidence(entry))
        elif (low is not None and reading.value < low) or (high is not None and reading.value > high):
            bounds = f"{'' if low is None else low}..{'' if high is None else high}"
            message = f"is {reading.value}, outside {bounds} ({parameter.source})"
            tell = jobs_fail if entry.name in _REFUSED_BY_IB else jobs_warn
            yield tell(entry.name, message, as_evidence(entry))


def _no_size(parameter: Parameter, value: int) -> str:
    """Return why `value` is not a size; empty if it is one, or a code of the variable such as -2 for its default."""
    if value in (parameter.low, -2) or parameter.type != "size":
        return ""
    if parameter.name in _BUFFERS and value < 1:
        return f"is {value}, so NCCL allocates buffers of 0 bytes"
    return f"is {value}, which is not a valid size ({parameter.source})" if value < 0 <= (parameter.low or 0) else ""


def default_of(parameter: Parameter, version: Version | None) -> int | None:
    """Return the default in `version` according to the table, None if it is not a number: ``20 [14 from v2.3.5 …]``."""
    now, _, history = parameter.default.partition("[")
    value = now.strip().partition(" ")[0]
    changes = [(found[1], parse_version(found[2])) for found in re.finditer(_LATER, history)]
    if "before" in history or " in " in history:
        return None  # told in prose
    for text, since in changes:
        if since and reaches(version, since):
            value = text
    if changes and changes[0][1] and not reaches(version, changes[0][1]):
        return None
    return int(value) if re.fullmatch(r"-?[0-9]+", value) else None


@check(
    group=NAME_GROUP,
    slows=True,
    bad=lambda: [(setting("NCCL_IB_TIMEOUT", "18"), nccl(2, 29, 7))],
    good=lambda: [(setting("NCCL_IB_TIMEOUT", "20"), nccl(2, 29, 7))],
)
def noop(settings: Settings, software: Software | Absent) -> Iterator[Finding]:
    """A setting has no effect, or overrides a better default.

    Right: Every setting has an effect, and none overrides a better default.
    Why: guides repeat advice that was good for older versions. The default of NCCL_IB_TIMEOUT was raised to 20 in 2.23.
    A value of 14 or 18 shortens the timeout, so a flapping link ends the job instead of delaying it. Other settings are
    left over from debugging. One channel carries about 20 GB/s on GPUs that reach 400 (src/init.cc:1725). With a small
    buffer or chunk every step waits for the previous one. A block of 64 threads moves less than the usual 512.
    Fix: unset the variable.
    """
    version = loaded(software)
    for entry, parameter, reading in _integers(settings):
        least, cost = _FAR_BELOW.get(entry.name, (0, ""))
        if reading.note == "plain" and 0 < reading.value < least and not _no_size(parameter, reading.value):
            message = f"is {reading.value}, far below what NCCL would choose: {cost}"
            yield (jobs_fail if _crawls(parameter, reading.value) else jobs_warn)(
                entry.name, message, as_evidence(entry)
            )
            continue
        if entry.name == "NCCL_IB_TC" and reading.value == _DSCP_OF_ROCE:
            message = f"is {reading.value}, the usual DSCP for RoCE; the matching traffic class is 104, or 106 with ECN"
            yield jobs_warn(entry.name, message, as_evidence(entry))
        default = default_of(parameter, version) if reading.note == "plain" else None
        if default is None:
            continue
        if reading.value == default:
            yield jobs_note(entry.name, f"is {default}, the default of {written(version)}", as_evidence(entry))
        elif entry.name == "NCCL_IB_TIMEOUT" and 0 < reading.value < default:
            times = f"{4.096e-6 * 2**reading.value * 7:.2g} s instead of {4.096e-6 * 2**default * 7:.2g} s"
            message = (
                f"is {reading.value}, below the default {default} of {written(version)}: it gives up after {times}"
            )
            yield jobs_warn(entry.name, message, as_evidence(entry))
        elif entry.name == "NCCL_IB_TIMEOUT" and reading.value == 0:
            yield jobs_warn(
                entry.name, "is 0, which means no timeout, so a lost packet hangs the job", as_evidence(entry)
            )
        elif entry.name == "NCCL_IB_RETRY_CNT" and 0 <= reading.value < default:
            lost = f"packet lost {reading.value + 1} times in a row" if reading.value else "single lost packet"
            message = f"is {reading.value}, below the default {default}: a {lost} ends the job"
            yield jobs_warn(entry.name, message, as_evidence(entry))


_DSCP_OF_ROCE = 26
_FEW = "one channel carries about 20 GB/s"
_SHORT = "every step waits for the previous one"
_SLOW = "with few threads each channel moves less data"
_FAR_BELOW = {  # defaults: as many channels as the links need, 4 MiB, 512 KiB, 4.7 MiB, 128 KiB (src/init.cc:814)
    **dict.fromkeys(("NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS", "NCCL_MAX_CTAS"), (2, _FEW)),
    "NCCL_MAX_P2P_NCHANNELS": (2, _FEW),
    **dict.fromkeys(("NCCL_BUFFSIZE", "NCCL_LL128_BUFFSIZE"), (1 << 17, _SHORT)),
    **dict.fromkeys(("NCCL_LL_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE"), (1 << 14, _SHORT)),
    **dict.fromkeys(("NCCL_P2P_NVL_CHUNKSIZE", "NCCL_P2P_PCI_CHUNKSIZE", "NCCL_NVLS_CHUNKSIZE"), (1 << 14, _SHORT)),
    "NCCL_NTHREADS": (128, _SLOW),
}
"""What costs little, and why less costs much."""


@check(
    group=NAME_GROUP,
    slows=True,
    bad=lambda: [(having(NCCL_MIN_CTAS="16", NCCL_MAX_CTAS="8"), nccl(2, 30, 7))],
    good=lambda: [(having(NCCL_MIN_CTAS="8", NCCL_MAX_CTAS="8"), nccl(2, 30, 7))],
)
def overruled(settings: Settings, software: Software | Absent) -> Iterator[Finding]:
    """NCCL does not use the number that was set, because another setting or the hardware contradicts it.

    Right: NCCL uses the numbers that were set.
    Why: if NCCL_MIN_CTAS is above NCCL_MAX_CTAS, NCCL uses the maximum for both (src/init.cc:2190). For channels it
    uses the minimum, by repeating the channels that the maximum allows (src/graph/connect.cc:493). If a number of
    threads is not a multiple of a warp (32), NCCL uses the largest number possible (src/graph/tuning.cc:17). It opens
    at most 64 sockets (src/transport/net_socket.cc:391). NCCL reports this only at INFO level, if at all.
    Fix: set the minimum to no more than the maximum, threads to a multiple of 32, and threads times sockets to 64 or
    less.
    """
    version = loaded(software)
    yield from _contradictions(settings, version)
    for name, least in (("NCCL_NTHREADS", 64), ("NCCL_LL128_NTHREADS", 160)):
        threads = read_setting(settings, name, -2, version)
        most = table()[name].high
        if threads > 0 and threads % _WARP:
            message = f"is {threads}, which is not a multiple of {_WARP}: NCCL runs {most} threads"
            yield jobs_warn(name, message, evidence(settings, name))
        elif 0 < threads < least:
            yield jobs_warn(name, f"is {threads}, but NCCL runs at least {least} threads", evidence(settings, name))
    threads, sockets = (read_setting(settings, name, -2, version) for name in _SOCKETS)
    if threads > 0 and sockets > 0 and min(threads, 16) * sockets > _MOST_SOCKETS:
        used = _MOST_SOCKETS // min(threads, 16)
        message = f"is {sockets}, but with {min(threads, 16)} threads NCCL opens only {used} sockets for each"
        yield jobs_warn(_SOCKETS[1], message, evidence(settings, *_SOCKETS))


_WARP, _MOST_SOCKETS = 32, 64
_SOCKETS = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
_PAIRS = (
    ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL uses the maximum for both"),
    (
        "NCCL_MIN_NCHANNELS",
        "NCCL_MAX_NCHANNELS",
        "NCCL uses the minimum, by repeating the channels that the maximum allows",
    ),
    ("NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS", "NCCL uses the minimum"),
)


def _contradictions(settings: Settings, version: Version | None) -> Iterator[Finding]:
    """Yield each minimum above its maximum; a number that NCCL takes for none, such as -2, contradicts nothing."""
    for least, most, outcome in _PAIRS:
        low, high = (read_setting(settings, name, -2, version) for name in (least, most))
        if 0 < high < low:
            message = f"is {low}, above {most}={high}: {outcome}"
            yield jobs_warn(least, message, evidence(settings, least, most))


_MARKS = "\"'\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}\N{LEFT SINGLE QUOTATION MARK}`"
"""Quotation marks: those that a shell takes away, and those that a text editor puts in their place."""
_OF_DEVICES = ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""Lists of devices: none has a name with a quotation mark, so NCCL uses none."""

_OF_LAUNCHERS = frozenset({"launch", "slurm", "mpi", "none"})
"""Owners whose variables describe the job: `launch.*` judges them by what they say of it."""

_REFUSED = frozenset({"torch", "gloo"})
"""Owners that end the process if they cannot read a value (torch c10d/Utils.hpp; gloo's device factory)."""

_REFUSED_EMPTY = ("TORCH_NCCL_", "TORCH_GLOO_", "TORCH_DISTRIBUTED_DEBUG", "GLOO_DEVICE_TRANSPORT")
"""What they read, in whole or by their beginning: an empty text is as bad as a wrong one (torch c10d/Utils.hpp)."""

_NUMBER = r"\s*[+-]?(?:0[xX][0-9a-fA-F]{1,16}|[0-9]{1,19})"
_NO_NUMBER = "not a number"
_SIZE_ENDS = frozenset({"b", *(prefix + end for prefix in "kmgt" for end in ("", "b", "i", "ib"))})


@check(
    group=VALUE_GROUP,
    bad=lambda: [(setting("TORCH_DISTRIBUTED_DEBUG", ""),)],
    good=lambda: [(PLAIN,)],
    required=True,
)
def unknown_text(settings: Settings) -> Iterator[Finding]:
    """A variable has a value that its library does not recognise.

    Right: Every variable has a value that its library knows.
    Why: NCCL silently ignores an unknown word, so NCCL_P2P_LEVEL=nvl has no effect. Since 2.30.7 one unknown name in
    NCCL_DEBUG_SUBSYS discards the whole list. torch and gloo end the process instead, even for an empty value. A shell
    removes quotation marks, but docker's --env-file, a compose list and nccl.conf keep them.
    Fix: use one of the values that the finding lists.
    """
    for entry in settings.effective.values():
        parameter = table().get(entry.name)
        if parameter is None or not parameter.is_read or parameter.owner in _OF_LAUNCHERS:
            continue
        if not entry.value and (entry.value is None or not entry.name.startswith(_REFUSED_EMPTY)):
            continue
        problem = unknown(entry.value, parameter)
        if {entry.value[:1], entry.value[-1:]} & {*_MARKS}:
            message = f"is {entry.value!r}: the quotation marks are part of the value, which makes it invalid"
            yield (jobs_fail if parameter.name in _OF_DEVICES else jobs_warn)(entry.name, message, as_evidence(entry))
        elif problem:
            yield _finding(entry, parameter, problem)


def unknown(text: str, parameter: Parameter) -> str:
    """Return what is wrong with `text` as a value of `parameter`; empty: nothing, or what is right is not known."""
    if parameter.words:
        return _unknown_word(text, parameter)
    numbered = parameter.type in ("bool", "int", "size") or (parameter.type == "enum" and parameter.low is not None)
    if parameter.owner == "nccl" or not numbered:
        return ""
    number = re.match(_NUMBER, text)
    if parameter.type == "bool" and (intent(text) is not None or (number and parameter.low is None)):
        return ""
    if number is None:
        return _NO_NUMBER
    if parameter.type == "size" and (unit := text[number.end() :].strip(" .0123456789").lower()):
        return "" if unit in _SIZE_ENDS else f"{unit!r} is not a unit of size"
    return _range_complaint(read_int(text, 0).value, parameter)


def _unknown_word(text: str, parameter: Parameter) -> str:
    words = {word.upper() if parameter.any_case else word for word in parameter.words}
    pieces = re.split("[,|]", text.removeprefix("^")) if parameter.type == "list" else [text]
    if parameter.owner == "ucx":  # "\\ud:aux": only this transport, and only to help another
        pieces = [piece.strip().removeprefix("\\").partition(":")[0] for piece in pieces]
    strange = [piece for piece in pieces if (piece.upper() if parameter.any_case else piece) not in words]
    if not strange:
        return ""
    number = re.fullmatch(_NUMBER, text)
    if number and (parameter.low is not None or parameter.type == "int"):
        return _range_complaint(int(text, 0) if text.strip("+- ")[:2].lower() == "0x" else int(text), parameter)
    return f"{', '.join(strange[:3]) or 'an empty value'} is not one of {', '.join(parameter.words)}"


def _range_complaint(value: int, parameter: Parameter) -> str:
    low, high = parameter.low, parameter.high
    if (low is None or value >= low) and (high is None or value <= high):
        return ""
    return f"outside {'' if low is None else low}..{'' if high is None else high}"


def _finding(entry: Setting, parameter: Parameter, problem: str) -> Finding:
    """Return a refusal if the process ends with it; a note if a plugin may know more words than our table."""
    message, shown = f"is {entry.value!r}: {problem} ({parameter.source})", as_evidence(entry)
    if parameter.owner in _REFUSED and (parameter.words or problem == _NO_NUMBER):
        return jobs_fail(entry.name, f"{message}; {parameter.owner} rejects it and ends the process", shown)
    level = entry.name == "NCCL_DEBUG_SUBSYS" and not unknown(_strange(problem), table()["NCCL_DEBUG"])
    if level:
        message = f"is {entry.value!r}: {_strange(problem)} is a level of NCCL_DEBUG, not a subsystem"
    if level or (parameter.words and parameter.owner not in ("nccl", "nvshmem", "ucx", *_REFUSED)):
        return jobs_note(entry.name, message, shown)
    return jobs_warn(entry.name, message, shown)


def _strange(problem: str) -> str:
    return problem.partition(" is not one of ")[0]


_DEBUGGING = {
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "before every collective gloo compares its arguments on all ranks"),
    "NCCL_CHECK_MODE": ("DEBUG_GLOBAL", "every call compares its arguments on all ranks"),
    "CUDA_LAUNCH_BLOCKING": ("1", "the host waits for every kernel, so nothing overlaps"),
    "FI_LOG_LEVEL": ("DEBUG", "libfabric writes lines for every call"),
    "UCX_LOG_LEVEL": ("DEBUG", "UCX writes lines for every call"),
}


@check(
    group=DEBUG_GROUP,
    slows=True,
    bad=lambda: [(setting("CUDA_LAUNCH_BLOCKING", "1"),)],
    good=lambda: [(having(CUDA_LAUNCH_BLOCKING="0"),)],
)
def debugging(settings: Settings) -> Iterator[Finding]:
    """A debugging setting slows every collective.

    Right: No debugging setting slows collectives.
    Why: guides recommend TORCH_DISTRIBUTED_DEBUG=DETAIL for debugging hangs, and it then remains in job scripts. With
    it an all_reduce of 8 bytes took five times as long (measured with gloo, torch 2.13).
    Fix: unset it once the fault is found; TORCH_DISTRIBUTED_DEBUG=INFO costs nothing per call.
    """
    for name, (value, cost) in _DEBUGGING.items():
        if (settings.get(name) or "").upper() == value:
            yield jobs_warn(name, f"is {settings.get(name)}: {cost}", evidence(settings, name))


THREE = setting("NCCL_IB_GID_INDEX", "3")
ANY: Every[Software | Absent] = Every({})
ROCE = fabric(roce("mlx5_0", *USUAL), roce("mlx5_1", *USUAL))
TURNED = fabric(roce("mlx5_0", (LINK_LOCAL, V1), (LINK_LOCAL, V2), (PRIVATE, V2), (PRIVATE, V1)))


@applies
def roce_fleet(job: Job, fabrics: Every[Fabric]) -> bool:
    """to jobs on GPUs, if several nodes have RoCE ports."""
    ports = [any(p.link_layer == "Ethernet" for p in each.ports) for _, each in fabrics.items()]
    return job.backend == "nccl" and sum(ports) > 1


@check(
    group=GID_GROUP,
    bad=lambda: [(Every({"n0": ROCE, "n1": ROCE, "n2": TURNED}), Every(dict.fromkeys(("n0", "n1", "n2"), THREE)), ANY)],
    good=lambda: [(Every({"n0": ROCE, "n1": ROCE}), Every(dict.fromkeys(("n0", "n1"), THREE)), ANY)],
    applies=roce_fleet,
)
def gid_uniform(
    fabrics: Every[Fabric], settings: Every[Settings], software: Every[Software | Absent]
) -> Iterator[Finding]:
    """The GIDs that NCCL uses differ between nodes in type or address family.

    Right: The GIDs that NCCL uses have one type and address family on all nodes.
    Why: RoCE v1 and v2, and IPv4 and IPv6, use different packets, so two ends that differ cannot connect. One GID index
    for all nodes works only if all GID tables have the same order, and that order depends on when the interfaces got
    their addresses.
    Fix: with NCCL 2.21 or newer, unset NCCL_IB_GID_INDEX. Otherwise set the right index for each node in its nccl.conf.
    """
    values: dict[str, frozenset[str]] = {}
    for node, found in fabrics.items():
        known = settings.by_node.get(node, PLAIN)
        if types := _types(found, known, software.by_node.get(node, Absent("not asked"))):
            values[node] = types
    entry = next((s for _, s in settings.items() if s.get("NCCL_IB_GID_INDEX")), PLAIN)
    given = evidence(entry, "NCCL_IB_GID_INDEX")
    more = {"tell": fail, **(JOB if given else IMAGE)}
    more["evidence"] = given or "NCCL's search in /sys/class/infiniband/*/ports/*/gids"
    yield from unlike(vote(values), lambda types: f"GIDs of {' and '.join(sorted(types))}", **more)


def _types(fabric: Fabric, settings: Settings, software: Software | Absent) -> frozenset[str]:
    """Return version and family of the GIDs that NCCL takes here; of empty ones another check speaks."""
    version = loaded(software)
    wanted = wish(settings, version)
    ports = [port for port in select_by(fabric, settings, version).taken if port.link_layer == "Ethernet"]
    picks = [found.gid for port in ports if (found := pick(port, wanted, version)) and found.gid]
    words = {"inet": "IPv4", "inet6": "IPv6"}
    return frozenset(
        f"RoCE v{roce_version(gid)} over {words[family(gid.address)]}" for gid in picks if roce_version(gid) > 0
    )
