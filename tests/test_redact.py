"""Redaction: no original survives, every relation between originals does, and the verdicts are the same."""

import json
import re
from importlib import import_module
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from fake_site import ANSWERS, ENV, GIDS, KEY, ORIGINALS, capture
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.commands import COMMANDS, main
from ncclprobe.engine.collect import collect
from ncclprobe.engine.diagnose import MACHINE, every_check
from ncclprobe.engine.judge import judge
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.names import Names
from ncclprobe.facts.placement import Placement
from ncclprobe.facts.ports import Ports
from ncclprobe.facts.routes import Routes
from ncclprobe.host import Question
from ncclprobe.host.capture import load
from ncclprobe.model.causes import Moment, RankState
from ncclprobe.model.errors import Failed, Missing
from ncclprobe.model.findings import Evidence, Finding, Severity, Status, Verdict
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.report import NodeEnvironment, NodeRow, Report, Setting, Tool
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import replace
from ncclprobe.nccl.paths import layout
from ncclprobe.nccl.selection import choose
from ncclprobe.redact.pseudonyms import Pseudonyms
from ncclprobe.redact.redactor import Redactor
from ncclprobe.report import json as as_json
from tests.each_row import each_row, some

ZOO = [p for p in sorted((Path(__file__).parent / "captures").glob("*.jsonl")) if '"like"' not in p.read_text()]
answer = st.one_of(st.text(), st.from_regex(r"[0-9a-f:./\[\]{}\",GPU-]{0,60}"), st.sampled_from([str(v) for v in GIDS]))


def snapshot(text: str, folder: Path, name: str = "c") -> Snapshot:
    path = folder / f"{name}.jsonl"
    path.write_text(text, encoding="utf-8")
    host = load(path)
    return Snapshot(host.node, collect(host, discover("ncclprobe.facts", Collector)))


def facts(folder: Path, answers: dict[Question, Any] = ANSWERS) -> dict[type, Any]:
    return dict(snapshot(Redactor(KEY).capture(capture(answers)), folder).facts)


def assert_judged_alike(text: str, folder: Path) -> None:
    redactor = Redactor(KEY)
    redacted = redactor.capture(text)
    plain, hidden = snapshot(text, folder, "plain"), snapshot(redacted, folder, "hidden")
    assert hidden.node == redactor.text(plain.node)
    assert len({len(getattr(each.facts[Placement], "levels", ())) for each in (plain, hidden)}) == 1
    for kind, fact in plain.facts.items():
        assert isinstance(fact, Absent) == isinstance(hidden.facts[kind], Absent), kind
    both = (judge([seen], every_check(MACHINE), Job()) for seen in (plain, hidden))
    for before, after in zip(*both, strict=True):
        assert (before.id, before.status, before.required) == (after.id, after.status, after.required)
        assert [redactor.text(f.subject) for f in before.findings] == [f.subject for f in after.findings]
        assert [(f.severity, f.blame) for f in before.findings] == [(f.severity, f.blame) for f in after.findings]


def said(text: str, *asked: str) -> str:
    """The redacted answer to the first question that holds a word of `asked`."""
    rows = [json.loads(line) for line in Redactor(KEY).capture(text).splitlines()[1:]]
    return str(next(row["said"] for row in rows if {*asked} & {*row["ask"]}))


def test_no_original_survives_anywhere_in_a_capture_not_even_in_a_refusal() -> None:
    refused = {("resolve", "blade-018"): Failed("resolve blade-018: 10.20.255.53 says no")}
    text = Redactor(KEY).capture(capture(ANSWERS | refused))
    assert [original for original in some(ORIGINALS) if original in text] == []
    assert not re.search(r"blade-|10\.20\.255", text)
    assert '"refused": "Failed"' in text


def test_the_relations_between_addresses_guids_and_names_stay(tmp_path: Path) -> None:
    seen = facts(tmp_path)
    device = seen[Fabric].devices[0]
    gids = [gid.address for gid in device.ports[0].gids]
    mapped = gids[2].ipv4_mapped
    address = next(a for a in seen[Interfaces].addresses if a.name == "ib0")
    assert [gid.is_link_local for gid in gids] == [True, True, False, False]
    guid = said(capture(), "/sys/class/infiniband/mlx5_0/node_guid").strip()
    assert guid == gids[0].exploded[20:] == gids[3].exploded[20:]
    assert str(mapped) == address.address == seen[Names].entries(seen[Names].hosts[1].names[1])[0].address
    mac = next(r["address"] for r in json.loads(said(capture(), "net_if_addrs"))["ib0"] if r["family"] == 17)
    eui = bytes.fromhex(mac.replace(":", ""))
    assert bytes([eui[0] ^ 2, *eui[1:3], 0xFF, 0xFE, *eui[3:]]) == gids[1].packed[8:]
    assert seen[Ports].listeners[0].address == address.address
    assert seen[Ports].listeners[1].address == str(gids[2])
    assert ip_address(address.address) in ip_network(seen[Routes].main[0].destination)
    assert seen[Routes].main[0].destination == seen[Routes].policy[0].source == seen[Routes].tables[0].destination


