"""Logs among pasted texts: of the kernel, the journal, systemctl and `kubectl describe`.

They show no device by themselves. `doctor` takes from them what `explain` finds in them.
"""

import json
import re
from collections.abc import Sequence

from ncclprobe.host import LOG, Question
from ncclprobe.model.errors import HostError

_KERNEL = re.compile(r"\[(?: {0,8}\d{1,8}\.\d{6}|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] \S")
_JOURNAL = re.compile(
    r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[\d:.+-]{8,24}) [\w.-]{1,80} "
    r"[\w./@-]{1,80}(?:\[\d{1,9}\])?: "
)
_UNIT = re.compile(r".{0,3}[\w@.-]{1,80}\.service - ")
_PART = 0.5
"""Share of a text that has to be log lines."""
_REFUSED = re.compile(
    r"Unable to determine the device handle for gpu|NVIDIA-SMI has failed because|Failed to initialize NVML|"
    r"No devices were found$",
    re.IGNORECASE,
)
"""nvidia-smi's errors if it cannot reach the driver, or a GPU does not answer."""
_WRAPPED = re.compile(r'\{"(?:log|stream|time)": ?"')
"""Line beginnings of docker's json-file logs."""


def log(lines: Sequence[str]) -> dict[Question, str | HostError]:
    """Return that a text is a log of the kernel, of the journal, of a unit or of a Kubernetes object, or that
    nvidia-smi fails in it.
    """
    written = [line for line in lines if line.strip()]
    dated = sum(bool(_KERNEL.match(line) or _JOURNAL.match(line)) for line in written)
    unit = any(map(_UNIT.match, written)) and any(line.strip().startswith("Active: ") for line in written)
    heads = {line.partition(":")[0] for line in written if not line.startswith(" ")}
    described = "Name" in heads and bool({"Namespace", "Labels"} & heads) and bool({"Conditions", "Events"} & heads)
    refused = any(map(_REFUSED.match, written))
    return {LOG: ""} if unit or described or refused or dated > _PART * len(written) else {}


def unwrapped(text: str) -> str:
    """Remove the JSON that docker puts around each line; return any other text unchanged."""
    lines = text.splitlines()
    if not lines or not all(_WRAPPED.match(line) for line in lines if line.strip()):
        return text
    try:
        return "".join(str(json.loads(line).get("log", "")) for line in lines if line.strip())
    except (ValueError, RecursionError):
        return text
