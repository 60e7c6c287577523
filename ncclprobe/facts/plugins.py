"""NCCL's plugins on this machine, and the libraries that the dynamic loader would map for torch, NCCL and them.

Networks (OFI, GPUDirect-TCPX, SHARP …), tuners, profilers. Every user may list the folders. A plugin in a folder that
the loader does not search has no effect: NCCL opens ``libnccl-net.so`` by its bare name, and silently falls back to
sockets if it finds none.

The loader's order is ld.so(8)'s: LD_PRELOAD, DT_RPATH of the library and of those that loaded it, LD_LIBRARY_PATH,
DT_RUNPATH, its cache, its default folders. A library that is already mapped serves every later request for its name.
Needs no privileges; nothing is run or mapped. Not covered: folders for specific processors (glibc-hwcaps), dlmopen(3).
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from ncclprobe.facts.environment import Environment
from ncclprobe.facts.field import attempt, learn
from ncclprobe.facts.loader import DEFAULT_FOLDERS, Elf, Loader, elf, libraries, steps, usr
from ncclprobe.facts.software import NCCL, Mapped, Software, Torch
from ncclprobe.host import Host
from ncclprobe.model import bounds
from ncclprobe.model.errors import Denied, HostError, Missing, NotCaptured, ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

_KINDS = ("net", "tuner", "profiler", "env", "gin")
_NAME = r"libnccl[-_].*\.so(\.\d+)*"
_FOLDERS = (
    "/opt/amazon/ofi-nccl/lib",  # of Amazon's EFA installer, as are the next two
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/aws-ofi-nccl/lib",  # NeMo-RL#2359
    "/opt/aws-ofi-nccl/lib",
    "/usr/local/nvidia/lib64",  # Google's installers of GPUDirect-TCPX and -TCPXO (container-engine-accelerators)
    "/usr/local/tcpx/lib64",
    "/usr/local/gib/lib64",
    "/opt/hpcx/nccl_rdma_sharp_plugin/lib",  # NVIDIA HPC-X, NCCL-RDMA-SHARP Plugins
    "/opt/hpcx/ncclnet_plugin/lib",
)
_FLAVOURS = {  # by what the file or one of its folders is called, the more special first
    "ofi": "ofi",
    "tcpxo": "tcpxo",
    "fastrak": "tcpxo",
    "tcpx": "tcpx",
    "gib": "gib",
    "sharp": "sharp",
    "ucx": "ucx",
}
_BY_NAME = {
    "libfabric": "ofi",
    "gpudirecttcpx": "tcpx",
    "fastrak": "tcpxo",
    "gib": "gib",
    "ibext": "sharp",
    "ucx": "ucx",
}
"""Flavours by the plugin's name for its network: see NAMES of ncclprobe/nccl/networks.py for the sources."""
VERSION_MARKS = {  # what stands before the version among a plugin's constants
    "ofi": "aws-ofi-nccl ",  # src/nccl_ofi_net.cpp: "Initializing " PACKAGE_STRING
    "tcpx": "NET/GPUDirectTCPX ver. ",  # its log: ver. 3.1.8.
    "gib": "Initializing gIB ",
}
_VERSION = r"v?\d{1,4}(?:\.\d{1,4}){1,3}(?:-[\w.]{1,20})?"
_NAMED_BY = ("NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_ENV_PLUGIN")


class Plugin(Struct, frozen=True):
    """One plugin file. `kind` is net, tuner, profiler, env or gin; `flavour` is ofi, tcpx, sharp … if its path shows
    it.

    `reachable`: the loader, and so NCCL, finds it by its bare name. If NCCL opens the file, by its usual name or by a
    variable: `names` and `interfaces` (8 for ``v8``) that it exports to NCCL, newest first, and `version`, if the
    file's constants contain one.
    """

    path: str
    kind: str
    flavour: str
    reachable: bool
    names: tuple[str, ...] = ()
    interfaces: tuple[int, ...] = ()
    version: str = ""

    def told(self) -> str:
        """Return the file's own name and version in one line, without a name that a site chose."""
        name = self.names[0] if self.flavour and self.names else ""
        newest = f"v{self.interfaces[0]}" if self.interfaces else ""
        return ", ".join(filter(None, (f"{name} {newest}".strip(), self.version)))