RESOLVED = ("resolve", "blade-017.rack7.example.org")
BY_ADDRESS = ENV | {"NCCL_SOCKET_IFNAME": "ib0", "MASTER_ADDR": "10.20.0.7"}
KERNEL = {"node": "net", "hostname": "infiniband", "release": "6.8", "machine": "x86_64"}
PLANTED: dict[str, dict[Question, Any]] = {
    "nothing": {},
    "a name of its own": {RESOLVED: {"addresses": ["127.0.1.1"], "seconds": 0.1}},
    "no name": {RESOLVED: Failed("resolve blade-017.rack7.example.org: not known")},
    "an address": {("env",): BY_ADDRESS, ("resolve", "10.20.0.7"): Missing("x")},
    "a short login": {("env",): {"USER": "ib", "SLURM_JOB_ID": "1", "SLURM_NTASKS": "16", "SLURM_NNODES": "2"}},
    "a lost GPU": {("nvml", "nvmlDeviceGetName", 0): Failed("NVML nvmlDeviceGetName: GPU is lost")},
    "a host called as the kernel calls its files": {("uname",): KERNEL},
}
JUDGED = {
    **{name: capture(ANSWERS | each, "net" if "kernel" in name else "blade-017") for name, each in PLANTED.items()},
    "redacted before": Redactor(KEY).capture(capture()),
    **{path.stem: path.read_text(encoding="utf-8") for path in ZOO},
}


@each_row("text", JUDGED.values(), ids=JUDGED)
@pytest.mark.slow
@pytest.mark.every_time
def test_a_redacted_capture_is_judged_as_the_original(text: str, tmp_path: Path) -> None:
    assert_judged_alike(text, tmp_path)
    assert len(JUDGED) > 12


def test_a_file_of_the_kernel_keeps_its_name_though_a_host_has_it_and_what_was_redacted_changes_again() -> None:
    assert "/sys/class/infiniband/mlx5_0" in Redactor(KEY).capture(capture(ANSWERS | {("uname",): KERNEL}))
    once = Redactor(KEY).capture(capture())
    assert Redactor(KEY).capture(once) != once


def test_two_nodes_of_an_incident_agree_and_two_incidents_do_not() -> None:
    other = capture(ANSWERS | {("uname",): {"node": "blade-018", "hostname": "blade-018"}}, "blade-018")
    here, there = (json.loads(Redactor(KEY).capture(text).split("\n")[0])["node"] for text in (capture(), other))
    assert here != there
    assert here in Redactor(KEY).capture(other)  # as MASTER_ADDR
    assert here not in Redactor("another key").capture(capture())
    assert Redactor(KEY).capture(capture()).partition("\n")[2] == Redactor(KEY).capture(capture()).partition("\n")[2]


questions = st.sampled_from([*ANSWERS, ("bytes", "/x"), ("lines", "/proc/net/tcp6"), ("read", "/proc/net/ipv6_route")])
numbers = st.integers(-(1 << 63), 1 << 64)  # no machine answers with more digits; 32 of them would be a UUID's
shapes = st.recursive(
    st.none() | st.booleans() | numbers | answer, lambda x: st.lists(x) | st.dictionaries(st.text(), x)
)


@given(ask=questions, said=st.text() | answer | shapes.map(json.dumps))
def test_any_text_is_redacted_and_structured_answers_keep_their_shape(ask: Question, said: str) -> None:
    assert isinstance(Redactor(KEY).text(said) + Redactor(KEY).capture(said), str)
    row = json.loads(Redactor(KEY).capture(json.dumps({"ask": ask, "said": said})))
    assert skeleton(row["said"]) == skeleton(said)


def skeleton(text: str) -> object:
    """The types in JSON text, None where it has no structure."""

    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            return [shape(item) for item in value.values()]
        return [shape(item) for item in value] if isinstance(value, list) else type(value)

    try:
        return shape(json.loads(text)) if text.lstrip()[:1] in ("[", "{") else None
    except ValueError:
        return None


