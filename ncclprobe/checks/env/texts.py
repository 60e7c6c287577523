"""Texts where a reader knows a few words, and numbers of readers other than NCCL: what is none of them is found here.

All of it comes from the table of variables; NCCL's own integers are in ``numbers``.
"""

import re
from collections.abc import Iterator

from ncclprobe.checks.env import as_evidence, evidence, jobs_fail, jobs_note, jobs_warn
from ncclprobe.checks.env.fixtures import PLAIN, having, setting
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.model.findings import Finding
from ncclprobe.model.registry import check
from ncclprobe.model.report import Setting
from ncclprobe.nccl.parameters import Parameter, table
from ncclprobe.nccl.values import intent, read_int

_OF_LAUNCHERS = frozenset({"launch", "slurm", "mpi", "none"})
"""Owners whose variables describe the job: `launch.*` judges them by what they say of it."""

_REFUSED = frozenset({"torch", "gloo"})
"""Owners that end the process where they cannot read a value (torch c10d/Utils.hpp; gloo's device factory)."""

_REFUSED_EMPTY = ("TORCH_NCCL_", "TORCH_GLOO_", "TORCH_DISTRIBUTED_DEBUG", "GLOO_DEVICE_TRANSPORT")
"""What they read, in whole or by their beginning: an empty text is as bad as a wrong one (torch c10d/Utils.hpp)."""

_NUMBER = re.compile(r"\s*[+-]?(?:0[xX][0-9a-fA-F]{1,16}|[0-9]{1,19})")
_NO_NUMBER = "no number"
_SIZE_ENDS = frozenset({"", "b", "k", "kb", "ki", "kib", "m", "mb", "mi", "mib", "g", "gb", "gi", "gib"})


@check(
    bad=lambda: [(setting("TORCH_DISTRIBUTED_DEBUG", ""),)],
    good=lambda: [(PLAIN,)],
    required=True,
)
def unknown_text(settings: Settings) -> Iterator[Finding]:
    """A variable has a value that its reader does not know.

    Right: Every variable has a value that its reader knows.
    Why: NCCL drops a word that it does not know without a message, so that NCCL_P2P_LEVEL=nvl is no level; from 2.30.7
    one unknown name in NCCL_DEBUG_SUBSYS discards the whole list. torch and gloo end the process instead, at an empty
    text, too.
    Fix: use one of the values that the message names.
    """
    for entry in settings.effective.values():
        parameter = table().get(entry.name)
        if parameter is None or not parameter.is_read or parameter.owner in _OF_LAUNCHERS:
            continue
        if not entry.value and (entry.value is None or not entry.name.startswith(_REFUSED_EMPTY)):
            continue
        problem = unknown(entry.value, parameter)
        if problem:
            yield _finding(entry, parameter, problem)


def unknown(text: str, parameter: Parameter) -> str:
    """Return what is wrong with `text` as a value of `parameter`; empty where nothing is, or it is not known what is
    right.
    """
    if parameter.words:
        return _unknown_word(text, parameter)
    numbered = parameter.type in ("bool", "int", "size") or (parameter.type == "enum" and parameter.low is not None)
    if parameter.owner == "nccl" or not numbered:
        return ""
    number = _NUMBER.match(text)
    if parameter.type == "bool" and (intent(text) is not None or (number and parameter.low is None)):
        return ""
    if number is None:
        return _NO_NUMBER
    if parameter.type == "size" and text[number.end() :].strip().lower() in _SIZE_ENDS - {""}:
        return ""
    return _out_of_range(read_int(text, 0).value, parameter)


def _unknown_word(text: str, parameter: Parameter) -> str:
    words = {word.upper() if parameter.any_case else word for word in parameter.words}
    pieces = text.removeprefix("^").split(",") if parameter.type == "list" else [text]
    strange = [piece for piece in pieces if (piece.upper() if parameter.any_case else piece) not in words]
    if not strange:
        return ""
    number = _NUMBER.fullmatch(text)
    if number and (parameter.low is not None or parameter.type == "int"):
        return _out_of_range(int(text, 0) if text.strip("+- ")[:2].lower() == "0x" else int(text), parameter)
    return f"{', '.join(strange[:3])} is none of {', '.join(parameter.words)}"


def _out_of_range(value: int, parameter: Parameter) -> str:
    low, high = parameter.low, parameter.high
    if (low is None or value >= low) and (high is None or value <= high):
        return ""
    return f"outside {'' if low is None else low}..{'' if high is None else high}"


def _finding(entry: Setting, parameter: Parameter, problem: str) -> Finding:
    """Return a refusal where the process ends with it; a note where a plugin may know more words than our table."""
    message, shown = f"is {entry.value!r}: {problem} ({parameter.source})", as_evidence(entry)
    if parameter.owner in _REFUSED and (parameter.words or problem == _NO_NUMBER):
        return jobs_fail(entry.name, f"{message}; {parameter.owner} refuses it and ends the process", shown)
    if parameter.words and parameter.owner not in ("nccl", *_REFUSED):
        return jobs_note(entry.name, message, shown)
    return jobs_warn(entry.name, message, shown)


_DEBUGGING = {
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "every collective is compared over all ranks by gloo first"),
    "NCCL_CHECK_MODE": ("DEBUG_GLOBAL", "every call compares its arguments over all ranks"),
    "CUDA_LAUNCH_BLOCKING": ("1", "every kernel is waited for, so that nothing overlaps"),
}


@check(
    slows=True,
    bad=lambda: [(setting("CUDA_LAUNCH_BLOCKING", "1"),)],
    good=lambda: [(having(CUDA_LAUNCH_BLOCKING="0"),)],
)
def debugging(settings: Settings) -> Iterator[Finding]:
    """A setting that is meant for debugging slows every collective.

    Right: No setting that is meant for debugging slows collectives.
    Why: guides advise TORCH_DISTRIBUTED_DEBUG=DETAIL to find a hang, and it stays in job scripts; an all_reduce of 8
    bytes took five times as long with it (measured with gloo, torch 2.13).
    Fix: unset it once the fault is found; TORCH_DISTRIBUTED_DEBUG=INFO costs nothing per call.
    """
    for name, (value, cost) in _DEBUGGING.items():
        if (settings.get(name) or "").upper() == value:
            yield jobs_warn(name, f"is {settings.get(name)}: {cost}", evidence(settings, name))
