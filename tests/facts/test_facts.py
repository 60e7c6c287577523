"""What is learned of a machine, beyond the kept values of made-up machines: any text, the kernel's log, placement."""

import grp
import json
import pwd
import re
from contextlib import suppress
from pathlib import Path

import pytest
import zoo
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe import api
from ncclprobe.engine.collect import recordable
from ncclprobe.engine.inventory import areas
from ncclprobe.facts import environment, nvidia_smi, nvml
from ncclprobe.facts.kernel_log import WANTED, events
from ncclprobe.facts.names import comm_id_host
from ncclprobe.facts.placement import CLOUD_INIT, Placement
from ncclprobe.host import user_limits
from ncclprobe.host.live import LiveHost
from ncclprobe.model.errors import HostError, Missing, ParseError
from ncclprobe.model.report import PlacementLevel
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.nccl import parameters
from ncclprobe.report import text
from tests.each_row import each_row
from tests.facts.made_up import NVML, learn
from tests.facts.made_up_texts import CALLS, HEALTHY, xml

PARSERS = [each for each, rows in CALLS.items() if all(isinstance(row, str) for row in rows) and each != comm_id_host]


@given(st.sampled_from(PARSERS), st.data())
def test_any_text_is_understood_or_refused(parse: object, data: st.DataObject) -> None:
    rows = st.sampled_from(CALLS[parse])  # type: ignore[index]
    said = data.draw(st.text(max_size=40) | st.builds(lambda row, at, new: row[:at] + new + row[at + 1 :],
                                                      rows, st.integers(0, 60), st.text(max_size=3)))  # fmt: skip
    with suppress(ParseError, HostError):
        parse(said)  # type: ignore[operator]


@given(st.text(max_size=200), st.sampled_from(sorted(HEALTHY)))
def test_no_text_in_place_of_a_value_hides_the_gpus_of_nvidia_smi(said: str, name: str) -> None:
    plain = "".join(each for each in said if each.isprintable() and each not in "<>&")
    answers = {("nvml", "nvmlDeviceGetCount"): Missing("no"), nvidia_smi.ASK: xml(HEALTHY | {name: plain}),
               ("run", "nvidia-smi", "--version"): "CUDA Version : 12.8\n"}  # fmt: skip
    assert len(learn(nvml.nvml, answers).all) == 1


@given(st.lists(st.sets(st.integers(0, 63)), max_size=4))
def test_a_set_in_words_has_its_members(sets: list[set[int]]) -> None:
    words = [sum(1 << bit for bit in bits) for bits in sets]
    assert nvml.members(words) == tuple(64 * place + bit for place, bits in enumerate(sets) for bit in sorted(bits))


def test_too_many_gpus_are_refused() -> None:
    found = learn(nvml.nvml, NVML | {("nvml", "nvmlDeviceGetCount"): "100000"})
    assert (found.refused, "100000 GPUs" in found.why) == ("ParseError", True)


def test_no_thread_of_torchs_may_end_a_rank_that_measures_and_its_calls_are_recorded() -> None:
    by_torchrun = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCH_NCCL_TRACE_BUFFER_SIZE": "9", "PATH": "/bin"}
    assert environment.measuring_environment(by_torchrun) == {
        **dict.fromkeys(environment.MEASURING, "0"),
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "9",
        "PATH": "/bin",
    }
    assert environment.measuring_environment({})["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    names = (*environment.MEASURING, *environment.EVENTS, *environment.RECORDING)
    assert {parameters.table()[name].owner for name in names} == {"torch"}


@given(st.dictionaries(st.text(), st.none() | st.text()))
def test_an_environment_survives_its_recording(variables: dict[str, str | None]) -> None:
    assert environment.parse(json.dumps(variables)).variables == variables


def test_no_value_of_a_line_that_may_not_be_recorded_leaves_a_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "nccl.conf").write_text(
        "setenv NCCL_IB_HCA mlx5_0\nNCCL_DEBUG=INFO\n# NCCL_NET\n\nNCCL_NET: IB\nNCCL_NET=IB\nTOKEN=x\n#NCCL_NET=a\n"
    )
    said = LiveHost({"NCCL_NET"}, parameters.looks_like_ours).ask("conf", str(tmp_path / "nccl.conf"))
    assert said.split("\n") == [
        *("NCCL_IB_HCA", "NCCL_DEBUG=<value not recorded>", "", "", "NCCL_NET", "NCCL_NET=IB", "", "", "")
    ]


