"""What people paste beside a log, and what kernels and transports say by their settings alone."""

from pathlib import Path
from typing import Any

import pytest

from tests.log.test_outcome import explained, first_cause, steps


def cause(folder: Path, text: str) -> dict[str, Any]:
    return first_cause(folder, {"train.log": text})


REFUSED = "n1:7:9 [0] misc/ibvwrap.cc:180 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory\n"


@pytest.mark.parametrize(
    "limit", ["$ ulimit -l\nunlimited\n", "max locked memory       (kbytes, -l) unlimited\n",
              "Max locked memory         unlimited            unlimited            bytes\n"]
)  # fmt: skip
def test_a_limit_that_is_shown_not_to_be_there_is_no_cause(tmp_path: Path, limit: str) -> None:
    found = cause(tmp_path, REFUSED + limit)
    assert (found["code"], found["confidence"]) == ("unknown", "unknown")
    assert "locked memory is not limited" in found["message"]


@pytest.mark.parametrize(
    "limit",
    ["", "$ ulimit -l\n64\n", "core file size (blocks, -c) unlimited\n",
     "Please set max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)\n"],
)  # fmt: skip
def test_a_limit_that_is_not_shown_stays_the_cause(tmp_path: Path, limit: str) -> None:
    assert cause(tmp_path, REFUSED + limit)["code"] == "memlock"


ROCE = "n1:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/{link} [RO]; OOB eth0:10.0.0.1<0>\n"
NO_ANSWER = (
    "n1:7:9 [0] transport/net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4> with error 12, opcode 0, "
    "len 0, vendor err 129 (Send) localGid {local} remoteGid {remote}\n"
)
BARE, ROUTED = {"local": "fe80::1:2", "remote": "fe80::1:3"}, {"local": "::ffff:10.0.0.1", "remote": "::ffff:10.0.0.2"}
INDEX = "n1:7:7 [0] NCCL INFO NCCL_IB_GID_INDEX set by environment to 0.\n"


def test_gids_without_an_address_are_why_roce_gets_no_answer(tmp_path: Path) -> None:
    found = cause(tmp_path, INDEX + ROCE.format(link="RoCE") + NO_ANSWER.format(**BARE))
    assert (found["code"], found["confidence"], found["blame"]) == ("ib-gid", "named", "job")
    assert "show_gids" in found["remedy"]


def test_by_nccls_two_halves_of_a_gid_it_is_known_as_well(tmp_path: Path) -> None:
    own = "n1:7:9 [0] NCCL INFO NET/IB: Dev 0 Port 1 qpn 9 mtu 3 GID 0 (80FE/F6999FC94888C024)\n"
    bare = NO_ANSWER.partition(" localGid")[0] + "\n"
    found = cause(tmp_path, ROCE.format(link="RoCE") + own + bare)
    assert (found["code"], found["confidence"]) == ("ib-gid", "narrowed")


@pytest.mark.parametrize(("link", "gids"), [("IB", BARE), ("RoCE", ROUTED)])
def test_infinibands_gids_and_those_of_an_address_are_not_to_blame(
    tmp_path: Path, link: str, gids: dict[str, str]
) -> None:
    assert cause(tmp_path, ROCE.format(link=link) + NO_ANSWER.format(**gids))["code"] != "ib-gid"


STARTED = "n{0}:7:7 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.{0}<0> [1]enP4s1:fe80::20d:{0}%enP4s1<0>\n"
TO_LINK_LOCAL = (
    "n2:7:9 [0] misc/socket.cc:4 NCCL WARN socketStartConnect: Connect to fe80::20d:1%enP4s1<4> failed : {}\n"
)


@pytest.mark.parametrize("error", ["Software caused connection abort", "Connection timed out", "No route to host"])
def test_a_link_local_address_of_ipv6_leads_to_no_other_host(tmp_path: Path, error: str) -> None:
    found = cause(tmp_path, STARTED.format(1) + STARTED.format(2) + TO_LINK_LOCAL.format(error))
    assert found["code"] == "iface-wrong-veth"
    assert "enP4s1" in found["message"]
    assert "NCCL_SOCKET_IFNAME" in found["remedy"]


def test_who_refuses_at_a_link_local_address_was_reached(tmp_path: Path) -> None:
    found = cause(tmp_path, STARTED.format(1) + STARTED.format(2) + TO_LINK_LOCAL.format("Connection refused"))
    assert found["code"] != "iface-wrong-veth"


EFA = (
    "n{host}:7:9 [0] ofi_process_cq:1039 NCCL WARN NET/OFI Request 0x7f completed with error. RC: 20. Error: unknown "
    "error. Completed length: 0, Request: {{ buffer_index: 255, dev: 1, size: 0, state: CREATED, direction: SEND }}\n"
)


def test_hosts_that_never_answer_each_other_are_kept_apart_by_a_security_group(tmp_path: Path) -> None:
    found = cause(tmp_path, EFA.format(host=1) + EFA.format(host=2))
    assert (found["code"], found["suspects"]) == ("efa-security-group", [])


@pytest.mark.parametrize("text", [EFA.format(host=1), steps(1, 9) + EFA.format(host=1) + EFA.format(host=2)])
def test_one_that_stops_answering_has_gone(tmp_path: Path, text: str) -> None:
    assert cause(tmp_path, text)["code"] == "rank-crashed"


XID = "Nov 28 02:11:01 n1 kernel: NVRM: Xid (PCI:0000:01:00): 145, RLW_RXPIPE {} XC0 i0 Link 13 (0x0 0x8)\n"


def test_what_the_driver_calls_not_fatal_ends_no_job(tmp_path: Path) -> None:
    assert explained(tmp_path, XID.format("Nonfatal") + steps(1, 9))["causes"] == []
    found = cause(tmp_path, XID.format("Fatal"))
    assert found["code"] == "gpu-hw-error"
    assert "GPU 0000:01:00" in found["message"]


def test_a_gpu_is_named_in_the_first_of_the_drivers_lines(tmp_path: Path) -> None:
    lines = ["NVRM: The NVIDIA GPU 0000:b3:00.0", "       NVRM: (PCI ID: 10de:26b5) installed in this system has",
             "       NVRM: fallen off the bus and is not responding to commands."]  # fmt: skip
    found = cause(tmp_path, "".join(f"Oct 25 06:04:1{n} n1 kernel: {line}\n" for n, line in enumerate(lines)))
    assert "GPU 0000:b3:00.0" in found["message"]
