"""The failures that stage 2 records: what is done, to which rank, and which cause the records must lead to.

`cause` is the code that an explanation must come to, in the vocabulary of causes that reports use; empty for the job
that ends well, of which nothing may be said.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

RANKS = 3
VICTIM = 1
FAULT_STEP = 3
"""Steps before it end well; the victim does it in place of this step's all_reduce."""
STEPS = 6
TIMEOUT_S = 6.0
"""Of the process group: what torch's watchdog waits for one collective."""
LATE_S = TIMEOUT_S + 3.0
MASTER_PORT = 29500
"""Below Linux' ephemeral ports, so that these can be blocked without it."""
Network = Literal["", "master", "ephemeral"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure. `variables` are set on the victim, `everywhere` on all ranks; `network` says which ports are closed.

    `at_start`: the ranks never get as far as their first step. `unnoticed`: NCCL compares nothing, so that the job may
    also end well, with wrong data.
    """

    name: str
    cause: str
    does: str
    variables: Mapping[str, str] = field(default_factory=dict)
    everywhere: Mapping[str, str] = field(default_factory=dict)
    network: Network = ""
    at_start: bool = False
    unnoticed: bool = False


FAULTS: tuple[Fault, ...] = (
    Fault("healthy", "", "every rank makes every step and leaves"),
    Fault("sigkill", "rank-crashed", "rank 1 is killed by SIGKILL"),
    Fault("sigstop", "timeout-straggler", "rank 1 is stopped by SIGSTOP"),
    Fault("raised", "rank-crashed", "rank 1 raises a ValueError that nothing catches"),
    Fault("skipped", "collective-desync", "rank 1 leaves out one all_reduce"),
    Fault("other-op", "collective-desync", "rank 1 broadcasts where the others all_reduce"),
    Fault("other-size", "collective-desync", "rank 1 all_reduces half the elements", unnoticed=True),
    Fault("other-dtype", "collective-desync", "rank 1 all_reduces float64 where the others have float32",
          unnoticed=True),
    Fault("illegal-address", "rank-crashed", "a kernel of rank 1 writes where there is no memory"),
    Fault("out-of-memory", "oom", "rank 1 allocates more memory than there is"),
    Fault("late", "timeout-straggler", f"rank 1 comes {LATE_S:g} s late, after the others' {TIMEOUT_S:g} s"),
    Fault("bad-interface", "iface-missing", "no interface has the name that is set", at_start=True,
          everywhere={"NCCL_SOCKET_IFNAME": "nosuch0", "GLOO_SOCKET_IFNAME": "nosuch0"}),
    Fault("blocked-master-port", "port-blocked", "packets to MASTER_PORT are dropped", network="master", at_start=True),
    Fault("blocked-ports", "port-blocked", "what opens a connection to an ephemeral port is dropped",
          network="ephemeral", at_start=True),
    Fault("other-algorithm", "env-mismatch", "rank 1 may only use trees, the others rings",
          {"NCCL_ALGO": "Tree"}, everywhere={"NCCL_ALGO": "Ring"}),
    Fault("world-size", "world-size-mismatch", "rank 1 believes in one rank more",
          {"WORLD_SIZE": str(RANKS + 1)}, at_start=True),
)  # fmt: skip
BY_NAME: Mapping[str, Fault] = {fault.name: fault for fault in FAULTS}
