"""Plugins and vendors: whose network a library may be, which release takes it, and what settings are for."""

from collections.abc import Sequence

from ncclprobe.checks.env.fixtures import having, nccl, over
from ncclprobe.facts.machine import Machine, System
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.plugins import Linking, Plugin, Plugins, SharedLibrary
from ncclprobe.facts.software import Software
from ncclprobe.model.nccl_selection import Decision
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.nccl import networks
from ncclprobe.nccl.networks import Choosing, NetworkFacts, NetworkLibrary
from tests.each_row import each_row


@each_row(
    ("flavour", "names", "may", "not_"),
    [
        ("", ("IBext_v8",), ("ibext_v8", "IBEXT_V8"), ("IBext", "IBext_v9")), ("", (), ("anything",), ("IB", "Socket")),
        ("ofi", (), ("AWS Libfabric", "libfabric"), ("AWS Libfabric_v2",)), ("gib", (), ("gIB",), ("gib2", "IB")),
        ("tcpx", (), ("GPUDirectTCPX_v7",), ("FasTrak",)), ("tcpxo", (), ("FasTrak",), ("FasTrak_v1",)),
        ("sharp", (), ("IBext_v10", "sharp"), ("UCX",)), ("ucx", (), ("UCX_v9", "ucx"), ("IBext",)),
    ],
)  # fmt: skip
def test_names_of_plugins(flavour: str, names: tuple[str, ...], may: tuple[str, ...], not_: tuple[str, ...]) -> None:
    library = NetworkLibrary("x", Plugin("/x.so", "net", flavour, True, names))
    assert [library.may_be(each) for each in (*may, *not_)] == [True] * len(may) + [False] * len(not_)
    assert [NetworkLibrary("x", anywhere=each).may_be(may[0]) for each in (True, False)] == [True, False]


OFI, OPT, AT = "/lib/libnccl-net-ofi.so", "/opt/x.so", "/lib/libnccl-net.so"


def asked(text: str | None, *version: int, offers: tuple[int, ...] = (), linking: Linking | None = None) -> list[str]:
    """The libraries that NCCL opens: the file of each, or its name, with why it cannot be loaded."""
    found = tuple(Plugin(path, "net", "ofi", path != OPT, (), offers) for path in (OPT, OFI, AT))
    facts = {Plugins: Plugins(found), Software: nccl(*version) if version else Absent("none")}
    settings = Settings() if text is None else having(NCCL_NET_PLUGIN=text)
    told = networks.asked_plugins(NetworkFacts({**facts, Settings: settings, Linking: linking or Linking()}))
    return [f"{e.plugin.path if e.plugin else e.name}{'?' * e.anywhere}{': ' * bool(e.broken)}{e.broken}" for e in told]


@each_row(
    ("text", "files"),
    [
        (None, [AT]), ("none", []), ("NONE", []), ("none,ofi", []), ("ofi", [OFI]), (",ofi,", [OFI]), (OPT, [OPT]),
        ("libnccl-net-ofi.so,x", [OFI, "x"]), ("x.so", ["x.so?"]), ("libnccl-y.so", ["libnccl-y.so"]),
        ("/opt/y.so", ["/opt/y.so?"]), ("STATIC_PLUGIN", ["STATIC_PLUGIN?"]), ("None,ofi", ["None", OFI]),
    ],
)  # fmt: skip
def test_libraries_are_found_by_path_by_file_and_by_a_part_of_it(text: str | None, files: list[str]) -> None:
    assert asked(text) == files


@each_row(
    ("version", "before", "interface", "takes"),
    [
        ((2, 30, 3), (2, 30, 2), 12, "v6 to v11"), ((2, 28, 3), (2, 28, 2), 11, "v6 to v10"),
        ((2, 26, 2), (2, 26, 1), 10, "v5 to v9"), ((2, 24, 3), (2, 24, 2), 9, "v5 to v8"),
        ((2, 20, 3), (2, 20, 2), 8, "v5 to v7"), ((2, 19, 0), (2, 18, 6), 7, "v4 to v6"),
        ((2, 13, 4), (2, 13, 3), 6, "v4 to v5"), ((2, 12, 7), (2, 12, 6), 5, "v4 to v4"),
        ((2, 8, 0), (2, 7, 9), 4, "v3 to v3"), ((2, 25, 9), (2, 26, 2), 5, "v6 to v10"), ((), (2, 30, 3), 5, ""),
    ],
)  # fmt: skip
def test_what_each_release_takes(version: tuple[int, ...], before: tuple[int, ...], interface: int, takes: str) -> None:
    written = ".".join(map(str, before))
    why = f"it offers ncclNetPlugin v{interface}, and NCCL {written} takes {takes or 'v6 and later'}"
    newest = "it offers ncclNetPlugin v5, and the newest NCCL takes v6 and later"
    assert asked("ofi", *version, offers=(interface,)) == [OFI if version else f"{OFI}: {newest}"]
    assert asked("ofi", *before, offers=(interface,)) == [f"{OFI}: {why}"]
    assert asked("ofi", *before, offers=(interface, int(takes[-2:].strip("v") or 6))) == [OFI]