@each_row(
    "row",
    [
        '{"ask": ["read", "/a"], "said": "' + "[" * 5000 + '"}',
        '{"ask": ["read", "/a"], "said": "' + "[" * 400 + "]" * 400 + '"}', "[" * 5000, '{"a":' * 400 + "1" + "}" * 400,
    ],
)  # fmt: skip
def test_whatever_is_no_row_of_ours_is_redacted_without_a_crash(row: str) -> None:
    assert "10.20.0.7" not in Redactor(KEY).capture(row)


def report() -> Report:
    seen, text = (Evidence("/etc/hosts", 3, "10.20.0.7/16"),), "GID fe80::506b:4b03:c4:aaaa of blade-017"
    finding = Finding(Severity.FAIL, "mlx5_0:1", text, evidence=seen, nodes=("store1",))
    return Report(
        tool=Tool("ncclprobe", "0.1.0"), started="2026-11-21T02:17:08+00:00", duration_s=0.5,
        command="ncclprobe doctor blade-017.jsonl --json /home/alice/r.json", status=Status.FAIL, exit_code=4,
        nodes=(NodeRow("blade-017", 0, "blade-017.rack7.example.org", Status.FAIL),),
        missing_nodes=("node 1", "login3"), notes=("login3: not heard of",),
        checks=(Verdict("ib.gid", "blade-017", Status.FAIL, "A GID", findings=(finding,)),),
        coverage={"pass": 0, "fail": 1},
        environment={
            "blade-017": NodeEnvironment(
                {"nvidia-cudnn-cu12": "9.1.0.70"},
                tuple(Setting(name, value, "/nfs/alice/nccl.conf:3") for name, value in ENV.items()),
            )
        },
    )  # fmt: skip


def test_a_report_keeps_its_verdicts_numbers_and_schema_and_loses_its_names(tmp_path: Path) -> None:
    redacted = Redactor(KEY).report(report())
    text = as_json.render(redacted)
    for original in ORIGINALS:
        assert original not in text, original
    assert redacted.nodes[0].name == redacted.checks[0].node == next(iter(redacted.environment))
    assert redacted.nodes[0].hostname.startswith(f"{redacted.nodes[0].name}.")
    assert redacted.checks[0].findings[0].subject == "mlx5_0:1"
    assert redacted.environment[redacted.nodes[0].name].versions == {"nvidia-cudnn-cu12": "9.1.0.70"}
    assert (redacted.started, redacted.coverage, redacted.exit_code) == (report().started, report().coverage, 4)
    assert redacted.nodes[0].name == json.loads(Redactor(KEY).capture(capture()).split("\n")[0])["node"]
    (tmp_path / "r.json").write_text(text)
    assert as_json.read(str(tmp_path / "r.json")) == redacted


SEEN = Evidence("/etc/hosts", 3, "x")
PLACES: dict[str, dict[str, Any]] = {
    "a node": {"nodes": (NodeRow("zorkia", 0, "n9", Status.FAIL),)},
    "its host": {"nodes": (NodeRow("n9", 0, "zorkia", Status.FAIL),)},
    "a node that is missing": {"missing_nodes": ("zorkia",)},
    "a node of a finding": {"checks": (Verdict("a.b", "n9", Status.FAIL, "", findings=(
        Finding(Severity.FAIL, "x", "y", nodes=("n9", "zorkia")),)),)},
    "the host of a rank": {"ranks": (RankState(0, "zorkia"),)},
    "the host of a moment": {"timeline": (Moment(None, 0, "zorkia", "x", SEEN),)},
    "a setting": {"environment": {"n9": NodeEnvironment({}, (Setting("MASTER_ADDR", "zorkia", "x"),))}},
}  # fmt: skip


@each_row("place", PLACES.values(), ids=PLACES)
def test_what_one_place_of_a_report_calls_a_host_is_hidden_in_every_text(place: dict[str, Any]) -> None:
    redacted = Redactor(KEY).report(replace(report(), notes=("Then zorkia answered.",), **place))
    assert redacted.notes == (f"Then {Pseudonyms(KEY.encode()).host('zorkia')} answered.",)
    assert "zorkia" not in as_json.render(redacted)
    assert Redactor(KEY).report(replace(report(), notes=("Then zorkia answered.",))).notes == ("Then zorkia answered.",)