def test_the_lines_of_limits_conf_that_hold_for_a_user_are_answered_without_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = next(each for each in pwd.getpwall() if each.pw_uid)  # the wildcard is none of root's
    own, uid, gid = grp.getgrgid(me.pw_gid).gr_name, me.pw_uid, me.pw_gid
    (tmp_path / "limits.d").mkdir()
    (tmp_path / "limits.conf").write_text(f"# {me.pw_name} - nofile 1\n{me.pw_name} soft nofile 2\nother - nofile 3\n")
    spans = f"{uid}:{uid} - a 1\n{uid}: - b 2\n:{uid} - c 3\n@{gid}:{gid} - d 4\n{uid + 1}: - e 5\n:{uid + 1} - f 6\n"
    other = f"@{own} - nofile 4\n@no-such hard nofile 5\n{me.pw_name} -\nx:y - g 7\n: - h 8\n%{gid}: - i 9\n"
    (tmp_path / "limits.d" / "20.conf").write_text(f"{other}{spans}* hard nproc 7 # all\n")
    monkeypatch.setattr(user_limits, "FOLDER", tmp_path)
    said = user_limits.lines_of(str(uid))
    assert [row[1:] for row in json.loads(said)] == [
        [2, "soft", "nofile", "2"], [1, "-", "nofile", "4"], [2, "-", "a", "1"], [2, "-", "b", "2"],
        [2, "-", "c", "3"], [1, "-", "d", "4"], [0, "hard", "nproc", "7"],
    ]  # fmt: skip
    assert json.loads(said)[1][0] == f"{tmp_path}/limits.d/20.conf:1"
    assert f'"{me.pw_name}"' not in said
    for nobody in ("4294967000", "x", "9" * 40):
        with pytest.raises(Missing):
            user_limits.lines_of(nobody)


LINES = [
    ("NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus.", "xid 0000:44:00 79 None"),
    ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7, name=-, Contained", "xid 0000:01:00 94 None"),
    ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "xid 0000:03:00 14 None"),
    ("NVRM: Xid (PCI:0000:dc:00): 45, pid=9, Ch 00000001 caused by previous Xid 149", "xid 0000:dc:00 149 None"),
    ("NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)", "xid 0018:01:00 145 False"),
    ("NVRM: Xid (PCI:0000:0A:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6)", "xid 0000:0a:00 149 True"),
    ("NVRM: The NVIDIA GPU 0000:b3:00.0 NVRM: (PCI ID: 10de:26b5) has NVRM: fallen off the bus",
     "lost 0000:b3:00.0  None"),
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
    ("mlx5_core 0004:01:00.0: Port module event[error]: module 0, Cable error, Bus stuck",
     "mlx5 0004:01:00.0 cable None"),
    ("mlx5_core 0004:01:00.0: Detected insufficient power on the PCIe slot (27W).", "mlx5 0004:01:00.0 power None"),
    ("mlx5_core 0004:01:00.0: PCIe slot advertised sufficient power (75W).", ""),
    ("mlx5_core 0004:01:00.0: High temperature on sensors", "mlx5 0004:01:00.0 temperature None"),
    ("mlx5_core 0004:01:00.0: firmware version: 16.27.2048", ""),
    ("mlx5_core 0000:03:00.0: ACCESS_REG(0x805) timeout. Will cause a leak of a", "mlx5 0000:03:00.0 timeout None"),
    ("pcieport 0000:00:1d.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
     "aer 0000:00:1d.0 Corrected None"),
    ("nvidia 0000:0a:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer",
     "aer 0000:0a:00.0 Uncorrectable (Non-Fatal) None"),
    ("bnxt_en 0000:12:00.0 eth0: NIC Link is Down", "link eth0 down None"),
    ("ice 0000:17:00.0 eth2: NIC Link is up 100 Gbps Full Duplex", "link eth2 up None"),
    ("igb 0000:01:00.0 enp1s0: igb: enp1s0 NIC Link is Down", "link enp1s0 down None"),
    ("bond0: (slave eth0): link status definitely down, disabling slave", "link eth0 down None"),
    ("bond0: link status definitely up for interface eth1, 25000 Mbps", "link eth1 up None"),
    ("usb 1-1: link is broken", ""),
    ("python3[77]: segfault at 0", ""),
]  # fmt: skip


@each_row(("line", "expected"), LINES)
def test_a_line_of_the_kernel_means_what_its_driver_meant_and_is_asked_for(line: str, expected: str) -> None:
    found = [f"{e.kind} {e.device} {e.code} {e.fatal}" for e in events([(1.5, line)])]
    assert found == ([expected] if expected else [])
    assert re.search(WANTED, line) or not expected


def test_lines_of_users_programs_are_not_asked_for() -> None:
    assert not re.search(WANTED, "python3[77]: segfault at 0 ip 00007f")
    assert not re.search(WANTED, "Out of memory: Killed process 77 (python3)")


def test_the_report_says_where_a_node_stands_and_what_says_so() -> None:
    report = api.doctor([str(zoo.CAPTURES / "aws-p4d.jsonl")])
    levels = report.environment["aws-p4d"].placement
    assert [(each.kind, each.name) for each in levels] == [("region", "us-east-1"), ("zone", "use1-az6")]
    assert f"zone: use1-az6 ({CLOUD_INIT})" in text.render(report, verbose=True)
    assert api.doctor([str(zoo.CAPTURES / "dgx-a100.jsonl")]).environment["dgx-a100"].placement == ()
    assert {"NCCLPROBE_PLACEMENT", "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN"} <= recordable()


@each_row(("zones", "line"), [("ab", "2 of 2 · 2 zones · leaf switch s1"), ("aa", "2 of 2 · zone a · leaf switch s1")])
def test_zones_and_switches_of_several_nodes_are_counted(zones: str, line: str) -> None:
    switch = PlacementLevel("leaf switch", "s1", "")
    nodes = [Placement((PlacementLevel("zone", zone, ""), switch)) for zone in zones]
    found = areas([Snapshot(f"n{n}", {Placement: each}) for n, each in enumerate(nodes)], (), Job("nccl"), 2)
    assert found[0].values == line
