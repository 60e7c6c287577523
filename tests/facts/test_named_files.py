"""Files that variables name."""

import json
from pathlib import Path

from ncclprobe.facts.environment import Environment
from ncclprobe.facts.loader import DEFAULT_FOLDERS, Loader
from ncclprobe.facts.nccl_conf import Settings, log_folder, named_files, nccl_conf, topology_file, undefined
from ncclprobe.host import Question
from ncclprobe.host.capture import Replay
from ncclprobe.host.live import LiveHost
from ncclprobe.model.errors import Denied, HostError, Missing
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent
from ncclprobe.nccl.parameters import looks_like_ours
from tests.each_row import each_row

XML = """<system version="1">
 <cpu numaid="0"><pci busid="FFFF:ff:01.0" class="0x060400"><pci busid="0001:00:00.0" class="0x030200"/>
 <pci busid="0101:00:00.0" class="0x020700"/></pci></cpu>
</system>
"""


def settings(**values: str) -> Settings:
    return Settings({name: Setting(name, text, "environment") for name, text in values.items()})


def test_nothing_is_asked_where_nothing_is_named() -> None:
    found = named_files.run(Replay({}), Settings(), Loader())
    assert (found.topology, found.folders, found.libraries) == (None, {}, {})


@each_row(
    ("text", "why"),
    [
        ('<graphs version="1"><graph id="0" pattern="4"/></graphs>\n', ""),
        ('<!-- ours -->\n<graphs version="1"/>', ""),
        ('<system version="1"></system>', ""),
        ("", ""),
        ('<graphs version="1"><graph id="0"', "incomplete"),
        ('<graphs version="1"><graph id="0"/>', "incomplete"),
        ('<graphs version="2"></graphs>', "version 2"),
        ("# rings\n0 1 2 3", "expecting '<'"),
    ],
)
def test_a_file_of_graphs_is_read_as_nccl_reads_it(text: str, why: str) -> None:
    asked = Replay({("read", "/g.xml"): text})
    found = named_files.run(asked, settings(NCCL_GRAPH_FILE="/g.xml"), Loader()).graph
    assert isinstance(found, str)
    assert why in found if why else not found


def test_a_topology_names_its_gpus_and_nics() -> None:
    found = topology_file("/t.xml", XML)
    assert (found.whole, found.version, found.addresses) == (True, "1", ("0001:00:00.0", "0101:00:00.0"))


@each_row(
    ("text", "version", "addresses"),
    [
        ('<system\tversion=\'1\'><pci class="0x030200" busid="0001:00:00.0"/></system>', "", ("0001:00:00.0",)),
        (
            '<system version="x"><pcix busid="1:0:0.0" class="0x0302"/><pci busid="a b" class="0x0302"/></system>',
            "",
            (),
        ),
        ('<pci busid="1:0:0.0" class="0x0604"><pci busid="2:0:0.0"', "", ()),
        ("<pci " * 200_000, "", ()),
        ('<pci busid="' * 100_000, "", ()),
    ],
    ids=["tabs", "others", "cut", "many", "open"],
)
def test_a_topology_is_read_in_one_pass_whatever_it_holds(text: str, version: str, addresses: tuple[str, ...]) -> None:
    found = topology_file("/t.xml", text)
    assert (found.version, found.addresses) == (version, addresses)


@each_row("text", ["", "not found", XML[:100]])
def test_a_topology_that_is_cut_off_is_not_whole(text: str) -> None:
    assert not topology_file("/t.xml", text).whole


@each_row(
    ("pattern", "folder"),
    [
        ("/tmp/nccl.%h.%p", "/tmp"),
        ("/logs/%h/nccl.%p", ""),
        ("nccl.log", ""),
        ("stdout", ""),
        ("/dev/stderr", ""),
        ("", ""),
    ],
)
def test_the_folder_of_the_log(pattern: str, folder: str) -> None:
    assert log_folder(pattern) == folder


def test_what_is_named_is_looked_at() -> None:
    answers: dict[Question, str | HostError] = {
        ("access", "/logs"): json.dumps({"read": True, "write": False}),
        ("stat", "/opt/a.so"): "{}",
        ("stat", "/opt/b.so"): Missing("no such file"),
        ("stat", "/opt/c.so"): Denied("permission denied"),
    }
    named = settings(NCCL_DEBUG_FILE="/logs/%p", NCCL_NET_PLUGIN="/opt/a.so,/opt/b.so", NCCL_TUNER_PLUGIN="/opt/c.so")
    found = named_files.run(Replay(answers), named, Loader())
    assert found.folders == {"NCCL_DEBUG_FILE": ("/logs", False)}
    assert (found.libraries["/opt/a.so"], found.libraries["/opt/b.so"]) == (True, False)
    assert isinstance(found.libraries["/opt/c.so"], Absent)


def test_lines_without_an_equals_sign_are_skipped_and_remembered(tmp_path: Path) -> None:
    text = "setenv NCCL_IB_HCA mlx5_0\nNCCL_DEBUG=INFO\n# NCCL_NET\n\nNCCL_NET: IB\n"
    assert [(each.name, each.origin) for each in undefined(text, "/c")] == [
        ("setenv NCCL_IB_HCA mlx5_0", "/c:1"), ("NCCL_NET: IB", "/c:5")]  # fmt: skip
    live = LiveHost(frozenset({"NCCL_NET"}), looks_like_ours)
    assert [live._conf_line(line) for line in text.splitlines()] == [
        "NCCL_IB_HCA",
        "NCCL_DEBUG=<value not recorded>",
        "",
        "",
        "NCCL_NET",
    ]


def test_the_settings_say_which_files_could_not_be_read() -> None:
    answers: dict[Question, str | HostError] = {
        ("conf", "/job.conf"): Missing("no such file"),
        ("conf", "/etc/nccl.conf"): "NCCL_DEBUG=WARN\n",
    }
    environment = Environment({"NCCL_CONF_FILE": "/job.conf", "HOME": "/root"})
    found = nccl_conf.run(Replay(answers), environment, Absent("no libnccl"))
    assert [(file.path, file.refused and file.refused.refused) for file in found.files] == [
        ("/job.conf", "Missing"),
        ("/etc/nccl.conf", None),
    ]
    assert found.get("NCCL_DEBUG") == "WARN"


def test_a_plugin_named_without_its_folder_is_looked_for_where_the_loader_looks() -> None:
    answers: dict[Question, str | HostError] = {
        ("stat", "/opt/ours/libours.so"): "{}",
        **{("stat", f"{folder}/libours.so"): Missing("no such file") for folder in DEFAULT_FOLDERS},
        **{("stat", f"{folder}/libnope.so"): Missing("no such file") for folder in ("/opt/ours", *DEFAULT_FOLDERS)},
        ("ld_cache", "libnope.so"): "[]",
        ("ld_cache", "libours.so"): "[]",
    }
    named = settings(NCCL_NET_PLUGIN="libours.so,libnccl-net-x.so,none", NCCL_TUNER_PLUGIN="libnope.so")
    found = named_files.run(Replay(answers), named, Loader(library_path=("/opt/ours",)))
    assert found.libraries == {"libours.so": True, "libnope.so": False}


def test_a_library_that_only_the_loaders_cache_knows_is_there() -> None:
    answers: dict[Question, str | HostError] = {("ld_cache", "libours.so"): '[["libours.so", "/opt/x/libours.so"]]'}
    found = named_files.run(Replay(answers), settings(NCCL_TUNER_PLUGIN="libours.so"), Loader())
    assert found.libraries == {"libours.so": True}
