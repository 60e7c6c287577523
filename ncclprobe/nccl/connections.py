"""With what NCCL's InfiniBand transport connects two ports: queue pairs, their addresses and their patience.

Source: src/transport/net_ib/connect.cc:12-62 and 345-480 (v2.30.7: the parameters, ncclIbQpRtr, ncclIbQpRts),
init.cc:142 and 441 (relaxed ordering, adaptive routing). Each end reads its own variables for device, GID, P_Key index,
timeout and retry count. What an end sends has its own service level and traffic class: since 2.26 because the end that
sends states them for both (connect.cc:760 and 1615), and before because each end took its own. Both take the smaller
path MTU and the larger number of queue pairs (connect.cc:885 and 759).
"""

from collections.abc import Sequence

from ncclprobe.facts.infiniband import Port
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.software import Version, reaches
from ncclprobe.model.rails import RailPort
from ncclprobe.model.values import replace
from ncclprobe.nccl.gids import pick, wish
from ncclprobe.nccl.values import read_setting

_TIMEOUTS: tuple[tuple[Version, int], ...] = (((2, 23, 4), 20), ((2, 14, 3), 18))
_OLD_TIMEOUT = 14
MOST_QUEUE_PAIRS = 128  # NCCL_IB_MAX_QPS of src/transport/net_ib/common.h
_AUTOMATIC = -2


def rail_ports(taken: Sequence[Port], settings: Settings, version: Version | None) -> tuple[RailPort, ...]:
    """Return the choices of one end for each port that NCCL takes, in its order.

    The path MTU is left open: the smaller active MTU of the two ports, which only a connection knows. A GID table that
    could not be read leaves index 0. Ports that NCCL fuses into one device (NCCL_IB_MERGE_NICS) are listed one by one:
    queue pair n of a connection goes from port n to port n all the same.
    """
    wanted = wish(settings, version)

    def number(name: str, default: int) -> int:
        return read_setting(settings, name, default, version)

    common = RailPort(
        device="",
        pkey_index=number("NCCL_IB_PKEY", 0),
        service_level=_known(number("NCCL_IB_SL", -1)),
        traffic_class=_known(number("NCCL_IB_TC", -1)),
        timeout=number("NCCL_IB_TIMEOUT", default_timeout(version)),
        retry_count=number("NCCL_IB_RETRY_CNT", 7),
        queue_pairs=max(1, min(number("NCCL_IB_QPS_PER_CONNECTION", 1), MOST_QUEUE_PAIRS)),
        relaxed_ordering=number("NCCL_IB_PCI_RELAXED_ORDERING", 2) in (1, 2),
    )
    adaptive, found = number("NCCL_IB_ADAPTIVE_ROUTING", _AUTOMATIC), []
    for port in taken:
        chosen = pick(port, wanted, version)
        routed = port.link_layer == "InfiniBand" if adaptive == _AUTOMATIC else adaptive != 0
        index = chosen.index if chosen else 0
        found.append(replace(common, device=port.device, port=port.number, gid_index=index, adaptive_routing=routed))
    return tuple(found)


def default_timeout(version: Version | None) -> int:
    """Return what NCCL_IB_TIMEOUT is where nothing sets it."""
    return next((timeout for since, timeout in _TIMEOUTS if reaches(version, since)), _OLD_TIMEOUT)


def _known(value: int) -> int | None:
    return None if value < 0 else value