@each_row(
    ("more", "shown"), [({"NCCL_SOCKET_IFNAME": "ib"}, "10.20.0.7"), ({"NCCL_COMM_ID": "blade-017:9999"}, "blade-017")]
)
def test_what_nccl_would_choose_is_redacted_and_chosen_alike(more: dict[str, str], shown: str, tmp_path: Path) -> None:
    plain = snapshot(capture(ANSWERS | {("env",): ENV | more}), tmp_path)
    seen = replace(report(), choices={plain.node: choose(plain)}, topology={plain.node: layout(plain)})
    assert shown in str(seen.choices)
    redacted = Redactor(KEY).report(seen)
    for original in ORIGINALS:
        assert original not in as_json.render(redacted), original
    assert redacted.topology == {redacted.nodes[0].name: layout(plain)}
    before, after = seen.choices[plain.node], redacted.choices[redacted.nodes[0].name]
    assert [each.port for each in after.hcas.chosen or ()] == [each.port for each in before.hcas.chosen or ()]
    assert (after.p2p, after.nvls) == (before.p2p, before.nvls)


@each_row("name", ["pass", "node", "job", "doctor", "ncclprobe"])
def test_a_host_called_like_a_word_of_ours_leaves_the_report_whole(name: str, tmp_path: Path) -> None:
    named = replace(report(), nodes=(NodeRow(name, 0, name, Status.PASS),), environment={name: NodeEnvironment()})
    as_json.write(Redactor(KEY).report(named), f"{tmp_path}/r.json")
    assert as_json.read(f"{tmp_path}/r.json").checks[0].findings[0].blame == "unknown"


def test_the_commands_redact_under_the_key_they_are_given_and_keep_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, plain = tmp_path / "hidden.jsonl", tmp_path / "plain.jsonl"
    assert main(["capture", "-o", str(hidden), "--redact-key", KEY]) == 0
    assert main(["capture", "-o", str(plain)]) == 0
    header, *_ = (json.loads(line) for line in hidden.read_text().splitlines())
    assert header["redacted"]
    assert load(hidden).node == json.loads(Redactor(KEY).capture(plain.read_text()).split("\n")[0])["node"]
    as_json.write(report(), f"{tmp_path}/r.json")
    capsys.readouterr()
    assert main(["report", f"{tmp_path}/r.json", "-v", "--redact-key", KEY]) == 4
    said = capsys.readouterr()
    assert ("blade-" in said.out, said.err) == (False, "")
    assert main(["capture", "-o", "-", "--redact-key", ""]) == 2
    monkeypatch.setattr("ncclprobe.redact.redactor.random_key", lambda: KEY)
    assert main(["capture", "-o", f"{tmp_path}/c.jsonl", "--redact"]) == 0
    text = (tmp_path / "c.jsonl").read_text()
    assert json.loads(text.splitlines()[0])["redacted"]
    assert KEY not in "".join(capsys.readouterr()) + text


KEYED = {
    "explain": ["explain", "gpu-blue-17.acme.corp.log", "10.1.2.3.log", "acmejob/gpu-blue-18/r.txt"],
    "report": ["report", "run.json", "--json", "o.json"],
    "capture": ["capture", "-o", "c.jsonl"],
    "attach": ["attach", "--pid", "999999999"],
}
OUTPUTS = {"explain": ["--json", "o.json", "--html", "o.html", "--report", "b.json"], "report": ["--json", "o.json"]}


