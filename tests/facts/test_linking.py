"""Which file the loader would map for each library of torch, NCCL and its plugin, and what of it is missing."""

from typing import Any

from conftest import answers

from ncclprobe.engine.collect import collect
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.loader import DEFAULT_FOLDERS, Loader
from ncclprobe.facts.plugins import Linking, Plugin, Plugins, linking
from ncclprobe.facts.software import Mapped, Software, Torch
from ncclprobe.host import Question
from ncclprobe.model.errors import Missing
from ncclprobe.model.registry import Collector

TORCH, WHEEL, NET = "/venv/torch", "/venv/nvidia/nccl/lib", "/opt/ofi/libnccl-net.so"
CUDA, NVSHMEM = f"{TORCH}/lib/libtorch_cuda.so", f"{TORCH}/lib/libtorch_nvshmem.so"
SOFTWARE = Software({}, mapped=Mapped(f"{WHEEL}/libnccl.so.2", "DT_RPATH"), torch=Torch(TORCH, "12.8"))
OFI = Plugins((Plugin(NET, "net", "ofi", reachable=True),))


class Machine:
    """A machine made of folders with libraries, each by what it says of itself."""

    def __init__(self, files: dict[str, dict[str, Any]], cached: dict[str, str] | None = None) -> None:
        self.files, self.cached = files, cached or {}

    def ask(self, *question: str | int) -> str:
        kind, path, *names = map(str, question)
        said: dict[Question, Any] = {}
        if kind == "ld_cache":
            said[question] = list(self.cached.items())
        elif kind == "among":
            said[question] = [name for name in names if f"{path}/{name}" in self.files]
        elif path in self.files and (kind == "elf" or "symbols" in self.files[path]):
            empty = {"soname": "", "needed": [], "rpath": "", "runpath": "", "needs_versions": {}, "versions": []}
            said[question] = empty | self.files[path] if kind == "elf" else self.files[path]["symbols"]
        else:
            said[question] = Missing("not there")
        return answers(said).ask(*question)


def learned(machine: Machine, loader: Loader, software: Software = SOFTWARE, plugins: Plugins | None = None) -> Linking:
    given = [(Loader, loader), (Software, software), (Plugins, plugins or Plugins()), (Environment, Environment())]
    facts = collect(machine, [linking, *(Collector(run=lambda host, f=f: f, produces=kind) for kind, f in given)])
    fact = facts[Linking]
    assert isinstance(fact, Linking), fact
    return fact


BASE: dict[str, dict[str, Any]] = {
    CUDA: {"needed": ["libcudart.so.12", "libnccl.so.2", "libm.so.6"], "rpath": "$ORIGIN/../../nvidia/nccl/lib:/rt"},
    "/rt/libcudart.so.12": {},
    f"{WHEEL}/libnccl.so.2": {},
}


def found(linking: Linking) -> dict[str, tuple[str, str]]:
    return {each.name: (each.path, each.why) for each in linking.libraries}


def test_rpath_comes_before_ld_library_path_and_runpath_after_it() -> None:
    files = BASE | {"/site/libcudart.so.12": {}}
    seen = learned(Machine(files), Loader(library_path=("/site",)))
    assert found(seen)["libcudart.so.12"] == ("/rt/libcudart.so.12", "DT_RPATH")
    assert next(each for each in seen.libraries if each.name == "libcudart.so.12").others == ("/site/libcudart.so.12",)
    files[CUDA] = BASE[CUDA] | {"runpath": BASE[CUDA]["rpath"]}
    seen = learned(Machine(files), Loader(library_path=("/site",)))
    assert found(seen)["libcudart.so.12"] == ("/site/libcudart.so.12", "LD_LIBRARY_PATH")


def test_what_is_preloaded_beats_all_and_what_is_nowhere_is_told() -> None:
    seen = learned(Machine({CUDA: BASE[CUDA]}), Loader(preload=("/x/libnccl.so.2.27.3",)))
    assert found(seen) == {"libcudart.so.12": ("", ""), "libnccl.so.2": ("/x/libnccl.so.2.27.3", "LD_PRELOAD")}


def test_the_cache_comes_before_the_default_folders() -> None:
    files = {CUDA: {"needed": ["libcudart.so.12"]}, f"{DEFAULT_FOLDERS[0]}/libcudart.so.12": {}}
    software = Software({}, torch=Torch(TORCH, "12.8"))
    seen = learned(Machine(files, {"libcudart.so.12": "/cuda/libcudart.so.12"}), Loader(), software)
    assert found(seen)["libcudart.so.12"] == ("/cuda/libcudart.so.12", "/etc/ld.so.cache")
    seen = learned(Machine(files), Loader(), software)
    assert found(seen)["libcudart.so.12"][1] == "the loader's default folders"


def test_an_older_nccl_lacks_what_torch_calls() -> None:
    files = BASE | {"/site/libnccl.so.2": {"symbols": {"defined": ["ncclSend"], "undefined": []}}}
    files[CUDA] = {
        "needed": ["libnccl.so.2"],
        "runpath": "$ORIGIN/../../nvidia/nccl/lib",
        "symbols": {"defined": [], "undefined": ["ncclSend", "ncclCommSplit"]},
    }
    (nccl,) = learned(Machine(files), Loader(library_path=("/site",))).libraries
    assert (nccl.path, nccl.lacks, nccl.others) == (
        "/site/libnccl.so.2",
        ("ncclCommSplit",),
        (f"{WHEEL}/libnccl.so.2",),
    )


def test_the_nccl_of_torchs_own_wheel_and_other_libraries_are_not_asked_for_their_functions() -> None:
    few = {"symbols": {"defined": [], "undefined": ["ncclCommSplit"]}}
    files = BASE | {CUDA: BASE[CUDA] | few, f"{WHEEL}/libnccl.so.2": few, "/rt/libcudart.so.12": few}
    libraries = learned(Machine(files), Loader()).libraries
    assert {each.name: each.lacks for each in libraries} == {"libcudart.so.12": (), "libnccl.so.2": ()}


def test_a_plugin_gets_what_torch_has_mapped_and_says_what_it_lacks() -> None:
    files = BASE | {
        NET: {
            "needed": ["libcudart.so.12", "libfabric.so.1", "libc.so.6"],
            "needs_versions": {"libc.so.6": ["GLIBC_9"]},
        },
        "/usr/lib64/libc.so.6": {"versions": ["GLIBC_2.34"]},
    }
    seen = learned(Machine(files), Loader(), plugins=OFI)
    assert seen.plugin == NET
    assert {each.name: each.lacks for each in seen.libraries if each.needed_by == NET} == {
        "libfabric.so.1": (),
        "libc.so.6": ("GLIBC_9",),
    }
    assert found(seen)["libfabric.so.1"] == ("", "")


def test_where_nothing_is_installed_nothing_is_asked() -> None:
    assert learned(Machine({}), Loader(), Software({})) == Linking()
