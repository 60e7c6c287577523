"""The kernel's log: which lines mean something, and what."""

import re
from typing import Any

from conftest import answers

from ncclprobe.engine.collect import collect
from ncclprobe.facts.kernel_log import WANTED, KernelLog, events, kernel_log
from ncclprobe.host import Question
from ncclprobe.model.errors import Denied
from ncclprobe.model.snapshot import Absent
from tests.each_row import each_row

LINES = [
    ("NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus.", "xid 0000:44:00 79 None"),
    ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7, name=-, Contained", "xid 0000:01:00 94 None"),
    ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "xid 0000:03:00 14 None"),
    ("NVRM: Xid (PCI:0000:dc:00): 45, pid=9, Ch 00000001 caused by previous Xid 149", "xid 0000:dc:00 149 None"),
    ("NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)", "xid 0018:01:00 145 False"),
    ("NVRM: Xid (PCI:0000:0A:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6)", "xid 0000:0a:00 149 True"),
    (
        "NVRM: The NVIDIA GPU 0000:b3:00.0 NVRM: (PCI ID: 10de:26b5) has NVRM: fallen off the bus",
        "lost 0000:b3:00.0  None",
    ),
    ("NVRM: fallen off the bus and is not responding to commands.", "lost   None"),
    ("nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Data {0x0000002b}", ""),
    ("nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion", "sxid 0000:04:00.0 22013 False"),
    ("nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Severity 0 Engine instance 44", ""),
    ("nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Fatal, Link 01 egress", "sxid 0000:84:00.0 12028 True"),
    ("mlx5_core 0000:d2:00.0: poll_health:825: device's health compromised - reached", "mlx5 0000:d2:00.0 health None"),
    ("mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN", "mlx5 0000:ab:00.0 link-down None"),
    ("mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link ACTIVE", "mlx5 0000:ab:00.0 link-up None"),
    ("mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link INIT", ""),
    ("mlx5_core 0000:04:00.0 ens1np0: Link down", "mlx5 0000:04:00.0 link-down None"),
    ("mlx5_core 0004:01:00.0: Port module event: module 0, Cable plugged", ""),
    ("mlx5_core 0004:01:00.0: Port module event: module 0, Cable unplugged", "mlx5 0004:01:00.0 cable None"),
    (
        "mlx5_core 0004:01:00.0: Port module event[error]: module 0, Cable error, Bus stuck",
        "mlx5 0004:01:00.0 cable None",
    ),
    ("mlx5_core 0004:01:00.0: Detected insufficient power on the PCIe slot (27W).", "mlx5 0004:01:00.0 power None"),
    ("mlx5_core 0004:01:00.0: PCIe slot advertised sufficient power (75W).", ""),
    ("mlx5_core 0004:01:00.0: firmware version: 16.27.2048", ""),
    ("mlx5_core 0000:03:00.0: ACCESS_REG(0x805) timeout. Will cause a leak of a", "mlx5 0000:03:00.0 timeout None"),
    (
        "pcieport 0000:00:1d.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
        "aer 0000:00:1d.0 Corrected None",
    ),
    (
        "nvidia 0000:0a:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer",
        "aer 0000:0a:00.0 Uncorrectable (Non-Fatal) None",
    ),
    ("bnxt_en 0000:12:00.0 eth0: NIC Link is Down", "link eth0 down None"),
    ("ice 0000:17:00.0 eth2: NIC Link is up 100 Gbps Full Duplex", "link eth2 up None"),
    ("igb 0000:01:00.0 enp1s0: igb: enp1s0 NIC Link is Down", "link enp1s0 down None"),
    ("bond0: (slave eth0): link status definitely down, disabling slave", "link eth0 down None"),
    ("bond0: link status definitely up for interface eth1, 25000 Mbps", "link eth1 up None"),
    ("usb 1-1: link is broken", ""),
    ("python3[77]: segfault at 0", ""),
]


@each_row(("line", "expected"), LINES)
def test_a_line_means_what_its_driver_meant(line: str, expected: str) -> None:
    found = [f"{e.kind} {e.device} {e.code} {e.fatal}" for e in events([(1.5, line)])]
    assert found == ([expected] if expected else [])


@each_row("line", [line for line, expected in LINES if expected])
def test_what_is_understood_is_asked_for(line: str) -> None:
    assert re.search(WANTED, line)


def test_lines_of_users_programs_are_not_asked_for() -> None:
    assert not re.search(WANTED, "python3[77]: segfault at 0 ip 00007f")
    assert not re.search(WANTED, "Out of memory: Killed process 77 (python3)")


ASK: Question = ("kernel_log", WANTED)
READABLE: dict[Question, Any] = {
    ASK: {"source": "/dev/kmsg", "lines": [[12.5, LINES[0][0]], [13.0, "mlx5_core x"]], "dropped": 0, "oldest_s": 3.5},
    ("read", "/proc/uptime"): "350.25 700.00\n",
}


def learned(said: dict[Question, Any]) -> Any:
    return collect(answers(said), [kernel_log])[KernelLog]


def test_a_log_knows_what_it_has_seen_and_since_when() -> None:
    seen = learned(READABLE)
    assert [(e.at_s, e.code) for e in seen.events] == [(12.5, "79")]
    assert (seen.uptime_s, seen.oldest_s, seen.dropped, seen.source) == (350.25, 3.5, 0, "/dev/kmsg")


def test_a_closed_log_is_not_a_clean_one() -> None:
    seen = learned(READABLE | {ASK: Denied("/dev/kmsg: permission denied")})
    assert isinstance(seen, Absent)
    assert seen.refused == "Denied"


@each_row("text", ["", "x", "12 13"])
def test_an_uptime_that_is_not_understood_is_refused(text: str) -> None:
    assert isinstance(learned(READABLE | {("read", "/proc/uptime"): text}), Absent)
