"""Whether nvidia-smi answers: the canary of a wedged driver."""

import re

from ncclprobe.errors import ParseError, TimedOut
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct


class Smi(Struct, frozen=True):
    """`gpus` is the number it lists; `wedged` says how it failed to come back, empty if it did."""

    gpus: int = 0
    wedged: str = ""


@collector
def nvidia_smi(host: Host) -> Smi:
    """Return ``nvidia-smi -L``. Not coming back is knowledge, not absence: the driver is wedged."""
    try:
        return Smi(gpus=count(host.ask("run", "nvidia-smi", "-L")))
    except TimedOut as error:
        return Smi(wedged=str(error))


def count(text: str) -> int:
    """Return the number of GPUs in ``nvidia-smi -L``. Raises ParseError where it lists none: it says so with an exit
    code.
    """
    listed = re.findall(r"^GPU \d+: ", text, re.MULTILINE)
    if not listed:
        raise ParseError(f"nvidia-smi -L: {text[:120]!r}")
    return len(listed)
