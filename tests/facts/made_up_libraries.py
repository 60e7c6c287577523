"""Libraries that a loader maps, and plugins of NCCL: `command_values/texts.txt` keeps what is learned of each."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from conftest import answers

from ncclprobe.facts import plugins
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.loader import Loader
from ncclprobe.facts.plugins import Plugin, Plugins
from ncclprobe.facts.software import Mapped, Software, Torch
from ncclprobe.host import Question
from ncclprobe.model.errors import Denied, Failed
from ncclprobe.model.values import replace
from tests.facts.made_up import GONE


class Machine:
    """A machine that has only these libraries, each described by what its file contains."""

    def __init__(self, files: dict[str, dict[str, Any]], cached: dict[str, str] | None = None) -> None:
        self.files, self.cached = files, cached or {}
        self.folders: dict[str, Any] = {"/denied": Denied("no"), "/gone": GONE, "/odd": {"a": 1}, "/late": Failed("no"),
                                        "/more": ["libother.so", *NEEDED]}  # fmt: skip

    def ask(self, *question: str | int) -> str:
        kind, path, *names = map(str, question)
        said: dict[Question, Any] = {}
        if kind == "ld_cache":
            said[question] = list(self.cached.items())
        elif kind == "among":
            said[question] = self.folders.get(path, [name for name in names if f"{path}/{name}" in self.files])
        elif path in self.files and (kind == "elf" or "symbols" in self.files[path]):
            empty = {"soname": "", "needed": [], "rpath": "", "runpath": "", "needs_versions": {}, "versions": []}
            said[question] = empty | self.files[path] if kind == "elf" else self.files[path]["symbols"]
        else:
            said[question] = GONE
        return answers(said).ask(*question)


MARKS = "aws-ofi-nccl ", "NET/GPUDirectTCPX ver. ", "Initializing gIB "
TORCH, OWN, NET = "/venv/torch", "/venv/nvidia/nccl/lib", "/opt/ofi/libnccl-net.so"
CUDA_LIBRARY, SITE_NCCL = f"{TORCH}/lib/libtorch_cuda.so", "/site/libnccl.so.2"
PATHS = "$ORIGIN/../../nvidia/nccl/lib:/rt"
NEEDED = ["libcudart.so.12", "libnccl.so.2", "libm.so.6"]
BASE: dict[str, dict[str, Any]] = {
    CUDA_LIBRARY: {"needed": NEEDED, "rpath": PATHS, "symbols": {"undefined": ["ncclSend", "ncclCommSplit"]}},
    "/rt/libcudart.so.12": {}, f"{OWN}/libnccl.so.2": {"symbols": {"defined": []}},
    "/site/libcudart.so.12": {}, SITE_NCCL: {"symbols": {"defined": ["ncclSend"]}},
    NET: {"needed": ["libcudart.so.12", "libfabric.so.1", "libc.so.6", "libnccl.so.2"],
          "needs_versions": {"libc.so.6": ["GLIBC_9", "GLIBC_2.34"]}},
    "/usr/lib64/libc.so.6": {"versions": ["GLIBC_2.34"]}, "/usr/lib/x86_64-linux-gnu/libcudart.so.12": {}}  # fmt: skip
LATE = {**BASE, CUDA_LIBRARY: {**BASE[CUDA_LIBRARY], "runpath": PATHS}}
INSTALLED = Software({}, mapped=Mapped(f"{OWN}/libnccl.so.2", "DT_RPATH"), torch=Torch(TORCH, "12.8"))


def _linked(files: dict[str, dict[str, Any]], searched: Loader, *cached: str, **more: Any) -> object:
    """Return which file the loader maps for each needed library, what of it is missing, and which files it hides."""
    environment = Environment({"NCCL_NET_PLUGIN": more.get("named")})
    found = Plugins((Plugin(NET, "net", "ofi", reachable=more.get("reachable", True)),))
    host = Machine(files, dict.fromkeys(cached, "/cuda/libcudart.so.12"))
    told = plugins.linking.run(host, searched, more.get("software", INSTALLED), found, environment)
    return [(each.name, each.needed_by, each.path, each.why, each.lacks, each.others) for each in told.libraries]


def _opened(path: str, kind: str, flavour: str, objects: Any, texts: Any = GONE) -> object:
    """Return what the constants in a plugin's file show about it."""
    said = {
        ("elf_objects", path, "nccl"): objects,
        **{("elf_texts", path, mark): texts for mark in MARKS}}  # fmt: skip
    found = plugins.add_constants(answers(said), Plugin(path, kind, flavour, reachable=True))
    return found, found.told()


_SITE = Loader(library_path=("/site",))

