"""The driver, the fabric manager and NCCL's plugins."""

from typing import Any

from conftest import answers

from ncclprobe.engine.collect import collect
from ncclprobe.facts import driver, plugins
from ncclprobe.facts.driver import Driver, FabricManager
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.loader import LIBRARIES, Loader
from ncclprobe.host import Question
from ncclprobe.model.errors import Missing
from ncclprobe.model.registry import Collector
from ncclprobe.model.snapshot import Absent
from tests.each_row import each_row

NOTHING = Missing("not there")
FABRIC: Question = ("run", "nv-fabricmanager", "--version")


def learn(collector: Collector, said: dict[Question, Any], *others: Collector) -> Any:
    return collect(answers(said), [collector, *others])[collector.produces]


@each_row(
    ("text", "expected"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version\n",
            Driver("535.104.05", "proprietary"),
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build  (x@y)  Mon Jun\n",
            Driver("570.158.01", "open"),
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95  Release Build\n",
            Driver("580.95", "open"),
        ),
    ],
)
def test_both_forms_of_the_drivers_version_are_read(text: str, expected: Driver) -> None:
    assert driver.loaded(text) == expected


def test_no_driver_is_not_known_rather_than_none() -> None:
    assert isinstance(learn(driver.driver, {("read", driver.VERSION): NOTHING}), Absent)


def test_the_fabric_manager_runs_where_its_pid_is_its_own() -> None:
    said: dict[Question, Any] = {FABRIC: "Fabric Manager version is : 535.161.08\n", ("read", driver.PID_FILE): "42\n"}
    runs = said | {("read", "/proc/42/comm"): "nv-fabricmanage\n"}
    assert learn(driver.fabric_manager, runs) == FabricManager("535.161.08", True)
    assert learn(driver.fabric_manager, said | {("read", "/proc/42/comm"): "bash\n"}).running is False
    assert learn(driver.fabric_manager, said | {("read", "/proc/42/comm"): NOTHING}).running is False
    assert learn(driver.fabric_manager, said | {("read", driver.PID_FILE): NOTHING}).running is False
    assert isinstance(learn(driver.fabric_manager, said | {("read", driver.PID_FILE): "x"}).running, Absent)


def found(folders: dict[str, list[str]], loader: Loader, **variables: str) -> list[tuple[str, str, str, bool]]:
    said: dict[Question, Any] = {("list", folder, LIBRARIES): names for folder, names in folders.items()}
    known = Collector(run=lambda host: loader, produces=Loader)
    environment = Collector(run=lambda host: Environment(variables), produces=Environment)
    seen = learn(plugins.plugins, said, known, environment)
    return [(p.path, p.kind, p.flavour, p.reachable) for p in seen.all]


def test_a_plugin_outside_the_loaders_folders_is_there_for_nothing() -> None:
    folders = {"/opt/amazon/ofi-nccl/lib": ["libnccl-net.so", "libnccl-ofi-tuner.so"], "/a": ["libnccl.so.2"]}
    ofi = "/opt/amazon/ofi-nccl/lib"
    assert found(folders, Loader(library_path=("/a",))) == [
        (f"{ofi}/libnccl-net.so", "net", "ofi", False),
        (f"{ofi}/libnccl-ofi-tuner.so", "tuner", "ofi", False),
    ]
    assert all(reachable for *_, reachable in found(folders, Loader(library_path=(ofi,))))


@each_row(
    ("path", "kind", "flavour"),
    [
        ("/usr/local/tcpx/lib64/libnccl-net.so", "net", "tcpx"),
        ("/x/libnccl-net-ofi.so.0", "net", "ofi"),
        ("/usr/local/gib/lib64/libnccl-net_gib.so", "net", "gib"),
        ("/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so", "net", "sharp"),
        ("/profiles/lib/libnccl-profiler-inspector.so", "profiler", ""),
        ("/x/libnccl-net.so", "net", ""),
    ],
)
def test_a_plugin_is_named_by_its_path(path: str, kind: str, flavour: str) -> None:
    folder, _, name = path.rpartition("/")
    assert found({folder: [name]}, Loader(library_path=(folder,))) == [(path, kind, flavour, True)]


def test_the_folder_of_a_plugin_named_by_its_path_is_looked_into() -> None:
    seen = found({"/site": ["libnccl-net-x.so"]}, Loader(), NCCL_NET_PLUGIN="ofi,/site/libnccl-net-x.so")
    assert seen == [("/site/libnccl-net-x.so", "net", "", False)]