class Plugins(Struct, frozen=True):
    """Every plugin file found, in the loader's order. `shown`: a folder answered, as none does for a pasted text."""

    all: tuple[Plugin, ...] = ()
    shown: bool = True


@collector
def plugins(host: Host, loader: Loader, environment: Environment | Absent) -> Plugins:
    """Read the loader's folders, vendors' usual ones and those named in variables, and the constants of opened files.

    Needs no privileges.
    """
    variables = {} if isinstance(environment, Absent) else environment.variables
    searched = loader.folders()
    folders = dict.fromkeys([*searched, *_FOLDERS, *_folders_in_variables(variables)])
    held = {folder: _names(host, folder) for folder in folders}
    found = [
        plugin_at(f"{folder}/{name}", folder in searched) for folder, names in held.items() for name in names or ()
    ]
    opened = tuple(add_constants(host, each) if is_opened(each, variables) else each for each in found)
    return Plugins(opened, shown=any(names is not None for names in held.values()))


def is_opened(plugin: Plugin, variables: Mapping[str, str | None]) -> bool:
    """Return whether NCCL opens the plugin: by its usual name, or because a variable names it."""
    values = (value for name in _NAMED_BY for value in (variables.get(name) or "").split(",") if value)
    names = {f"libnccl-{kind}.so" for kind in _KINDS}.union(*({v, f"libnccl-{plugin.kind}-{v}.so"} for v in values))
    return plugin.path in names or (plugin.reachable and PurePosixPath(plugin.path).name in names)


def add_constants(host: Host, plugin: Plugin) -> Plugin:
    """Add the file's constants to the plugin; unchanged if the file has none."""
    said = attempt(lambda: json.loads(host.ask("elf_objects", plugin.path, "nccl")))
    known = said if isinstance(said, dict) else {}
    kinds = {name: _kind_of(name) for name in map(str, known)}
    of = {int(n.rpartition("_v")[2]): n for n, kind in kinds.items() if kind and plugin.kind in ("", kind)}
    interfaces = tuple(sorted(of, reverse=True))
    names = tuple(dict.fromkeys(str(known[of[number]]) for number in interfaces))
    by_name = (flavour for mark, flavour in _BY_NAME.items() if any(mark in name.lower() for name in names))
    flavour = plugin.flavour or next(by_name, "")
    kind = plugin.kind or (kinds[of[interfaces[0]]] if interfaces else "")
    return Plugin(plugin.path, kind, flavour, plugin.reachable, names, interfaces, _version(host, plugin.path, flavour))


def _kind_of(symbol: str) -> str:
    """Return net for ``ncclNetPlugin_v8``; empty if the symbol is not a plugin's."""
    found = re.fullmatch(r"nccl([A-Z][a-z]{2,8})(?:Plugin)?_v\d{1,4}", symbol)
    return found[1].lower() if found and found[1].lower() in _KINDS else ""


def _version(host: Host, path: str, flavour: str) -> str:
    mark = VERSION_MARKS.get(flavour)
    said = attempt(lambda: json.loads(host.ask("elf_texts", path, mark))) if mark else ()
    texts = said if isinstance(said, list) else ()
    found = (re.match(_VERSION, str(text).removeprefix(mark or "")) for text in texts)
    return next((match[0] for match in found if match), "")


def _folders_in_variables(variables: Mapping[str, str | None]) -> Iterator[str]:
    """Yield the folders of plugins that variables name by an absolute path."""
    for variable in _NAMED_BY:
        for value in (variables.get(variable) or "").split(","):
            if value.startswith("/"):
                yield usr(str(PurePosixPath(value).parent))


def _names(host: Host, folder: str) -> list[str] | None:
    """Return the plugins in a folder; None: a pasted text does not show the folder."""
    try:
        return [name for name in libraries(host, folder) if re.fullmatch(_NAME, name)]
    except NotCaptured:
        return None
    except HostError:  # a folder that does not answer hides what it has, and no more
        return []