ROWS: Mapping[str, tuple[Callable[..., object], Sequence[Any]]] = {
    "libraries that are mapped": (_linked, [(BASE, _SITE), (LATE, _SITE), (BASE, Loader()),
        (LATE, Loader(preload=("/x/libnccl.so.2.27.3",))), ({CUDA_LIBRARY: BASE[CUDA_LIBRARY]},
        Loader(preload=("/x/libnccl.so.2.27.3",))), ({CUDA_LIBRARY: {"needed": NEEDED},
        "/usr/lib64/libcudart.so.12": {}}, Loader(), "libcudart.so.12"), ({CUDA_LIBRARY: {"needed": NEEDED},
        "/usr/lib64/libcudart.so.12": {}}, Loader()), ({}, Loader()), ({CUDA_LIBRARY: {"needed": NEEDED}} | {
        f"{f}/libnccl.so.2": {} for f in ("/lib64", "/usr/lib64", "/usr/lib")}, Loader(library_path=("/lib64",)))]),
    "constants of plugins": (_opened, [*((NET, kind, flavour, {symbol: name}) for kind, flavour, symbol, name in ((
        "net", "", "ncclNetPlugin_v8", "AWS Libfabric"), ("net", "", "ncclNet_v11", "IBext_v8"), ("net", "x",
        "ncclNet_v8", "gIB"), ("net", "", "ncclTunerPlugin_v2", "t"), ("", "", "ncclTunerPlugin_v2", "UCX"), ("", "",
        "ncclFooPlugin_v1", "f"), ("", "", "ncclNetPlugin_v8x", "f"), ("", "", "ncclNETPlugin_v8", "f"), ("net", "",
        "ncclNetPlugin_v12345", "f"), ("", "", "ncclProfiler_v1", ""))), *((NET, kind, "ofi", {"ncclNetPlugin_v6": "A",
        "ncclNetPlugin_v10": "B", "ncclNet_v9": "A", "ncclTunerPlugin_v3": "T", "odd": "x"}) for kind in ("", "net",
        "tuner", "env")), (NET, "net", "", GONE), (NET, "net", "", ["x"]), *((NET, "net", flavour, {
        "ncclNetPlugin_v8": "N"}, texts) for flavour in ("ofi", "tcpx", "gib", "sharp") for texts in ([], [
        "aws-ofi-nccl 1.9.2-aws", "NET/GPUDirectTCPX ver. 3.1.8.", "Initializing gIB v1.0.5"], ["x", "aws-ofi-nccl git",
        "aws-ofi-nccl 1.7"], {"a": 1}, GONE))]),
    "the plugin that is opened": (lambda path, reachable, variables: plugins.is_opened(
        plugins.plugin_at(path, reachable), variables), [*((f"/p/{name}", reachable, {variable: value}) for name in (
        "libnccl-net.so", "libnccl-net-ofi.so", "libnccl-tuner-ofi.so", "libx.so") for reachable in (True, False)
        for variable, value in (("NCCL_NET_PLUGIN", "ofi"), ("NCCL_NET_PLUGIN", "x,ofi"), ("NCCL_TUNER_PLUGIN", "ofi"),
        ("NCCL_ENV_PLUGIN", "/p/libx.so"), ("NCCL_PROFILER_PLUGIN", "libx.so"), ("NCCL_NET_PLUGIN", None)))]),
    "libraries that matter": (_linked, [({**BASE, CUDA_LIBRARY: {"needed": [f"lib{name}.so.1" for name in ("nccl",
        "cudart", "nvshmem_host", "fabric", "ucp", "ucs", "uct", "ibverbs", "z")], **changes}}, _SITE, *cached)
        for changes in ({}, {"needs_versions": {"libz.so.1": ["Z_1"], "libibverbs.so.1": []}})
        for cached in ((), ("libucp.so.1", "libz.so.1"))]),
    "folders that do not answer": (lambda folder: _linked(BASE, Loader(library_path=(folder, "/site"))), [
        "/denied", "/gone", "/odd", "/late", "/more", "/site"]),
    "libraries of the system": (lambda files: _linked(files, _SITE), [BASE | {"/usr/lib64/libc.so.6": {}}, {name: of
        for name, of in BASE.items() if "libc.so" not in name}, BASE | {"/usr/lib64/libm.so.6": {}}]),
    "functions that NCCL lacks": (lambda asked, offered: _linked({CUDA_LIBRARY: {"needed": NEEDED, "symbols": {
        "undefined": asked}}, SITE_NCCL: {"symbols": {"defined": offered}}}, _SITE), [([f"nccl{n}" for n in
        "jcahbdgfie"], []), (["ncclA"], ["ncclA", "ncclB"]), (["ncclB", "ncclA"], ["ncclB"]), ([], ["ncclA"])]),
    "libraries of a plugin that is named": (lambda named, reachable, software: _linked(
        BASE, _SITE, named=named, reachable=reachable, software=software), [
        ("ofi", True, INSTALLED), ("ofi", False, INSTALLED), (NET, False, INSTALLED), ("", False, Software({})),
        ("", True, replace(INSTALLED, torch=Torch(TORCH, None))),
        *((named, True, replace(INSTALLED, mapped=Mapped(f"{OWN}/libnccl.so.2", why))) for why in ("static", "DT_RPATH")
          for named in ("ofi,x", "x,ofi", f"{NET},x"))])}  # fmt: skip