def test_a_library_that_the_plugin_itself_lacks_keeps_it_from_loading() -> None:
    gone, old = SharedLibrary("a.so", OFI, ""), SharedLibrary("b.so", OFI, "/b.so", lacks=("C_2", "C_3"))
    for libraries, plugin, why in (
        ((old, gone), OFI, ": /b.so lacks C_2, C_3"), ((gone,), AT, ""),
        ((gone, old), OFI, ": it needs a.so, which the loader cannot find"), ((replace(gone, needed_by=""),), OFI, ""),
    ):  # fmt: skip
        assert asked("ofi", linking=Linking(libraries, plugin)) == [f"{OFI}{why}"]


def test_settings_name_a_path_other_providers_or_only_the_kernels() -> None:
    paths = {"/opt/x.so": True, "a,/x.so": True, "a/x.so": False, "": False}
    assert {text: networks.ofi_plugin_named(having(NCCL_NET_PLUGIN=text)) for text in paths} == paths
    others = {"": False, "efa": False, "EFA": False, "tcp": True, "tcp,efa": False, "^efa": True, "^tcp": False}
    assert {text: networks.other_provider(having(FI_PROVIDER=text)) for text in others} == others
    kernel = {"": False, "tcp;ofi_rxm": True, "udp,sockets,net": True, "ofi_rxd": True, "tcp,efa": False}
    assert {text: networks.over_kernel(having(FI_PROVIDER=text)) for text in kernel} == kernel


def test_a_part_is_chosen_anew_for_each_architecture_and_not_for_another_kernel() -> None:
    choosing, asked_of = Choosing(), list[str]()

    def decide(known: NetworkFacts) -> Decision[str]:
        asked_of.append(known.need(System).machine)
        return Decision((asked_of[-1],), "")

    for kernel, machine in (("5", "x86_64"), ("6", "x86_64"), ("6", "aarch64"), ("5", "x86_64")):
        assert choosing.part(decide, {System: System("n", kernel, machine, "", None)}).chosen == (machine,)
    assert asked_of == ["x86_64", "aarch64"]


TYPES = {
    "p4d.24xlarge": "efa", "p5.48xlarge": "efa", "p6-b200.48xlarge": "efa", "a3-highgpu-8g": "tcpx", "g5.48xlarge": "",
    "a3-edgegpu-8g": "tcpx", "a3-ultragpu-8g": "gib", "a4-highgpu-8g": "gib", "a3-megagpu-8g": "tcpxo", "": "",
    "bm.gpu.h100.8": "oci", "standard_nd96isr_h100_v5": "azure",
}  # fmt: skip


def test_a_types_name_tells_its_network_and_a_value_of_nccl_net_whose_it_is() -> None:
    assert {name: networks.network_of(Machine(instance_type=name)) for name in TYPES} == TYPES
    mine = {"fastrak": "tcpxo", "gpudirecttcpx": "tcpx", "gib": "gib", "aws libfabric": "efa"}
    for network, owner in mine.items():
        others = {vendor for vendor in networks.TITLES if networks.of_another(vendor, network)}
        assert others == networks.TITLES.keys() - {owner, *(("cxi",) if owner == "efa" else ())}
    assert not any(networks.of_another(vendor, "socket") for vendor in networks.TITLES)
    used = ("AWS Libfabric", "FasTrak", "GPUDirectTCPX", "gIB", "IB", "Socket")
    found = [networks.in_use(Settings(), Machine(cloud="azure"), over(each)) for each in used]
    assert found == [("efa",), ("tcpxo",), ("tcpx",), ("gib",), ("azure",), ()]


@each_row(
    ("vendor", "settings"),
    [
        ("tcpxo", ("NCCL_FASTRAK_X=1", "NCCL_NET=FasTrak")), ("tcpx", ("NCCL_GPUDIRECTTCPX_X=1",)),
        ("gib", ("NCCL_NET=gIB", "NCCL_TUNER_CONFIG_PATH=/usr/local/gib/x", "NCCL_IB_FIFO_TC=84")),
        ("efa", ("FI_EFA_X=1", "FI_PROVIDER=EFA", "NCCL_NET_PLUGIN=/opt/amazon/x", "NCCL_TUNER_PLUGIN=/opt/amazon/y",
                 "LD_LIBRARY_PATH=/x:/opt/amazon/efa/lib")),
        ("cxi", ("FI_CXI_X=1", "FI_PROVIDER=cxi", "NCCL_SOCKET_IFNAME=hsn0", "NCCL_SOCKET_IFNAME==hsn")),
        ("oci", ("RX_QUEUE_LEN=1", "IB_RX_QUEUE_LEN=1", "NCCL_IB_TC=41")), ("azure", ["NCCL_TOPO_FILE=/opt/microsoft"]),
        ("sharp", ("SHARP_X=1", "NCCL_COLLNET_ENABLE=1 NCCL_ALGO=CollnetDirect", "SHARP_COLL_ENABLE_SAT=1")),
        ("", ("NCCL_IB_TC=410", "NCCL_IB_FIFO_TC=840", "NCCL_ALGO=CollnetDirect", "NCCL_IB_TC=106", "FI_PROVIDER=tcp",
              "NCCL_NET=Socket", "NCCL_COLLNET_ENABLE=0 SHARP_X=1")),
    ],
)  # fmt: skip
def test_settings_of_one_vendor_show_whose_network_is_meant(vendor: str, settings: Sequence[str]) -> None:
    for text in settings:
        given = having(**dict(each.split("=", 1) for each in text.split()))
        assert networks.in_use(given, Machine(), over("")) == ((vendor,) if vendor else ()), text
        assert networks.named_network(given) == (vendor in ("tcpxo", "tcpx", "efa", "cxi")), text
