"""The process environment, limited to the variables that the host's allow-list passes (docs/threat-model.md)."""

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
"""Variables that a measuring run sets before torch creates a group.

They keep torch's own threads from ending a rank that has yet to report, or that is not at fault (ProcessGroupNCCL.cpp:
Watchdog::run, HeartbeatMonitor::runLoop). A torch that does not know a name ignores it.
"""
EVENTS: dict[str, str] = {"TORCH_NCCL_CUDA_EVENT_CACHE": "0"}
"""The same for torch 2.5 and 2.6 only, which cache CUDA events per thread.

Once the thread that made a call has exited, the end of the call aborts the process (std::system_error, or an assertion
of pthread_mutex_lock). Every call that has a deadline runs in its own thread. 2.7 keeps events as long as they are
used.
"""
RECORDING: Mapping[str, str] = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
"""Default size of the flight recorder, in calls; the user's value wins. torch sets it itself since 2.11; before, it
records nothing. From 2.8 on, TORCH_FR_BUFFER_SIZE takes precedence.
"""


def release_settings(torch: str) -> dict[str, str]:
    """Return the variables that a release of torch needs in addition to MEASURING."""
    return EVENTS if torch.startswith(("2.5.", "2.6.")) else {}


def measuring_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a measuring process, based on the one it was started with."""
    return {**RECORDING, **variables, **MEASURING}


class Environment(Struct, frozen=True):
    """Variables by name. None: the name may be recorded, but not the value."""

    variables: Mapping[str, str | None] = field(default_factory=dict)

    def get(self, name: str) -> str | None:
        """Return the value, or None if it is unset or withheld."""
        return self.variables.get(name)


def parse(text: str) -> Environment:
    """Parse the host's answer: one JSON object of name to value or null. Raises ParseError."""
    try:
        variables = json.loads(text)
    except ValueError:
        raise ParseError(f"environment: not JSON: {text[:80]!r}") from None
    if not isinstance(variables, dict) or not all(isinstance(v, str | None) for v in variables.values()):
        raise ParseError(f"environment: not an object of texts: {text[:80]!r}")
    return Environment(variables)


@collector
def environment(host: Host) -> Environment:
    """Read this process's variables that may be recorded."""
    return parse(host.ask("env"))
