"""The process environment, through the allow-list that the host applies (docs/threat-model.md)."""

import json
from collections.abc import Mapping

from ncclprobe.host import Host
from ncclprobe.model.errors import ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct, field

MEASURING: Mapping[str, str] = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # 2.2: the watchdog ends a process for an error of NCCL, or a late call
    "TORCH_NCCL_ENABLE_MONITORING": "0",  # 2.2: the monitor ends a process whose watchdog has ended or stands still
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",  # 2.2: an error on one rank has all of them write dumps, and end minutes later
    "TORCH_FR_DUMP_ON_TIMEOUT": "0",  # 2.15: its newer name, which counts first
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",  # 2.4: the watchdog ends a process for an error of CUDA, by SIGABRT
}
"""What a measuring run sets before torch makes a group, with the torch that brought it: no thread of torch's may end a
rank that has yet to report, or that is not at fault (ProcessGroupNCCL.cpp: Watchdog::run, HeartbeatMonitor::runLoop).
A torch that does not know a name does not read it.
"""
EVENTS: dict[str, str] = {"TORCH_NCCL_CUDA_EVENT_CACHE": "0"}
"""The same for torch 2.5 and 2.6 only, which keep each thread's events for its later calls. Once a thread that made a
call has ended, the end of the call ends the process (std::system_error, or an assertion of pthread_mutex_lock). A
thread of its own makes every call that has a deadline. 2.7 keeps them as long as they are used.
"""
RECORDING: Mapping[str, str] = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
"""What it sets if no user did: how many calls the flight recorder keeps. As torch does by itself since 2.11; before,
it records nothing. From 2.8 on TORCH_FR_BUFFER_SIZE counts first.
"""


def release_settings(torch: str) -> dict[str, str]:
    """Return what a measuring run sets with a release of torch beside MEASURING."""
    return EVENTS if torch.startswith(("2.5.", "2.6.")) else {}


def measuring_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that measures, from the one that it was started with."""
    return {**RECORDING, **variables, **MEASURING}


class Environment(Struct, frozen=True):
    """Variables by name. None: the name may be recorded, its value may not."""

    variables: Mapping[str, str | None] = field(default_factory=dict)

    def get(self, name: str) -> str | None:
        """Return the value, or None if it is unset or withheld."""
        return self.variables.get(name)


def parse(text: str) -> Environment:
    """Return the host's answer: one JSON object of name to value or null. Raises ParseError."""
    try:
        variables = json.loads(text)
    except ValueError:
        raise ParseError(f"environment: not JSON: {text[:80]!r}") from None
    if not isinstance(variables, dict) or not all(isinstance(v, str | None) for v in variables.values()):
        raise ParseError(f"environment: not an object of texts: {text[:80]!r}")
    return Environment(variables)


@collector
def environment(host: Host) -> Environment:
    """Read this process's variables, as far as they may be recorded."""
    return parse(host.ask("env"))