def plugin_at(path: str, reachable: bool) -> Plugin:
    """Return the plugin that the name of a library tells."""
    words = re.split(r"[-_.]", PurePosixPath(path).name)
    kind = next((word for word in words if word in _KINDS), "")
    flavour = next((name for mark, name in _FLAVOURS.items() if re.search(rf"[-_./]{mark}[-_./]", path)), "")
    return Plugin(path, kind, flavour, reachable)


OURS = ("libnccl", "libcudart.so.", "libnvshmem_host.so.", "libfabric.so.", "libucp.so.", "libucs.so.", "libuct.so.")
"""Prefixes of library names that matter; for a plugin, every needed library matters."""
_CACHED = (
    *OURS,
    "libc.so.6",
    "libstdc++.so.6",
    "libm.so.6",
    "libgcc_s.so.1",
    "libhwloc.so.",
    "libnl-",
    "libib",
    "libml",
)
_C = ("ld-linux", "libc.so", "libdl.so", "libgcc_s.so", "libm.so", "libpthread.so", "librt.so", "libstdc++.so")
_FOUND_BY_US = ("/etc/ld.so.cache", "the loader's default folders")
_MOST_LACKING = 8


class SharedLibrary(Struct, frozen=True):
    """A library that another one needs. `path`: the file mapped for it; empty if the loader finds none.

    `why` as in :class:`~ncclprobe.facts.software.Mapped`. `lacks`: symbol versions (``GLIBC_2.34``) or NCCL symbols
    that `needed_by` requires and the file lacks. `others` are further files of that name, which it hides.
    """

    name: str
    needed_by: str
    path: str
    why: str = ""
    lacks: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


class Linking(Struct, frozen=True):
    """The mapped `libraries`: torch's, NCCL's and the plugin's. `plugin`: NCCL's network plugin; empty: none."""

    libraries: tuple[SharedLibrary, ...] = ()
    plugin: str = ""


class _Needer(Struct, frozen=True):
    """A library whose needs are resolved, and the DT_RPATH of those that loaded it."""

    path: str
    own: Elf
    wanted: tuple[str, ...]
    inherited: tuple[str, ...] = ()

    def search(self) -> Elf:
        """Return its dynamic section with the search path that applies."""
        return self.own if self.own.runpath else self.own._replace(rpath=(*self.own.rpath, *self.inherited))


@collector
def linking(
    host: Host, loader: Loader, software: Software, plugins: Plugins, environment: Environment | Absent
) -> Linking:
    """Read the dynamic sections of torch, NCCL and the plugin, and search the loader's folders for what they need."""
    plugin = _chosen_plugin_file(plugins, environment)
    needers = [path for path in (*_torch_libraries(software), _nccl(software), plugin) if path]
    if not needers:
        return Linking()
    cached = [(str(name), str(file)) for name, file in json.loads(host.ask("ld_cache", *_CACHED))]
    mapped: dict[str, SharedLibrary] = {}
    found: list[SharedLibrary] = []
    rpath: tuple[str, ...] = ()
    for path in needers:
        needer = _needer(host, path, rpath, everything=path == plugin)
        if needer:
            rpath = needer.search().rpath if not needer.own.runpath else rpath
            for library in _resolve(host, needer, loader, cached, mapped):
                if library.name not in mapped or library.lacks:
                    found.append(library)
                mapped.setdefault(library.name, library)
    return Linking(tuple(found), plugin)


def _torch_libraries(software: Software) -> tuple[str, ...]:
    if not isinstance(software.torch, Torch) or software.torch.cuda is None:
        return ()
    return tuple(f"{software.torch.folder}/lib/{name}" for name in ("libtorch_cuda.so", "libtorch_nvshmem.so"))


def _nccl(software: Software) -> str:
    mapped = software.mapped
    return mapped.path if isinstance(mapped, Mapped) and mapped.why != "static" else ""


