"""What is learned of a machine, beyond the kept values of made-up machines: any text, the kernel's log, placement."""

import grp
import json
import pwd
import re
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import zoo
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe import api
from ncclprobe.engine.collect import recordable
from ncclprobe.engine.inventory import areas
from ncclprobe.facts import data_paths, environment, nvidia_smi, nvml, placement, reach
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.machine import Dmi, Machine
from ncclprobe.facts.names import comm_id_host
from ncclprobe.facts.placement import CLOUD_INIT, LABELS, LEVEL_OF_LABEL, Placement
from ncclprobe.facts.run import samples
from ncclprobe.host import user_limits
from ncclprobe.host.live import LiveHost
from ncclprobe.model.errors import HostError, Missing, ParseError
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.report import PlacementLevel
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.nccl import parameters
from ncclprobe.report import text
from tests.each_row import each_row
from tests.facts.made_up import learn
from tests.facts.made_up_devices import HEALTHY, xml
from tests.facts.made_up_run import CASES, facts
from tests.facts.made_up_texts import CALLS

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


def test_every_fact_of_a_run_has_a_row() -> None:
    produced = {each.produces.__name__ for each in discover("ncclprobe.facts", Collector, {"run"})}
    assert {name for samples in CASES if samples for name, _ in facts(*samples)} | {"Ending"} == produced


def test_what_msgspec_refuses_is_a_refusal_before_0_21_as_well_where_it_is_no_value_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OlderError(Exception):
        pass

    def convert(value: dict[str, list[str]], kind: type, **_: bool) -> data_paths.AskedPaths:
        if kind is not data_paths.AskedPaths:
            raise OlderError("no")
        return data_paths.AskedPaths(tuple(value["paths"]))

    monkeypatch.setattr(msgspec, "ValidationError", OlderError)
    monkeypatch.setattr(msgspec, "convert", convert)
    own = {("sample", "reach"): {}, ("sample", "asked"): [{}], ("sample", "asked_paths"): {"paths": ["/a"]},
           ("data", "stat", "/a"): {}}  # fmt: skip
    (path,) = learn(data_paths.data_paths, own).rows
    said = [each.why for each in (learn(reach.reach, own), learn(samples.asked, own), path.look)]
    unread = "not understood (please report it): ParseError: sample"
    assert said == [f"{unread} reach: no", f"{unread} asked: no", "Look: no"]


def test_no_thread_of_torchs_may_end_a_rank_that_measures_and_its_calls_are_recorded() -> None:
    by_torchrun = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCH_NCCL_TRACE_BUFFER_SIZE": "9", "PATH": "/bin"}
    assert environment.measuring_environment(by_torchrun) == {
        **dict.fromkeys(environment.MEASURING, "0"), "TORCH_NCCL_TRACE_BUFFER_SIZE": "9", "PATH": "/bin",
    }  # fmt: skip
    assert environment.measuring_environment({})["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    names = (*environment.MEASURING, *environment.EVENTS, *environment.RECORDING)
    assert {parameters.table()[name].owner for name in names} == {"torch"}


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
    other += f"{uid} - k 1\n@{gid} - l 2\n@777777: - m 3\n"
    (tmp_path / "limits.d" / "10.conf").write_text("* soft nproc 6\n")
    monkeypatch.setattr(user_limits.os, "getgrouplist", lambda name, group: [group, 777777])
    (tmp_path / "limits.d" / "20.conf").write_text(f"{other}{spans}* hard nproc 7 # all # of them\n")
    assert Path("/etc/security") == user_limits.FOLDER
    monkeypatch.setattr(user_limits, "FOLDER", tmp_path)
    said = user_limits.lines_of(str(uid))
    assert [row[1:] for row in json.loads(said)] == [
        [2, "soft", "nofile", "2"], [0, "soft", "nproc", "6"], [1, "-", "nofile", "4"], [1, "-", "m", "3"],
        [2, "-", "a", "1"], [2, "-", "b", "2"],
        [2, "-", "c", "3"], [1, "-", "d", "4"], [0, "hard", "nproc", "7"],
    ]  # fmt: skip
    assert json.loads(said)[2][0] == f"{tmp_path}/limits.d/20.conf:1"
    (tmp_path / "limits.conf").unlink()
    assert len(json.loads(user_limits.lines_of(str(uid)))) == len(json.loads(said)) - 1
    assert [row[1:] for row in json.loads(user_limits.lines_of("0"))] == [[1, "-", "m", "3"]]  # no wildcard
    assert f'"{me.pw_name}"' not in said
    for nobody in ("4294967000", "x", "9" * 40):
        with pytest.raises(Missing):
            user_limits.lines_of(nobody)


def test_the_report_says_where_a_node_stands_and_what_says_so() -> None:
    report = api.doctor([str(zoo.CAPTURES / "aws-p4d.jsonl")])
    levels = report.environment["aws-p4d"].placement
    assert [(each.kind, each.name) for each in levels] == [("region", "us-east-1"), ("zone", "use1-az6")]
    assert f"zone: use1-az6 ({CLOUD_INIT})" in text.render(report, verbose=True)
    assert api.doctor([str(zoo.CAPTURES / "dgx-a100.jsonl")]).environment["dgx-a100"].placement == ()
    assert {"NCCLPROBE_PLACEMENT", "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN"} <= recordable()


CLOUD = "topology.kubernetes.io", "cloud.google.com/gce-topology", "topology.k8s.aws/network-node", "ds.meta_data"
PLACES = [
    ("region", f"{CLOUD[0]}/region"), ("zone", f"{CLOUD[0]}/zone"), ("block", f"{CLOUD[1]}-block"),
    ("subblock", f"{CLOUD[1]}-subblock"), ("physical host", f"{CLOUD[1]}-host"), ("region", "v1.region"),
    *(("network node", f"{CLOUD[2]}-layer-{n}") for n in (1, 2, 3)), ("zone", f"{CLOUD[3]}.imds.compute.zone"),
    ("zone", f"{CLOUD[3]}.placement.availability-zone-id"), ("zone", "v1.availability_zone"),
    ("placement group", f"{CLOUD[3]}.imds.compute.placementGroupId"),
        ("physical host", f"{CLOUD[3]}.placement.host-id"),
    ("placement group", f"{CLOUD[3]}.placement.group-name")]  # fmt: skip


@each_row("level, key", PLACES)
def test_each_key_of_a_cloud_and_of_a_pod_is_a_level(level: str, key: str) -> None:
    labels = ("lines", LABELS, f"^({'|'.join(map(re.escape, LEVEL_OF_LABEL))})=")
    known = [Environment({"KUBERNETES_SERVICE_HOST": "10.0.0.1"} if "/" in key else {}), Machine(Dmi(), "aws")]
    found = learn(placement.placement, {placement.QUESTION: {key: "x"}, labels: f'{key}="x"\n'}, known)
    assert [(each.kind, each.name) for each in found.levels] == [(level, "x")]


@each_row(("zones", "line"), [("ab", "2 of 2 · 2 zones · leaf switch s1"), ("aa", "2 of 2 · zone a · leaf switch s1")])
def test_zones_and_switches_of_several_nodes_are_counted(zones: str, line: str) -> None:
    switch = PlacementLevel("leaf switch", "s1", "")
    nodes = [Placement((PlacementLevel("zone", zone, ""), switch)) for zone in zones]
    found = areas([Snapshot(f"n{n}", {Placement: each}) for n, each in enumerate(nodes)], (), Job("nccl"), 2)
    assert found[0].values == line
