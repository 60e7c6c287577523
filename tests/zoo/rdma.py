"""RDMA devices below /sys/class/infiniband, and their nodes below /dev/infiniband.

Shapes: the guest captured for real beside these (soft-RoCE); the kernel's drivers/infiniband/core/sysfs.c; names of
the counters: drivers/infiniband/hw/mlx5/counters.c and core/sysfs.c. EFA: an ibv_devinfo from a p4d pod (rdmap16s27:
zero GUIDs, firmware 0.0.0.0); its link layer is "Unknown" to core/sysfs.c. Peer memory: nvidia-peermem.c of
NVIDIA/open-gpu-kernel-modules, and Mellanox/nv_peer_memory.
"""

from ipaddress import IPv6Address

from zoo.answers import Answers
from zoo.description import Machine, Nic
from zoo.pci import functions

ROOT = "/sys/class/infiniband"
_COUNTERS = (
    "excessive_buffer_overrun_errors link_downed link_error_recovery local_link_integrity_errors "
    "port_rcv_constraint_errors port_rcv_data port_rcv_errors port_rcv_packets port_rcv_remote_physical_errors "
    "port_rcv_switch_relay_errors port_xmit_constraint_errors port_xmit_data port_xmit_discards port_xmit_packets "
    "port_xmit_wait symbol_error VL15_dropped"
)
_HW_COUNTERS = (
    "duplicate_request implied_nak_seq_err local_ack_timeout_err out_of_buffer out_of_sequence packet_seq_err "
    "req_cqe_error req_cqe_flush_error req_remote_access_errors req_remote_invalid_request resp_cqe_error "
    "resp_cqe_flush_error resp_local_length_error resp_remote_access_errors rnr_nak_retry_err rx_atomic_requests "
    "rx_read_requests rx_write_requests"
)
_ROCE_COUNTERS = "np_cnp_sent np_ecn_marked_roce_packets roce_adp_retrans roce_slow_restart rp_cnp_handled"
_TRAFFIC = ("port_rcv_data", "port_rcv_packets", "port_xmit_data", "port_xmit_packets")


def describe(machine: Machine, here: Answers) -> None:
    """Every port, active."""
    cards = [nic for nic in machine.nics if nic.rdma]
    if not cards:
        return
    found = functions(machine)
    here.write("/sys/class/infiniband_verbs/abi_version", "6")
    here.write("/dev/infiniband/rdma_cm", "")
    for number, nic in enumerate(cards):
        here.write(f"/sys/class/infiniband_verbs/uverbs{number}/ibdev", nic.rdma)
        here.write(f"/dev/infiniband/uverbs{number}", "")
        here.link(f"{ROOT}/{nic.rdma}/device", f"../../../{found[nic.place].address}")
        _device(here, nic, number)
        _port(here, nic, number)
    if machine.peer_memory:
        _peer_memory(machine, here)


def _peer_memory(machine: Machine, here: Answers) -> None:
    """Whose client the module is to MLNX_OFED: nv_peer_mem of old, and nvidia_peermem, which came with driver 470."""
    driver = machine.software.driver
    comes_along = int(driver.partition(".")[0]) >= 470
    for client in ("nv_mem", "nv_mem_nc") if comes_along else ("nv_mem",):
        here.write(f"/sys/kernel/mm/memory_peers/{client}/version", driver if comes_along else "1.1-0")
    if comes_along:
        here.write("/sys/module/nvidia_peermem/version", driver)


def _efa(nic: Nic) -> bool:
    return nic.model.driver == "efa"


def guid(nic: Nic, number: int) -> str:
    """A GUID as sysfs writes it."""
    return "0000:0000:0000:0000" if _efa(nic) else _port_guid(number)


def _port_guid(number: int) -> str:
    return f"a088:c203:00e3:{0x1400 + number:04x}"


def _device(here: Answers, nic: Nic, number: int) -> None:
    folder = f"{ROOT}/{nic.rdma}"
    here.write(f"{folder}/node_guid", guid(nic, number))
    here.write(f"{folder}/fw_ver", nic.model.firmware)
    if not _efa(nic):
        here.write(f"{folder}/board_id", nic.model.board)
        here.write(f"{folder}/hca_type", nic.model.hca)


def _port(here: Answers, nic: Nic, number: int) -> None:
    folder, infiniband = f"{ROOT}/{nic.rdma}/ports/1", nic.layer == "InfiniBand"
    for name, text in {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": nic.rate,
        "link_layer": nic.layer,
        "lid": f"{0x2A + number:#x}" if infiniband else "0x0",
        "sm_lid": "0x1" if infiniband else "0x0",
        "pkeys/0": "0xffff",
    }.items():
        here.write(f"{folder}/{name}", text)
    _gids(here, nic, number, folder)
    if _efa(nic):
        for name in ("rx_bytes", "rx_drops", "rx_pkts", "tx_bytes", "tx_pkts"):
            here.write(f"{folder}/hw_counters/{name}", "0")
        here.write(f"{folder}/hw_counters/lifespan", "12")
        return
    for name in _COUNTERS.split():
        here.write(f"{folder}/counters/{name}", "81234567890" if name in _TRAFFIC else "0")
    for name in f"{_HW_COUNTERS} {'' if infiniband else _ROCE_COUNTERS}".split():
        here.write(f"{folder}/hw_counters/{name}", "0")
    here.write(f"{folder}/hw_counters/lifespan", "10")


def _gids(here: Answers, nic: Nic, number: int, folder: str) -> None:
    """InfiniBand: one, of the default subnet. RoCE: its interface's addresses, each as version 1 and 2. EFA: one."""
    link_local = f"fe80:0000:0000:0000:{_port_guid(number)}"
    table = [(link_local, "IB/RoCE v1")]
    if nic.layer == "Ethernet":
        address = IPv6Address(f"::ffff:{nic.address.partition('/')[0]}").packed.hex(":", -2)
        table = [(gid, kind) for gid in (link_local, address) for kind in ("IB/RoCE v1", "RoCE v2")]
    for index, (gid, kind) in enumerate(table):
        here.write(f"{folder}/gids/{index}", gid)
        here.write(f"{folder}/gid_attrs/types/{index}", kind)
        if nic.layer == "Ethernet":
            here.write(f"{folder}/gid_attrs/ndevs/{index}", nic.netdev)