def _chosen_plugin_file(plugins: Plugins, environment: Environment | Absent) -> str:
    """Return the network plugin that NCCL would open; empty if it is not among the files found."""
    named = "" if isinstance(environment, Absent) else (environment.get("NCCL_NET_PLUGIN") or "").split(",")[0]
    names = {named, f"libnccl-net-{named}.so"} if named else {"libnccl-net.so"}
    for each in plugins.all:
        if each.path == named or (each.reachable and PurePosixPath(each.path).name in names):
            return each.path
    return ""


def _needer(host: Host, path: str, inherited: tuple[str, ...], everything: bool) -> _Needer | None:
    try:
        own = elf(host.ask("elf", path), path)
    except Missing:
        return None
    versioned = {name for name, _ in own.needs_versions}
    wanted = [name for name in own.needed if everything or name.startswith(OURS) or name in versioned]
    return _Needer(path, own, tuple(wanted[: bounds.NEEDED_LIBRARIES]), inherited)


def _resolve(
    host: Host, needer: _Needer, loader: Loader, cached: Sequence[tuple[str, str]], mapped: dict[str, SharedLibrary]
) -> Iterator[SharedLibrary]:
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in needer.wanted}
    for name, path, why in _places(host, needer, loader, cached):
        if usr(path) not in [usr(other) for other, _ in found[name]]:
            found[name].append((path, why))
    for name, files in found.items():
        if name in mapped and mapped[name].path:
            files = [(mapped[name].path, mapped[name].why)]
        if not files and name.startswith(_C):  # it is there, for this interpreter runs: where, its build knows
            continue
        path, why = files[0] if files else ("", "")
        others = tuple(path for path, _ in files[1:]) if name.startswith(OURS) else ()
        lacks = _lacks(host, needer, name, path, why) if path else ()
        yield SharedLibrary(name, needer.path, path, why, lacks, others)


def _places(
    host: Host, needer: _Needer, loader: Loader, cached: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, str, str]]:
    """Yield the name, file and reason of every candidate file, in the loader's order."""
    for file in loader.preload:
        yield from ((n, file, "LD_PRELOAD") for n in needer.wanted if PurePosixPath(file).name.startswith(n))
    for step in steps(loader, needer.search()):
        for folder in step.folders:
            yield from ((name, f"{folder}/{name}", step.name) for name in _existing_names(host, folder, needer.wanted))
    yield from ((name, file, _FOUND_BY_US[0]) for name, file in cached if name in needer.wanted)
    for folder in DEFAULT_FOLDERS:
        yield from (
            (name, f"{folder}/{name}", _FOUND_BY_US[1]) for name in _existing_names(host, folder, needer.wanted)
        )


def _existing_names(host: Host, folder: str, names: Sequence[str]) -> list[str]:
    """Return the `names` that exist in a folder; none if it is missing or unreadable, because the loader skips it."""
    try:
        said = json.loads(host.ask("among", folder, *names)) if names else []
    except (Missing, Denied):
        return []
    if not isinstance(said, list):
        raise ParseError(f"{folder}: {said!r:.80}")
    return [name for name in map(str, said) if name in names]


def _lacks(host: Host, needer: _Needer, name: str, path: str, why: str) -> tuple[str, ...]:
    """Return the required versions and NCCL symbols that the file lacks; empty for a file without such entries."""
    asked = dict(needer.own.needs_versions).get(name, ())
    offered = learn(host, lambda text: elf(text, path).versions, "elf", path) if asked else ()
    missing = [each for each in asked if offered and not isinstance(offered, Absent) and each not in offered]
    if name == NCCL and why not in ("DT_RPATH", "DT_RUNPATH"):  # the wheel that torch was built for has all of them
        missing += _missing_symbols(host, needer.path, path)
    return tuple(missing[:_MOST_LACKING])


def _missing_symbols(host: Host, needer: str, path: str) -> list[str]:
    """Return NCCL's functions that `needer` calls and the file at `path` lacks; empty if either is unknown."""
    asked = attempt(lambda: json.loads(host.ask("elf_symbols", needer, "nccl"))["undefined"])
    offered = attempt(lambda: json.loads(host.ask("elf_symbols", path, "nccl"))["defined"])
    if isinstance(asked, Absent) or isinstance(offered, Absent):
        return []
    return sorted(set(map(str, asked)) - set(map(str, offered)))