@each_row("joined", [False, True])
@each_row("command", KEYED)
def test_the_key_and_the_names_of_files_stand_nowhere(
    command: str, joined: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acmejob" / "gpu-blue-18").mkdir(parents=True)
    for name in KEYED["explain"][1:]:
        (tmp_path / name).write_text("node1:1:1 [0] NCCL WARN Bootstrap : no socket interface found\n")
    as_json.write(replace(report(), command="ncclprobe doctor gpu-blue-17.jsonl --json=x/acmejob.json"), "run.json")
    given = ["--redact-key=hunter2secret"] if joined else ["--redact-key", "hunter2secret"]
    assert main([*KEYED[command], *OUTPUTS.get(command, []), *given]) in (0, 2, 4)
    told = "".join(path.read_text() for path in tmp_path.glob("[obc].*")) + "".join(capfd.readouterr())
    assert told
    for secret in ("hunter2secret", "gpu-blue", "acmejob", "10.1.2.3", "corp"):
        assert secret not in told, secret


def test_every_command_that_takes_a_key_is_tried_and_options_that_name_no_file_stay_in_a_command() -> None:
    modules = {name: import_module(f"ncclprobe.commands.{name}") for name in COMMANDS}
    parsers = {name: module._parser() for name, module in modules.items() if hasattr(module, "_parser")}
    assert {name for name, each in parsers.items() if "--redact-key" in each._option_string_actions} == {*KEYED}
    typed = "ncclprobe bandwidth --backend gloo --op all_reduce,all_gather -b 8 -e 64M --json /tmp/run.json"
    assert Redactor(KEY).report(replace(report(), command=typed)).command == typed


def shared(first: int, second: int, bits: int) -> int:
    return bits - (first ^ second).bit_length()


near = st.tuples(st.integers(0, (1 << 128) - 1), st.integers(0, 128), st.integers(0, (1 << 128) - 1)).map(
    lambda t: (t[0], t[0] ^ t[2] >> t[1])
)


@given(pair=near, octet=st.sampled_from([0x20, 0x26, 0xFD, 0xFE]))
def test_addresses_guids_and_macs_that_share_leading_bits_share_exactly_as_many_afterwards(
    pair: tuple[int, int], octet: int
) -> None:
    new = Pseudonyms(b"k")
    first, second = (value >> 96 for value in pair)
    renamed = [int(new.ipv4(IPv4Address(value))) for value in (first, second)]
    assert shared(*renamed, 32) == shared(first, second, 32)
    first, second = (octet << 120 | value >> 8 for value in pair)
    renamed = [int(new.ipv6(IPv6Address(value))) for value in (first, second)]
    assert shared(*renamed, 128) == shared(first, second, 128)
    guids, macs = ([value >> bits for value in pair] for bits in (64, 80))
    assert shared(*map(new.eui64, guids), 64) == shared(*guids, 64)
    if not {*macs} & {0, (1 << 48) - 1}:
        assert shared(*map(new.mac, macs), 48) == shared(*macs, 48)


low = st.integers(0, (1 << 64) - 1).map(lambda bits: 0xFE80 << 112 | bits)
KINDS = ("is_loopback", "is_link_local", "is_multicast", "is_unspecified")


@given(value=st.integers(0, (1 << 32) - 1), long=st.integers(0, (1 << 128) - 1) | low)
def test_an_address_stays_in_its_range(value: int, long: int) -> None:
    new = Pseudonyms(b"k")
    before, after = IPv4Address(value), new.ipv4(IPv4Address(value))
    assert [getattr(before, kind) for kind in KINDS] == [getattr(after, kind) for kind in KINDS]
    one, other = IPv6Address(long), new.ipv6(IPv6Address(long))
    kinds = (*KINDS, "is_site_local")
    assert [getattr(one, kind) for kind in kinds] == [getattr(other, kind) for kind in kinds]
    assert (one.ipv4_mapped is None) == (other.ipv4_mapped is None)


RANGES = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "192.0.2.0/24", "198.51.100.0/24",
          "203.0.113.0/24", "198.18.0.0/15", "fe80::/64", "fec0::/10", "fc00::/8", "fd00::/8", "2000::/3",
          "2001:db8::/32", "::/64", "64:ff9b::10.0.0.0/104", "::ffff:10.0.0.0/104", "::10.0.0.0/104")  # fmt: skip


@each_row("key", [b"a", b"b", b"c", b"d", b"e", b"f"])
def test_the_last_address_of_a_range_stays_in_it_and_what_means_no_host_stays(key: bytes) -> None:
    new = Pseudonyms(key)
    for net in map(ip_network, RANGES):
        last = net.broadcast_address - 1
        after = new.ipv4(last) if isinstance(last, IPv4Address) else new.ipv6(last)
        assert (after in net, after != last) == (True, True), net
    kept = ["0.1.2.3", "127.0.0.5", "169.254.1.2", "224.0.0.9", "255.255.240.0", "::", "::1", "ff02::1", "ff05::1:3"]
    assert [str(new.ipv6(each) if each.version == 6 else new.ipv4(each)) for each in map(ip_address, kept)] == kept


@given(digits=st.text("0123456789abcdef", min_size=32, max_size=32), length=st.integers(1, 32))
def test_the_first_digits_of_a_uuid_become_the_first_digits_of_its_pseudonym(digits: str, length: int) -> None:
    new = Pseudonyms(b"k")
    assert shared(int(new.uuid(digits)[:length], 16), int(new.uuid(digits[:length]), 16), 128) >= 124


def test_a_guid_made_from_a_mac_shows_it_and_any_other_keeps_no_digit() -> None:
    """Its middle was kept once: with a chance neighbour that was half of it, for one key in 450."""
    renamed = [f"{Pseudonyms(bytes([key])).eui64(0x7929_4793_9251_4894):016x}" for key in range(64)]
    assert all(len(set(digits)) > 1 for digits in zip(*renamed, strict=True))
    assert {Pseudonyms(bytes([key])).eui64(0x7929_47FF_FE51_4894) >> 24 & 0xFFFF for key in range(64)} == {0xFFFE}
