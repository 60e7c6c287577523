"""Wrong values of NCCL's variables, and what the recorded logs of each release show of them."""

from typing import NamedTuple


class Value(NamedTuple):
    """A value as somebody writes it, and what nccl/parameters.csv says that NCCL makes of it.

    `refused`: init or the first call fails. `shows`: what the log of rank 0 says of it; with ! before it: does not
    say. `since`, `until`: the releases of which that is said, the last not among them.
    """

    name: str
    value: str
    shows: str
    refused: bool = False
    since: tuple[int, ...] = ()
    until: tuple[int, ...] = (9,)

    @property
    def case(self) -> str:
        """The name of its case: of the releases before and after a change there is one."""
        return f"value {self.name}={self.value}"


_NET = "Failed to initialize any NET plugin"
VALUES = (
    Value("NCCL_ALGO", "Rnig", 'Unrecognized element token "Rnig"', True, since=(2, 24)),
    Value("NCCL_ALGO", "Rnig", "!NCCL WARN", until=(2, 24)),
    Value("NCCL_ALGO", "CollnetChain", "o algorithm/protocol available", True, since=(2, 24)),
    Value("NCCL_PROTO", "LL256", 'Unrecognized element token "LL256"', True, since=(2, 24)),
    Value("NCCL_NTHREADS", "100", "Invalid NCCL_NTHREADS 100 (must be a multiple of 32)"),
    Value("NCCL_NTHREADS", "1024", "Invalid NCCL_NTHREADS 1024 (maximum 512)"),
    Value("NCCL_NTHREADS", "abc", "!NCCL WARN"),
    Value("NCCL_LL128_NTHREADS", "10000", "Invalid NCCL_LL128_NTHREADS 10000"),
    Value("NCCL_CGA_CLUSTER_SIZE", "99", "NCCL_CGA_CLUSTER_SIZE"),
    Value("NCCL_WORK_FIFO_BYTES", "1000", "NCCL_WORK_FIFO_BYTES=1000 is being ignored"),
    Value("NCCL_SOCKET_NTHREADS", "99", "NCCL_SOCKET_NTHREADS is greater than the maximum allowed"),
    Value("NCCL_SOCKET_FAMILY", "AF_INET7", "NCCL_SOCKET_FAMILY set by environment to AF_INET7"),
    Value("NCCL_SOCKET_IFNAME", "ib0", "no socket interface found", True),
    Value("NCCL_OOB_NET_IFNAME", "ib0", "!NCCL_OOB_NET_IFNAME"),
    Value("NCCL_NET", "nosuch", _NET, True, since=(2, 27)),
    Value("NCCL_NET", "nosuch", "Error: network nosuch not found", True, until=(2, 27)),
    Value("NCCL_NET", "socket", "Using network Socket"),
    Value("NCCL_IB_DISABLE", "true", "NCCL_IB_DISABLE set by environment to 0"),
    Value("NCCL_BUFFSIZE", "4M", "NCCL_BUFFSIZE set by environment to 4."),
    Value("NCCL_P2P_LEVEL", "NVLINK", "!NCCL WARN"),
    Value("NCCL_P2P_DISABLE", "yes", "via P2P/"),
    Value("NCCL_MAX_NCHANNELS", "0", "NCCL_MAX_NCHANNELS set by environment to 0"),
    Value("NCCL_MIN_NCHANNELS", "99", "NCCL_MIN_NCHANNELS set by environment to 99"),
    Value("NCCL_NET_FORCE_MERGE", "nosuch", "!NCCL WARN"),
    Value("NCCL_NET_MERGE_POLICY", "NONE", "NCCL_NET_MERGE_POLICY", since=(2, 30, 7)),
    Value("NCCL_SOCKET_MAGIC", "abc", "NCCL_SOCKET_MAGIC", since=(2, 30, 7)),
    Value("NCCL_RINGS", "0 1", "!NCCL_RINGS"),
    Value("NCCL_SHARED_BUFF_COUNT", "4", "!NCCL_SHARED_BUFF_COUNT"),
    Value("NCCL_COMM_ID", "here", "Invalid NCCL_COMM_ID", True),
    Value("NCCL_NET_PLUGIN", "nosuch", "Using network Socket"),
    Value("NCCL_TUNER_PLUGIN", "nosuch", "!NCCL WARN"),
    Value("NCCL_CONF_FILE", "/none/nccl.conf", "!NCCL WARN"),
    Value("NCCL_DEBUG", "INFOS", "!NCCL INFO"),
    Value("NCCL_DEBUG_FILE", "/none/log.%h", "NCCL INFO"),
    Value("NCCL_DEBUG_SUBSYS", "INIT,NONSUCH", "NCCL_NTHREADS set by environment", since=(2, 30, 7)),  # ENV, by default
    Value("NCCL_DEBUG_SUBSYS", "INIT,NONSUCH", "Init COMPLETE", until=(2, 30)),
    Value("NCCL_RAS_ADDR", "nonsense", "RAS", since=(2, 24, 3)),
    Value("NCCL_THREAD_THRESHOLDS", "1,2,3", "!NCCL WARN"),
    Value("NCCL_LAUNCH_MODE", "BOTH", "!NCCL WARN"),
)
"""A wrong value of each variable of which the table says what it does, where no network device or GPU is needed."""
