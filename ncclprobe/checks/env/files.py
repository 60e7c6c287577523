"""Files that rule NCCL, its configuration, a topology and plugins, and the libraries that a job would load."""

import re
from collections.abc import Iterator

from ncclprobe.checks import IMAGE
from ncclprobe.checks.env import (
    FILES_GROUP,
    LIBRARIES_GROUP,
    START_GROUP,
    as_evidence,
    evidence,
    jobs_fail,
    jobs_note,
    jobs_warn,
    nccl_job,
    written,
)
from ncclprobe.checks.env.fixtures import ONE_NODE, gpus, setting
from ncclprobe.expect.tables.machines import named as machine_named
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.loader import Loader
from ncclprobe.facts.machine import NamedMachine
from ncclprobe.facts.nccl_conf import SYSTEM_FILE, NamedFiles, Settings, TopologyFile
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Device, Identity, Pci, PcieLink, PciPosition
from ncclprobe.facts.plugins import Linking, Plugin, Plugins, SharedLibrary
from ncclprobe.facts.software import NCCL, Mapped, NcclLibrary, Software, Torch, parse_version
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, Sources, fail, note, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.values import replace
from ncclprobe.nccl.parameters import looks_like_ours
from ncclprobe.nccl.values import read_setting

ETC = f"{SYSTEM_FILE}:1"
_GPU = Device(
    "0000:07:00.0", Identity(0x030200, 0x10DE, 0x2330), PciPosition("pci0000:00", ()), PcieLink(32, 16, 32, 16), 0
)
NOT_NAMED = Absent("no text names a machine")
TREE = Pci({_GPU.address: _GPU})
PLUGIN = Plugin("/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so", "net", "sharp", reachable=True)


_SHELL_WORDS = ("export", "set", "setenv", "declare")


@applies
def topology_named(settings: Settings) -> bool:
    """if NCCL_TOPO_FILE or NCCL_GRAPH_FILE is set."""
    return bool(settings.get("NCCL_TOPO_FILE")) or "NCCL_GRAPH_FILE" in settings.effective


@check(
    group=FILES_GROUP,
    bad=lambda: [(Settings({}, (Setting("NCCL_DEBUG", "INFO", ETC),)),)],
    good=lambda: [
        (Settings({"NCCL_DEBUG": Setting("NCCL_DEBUG", "INFO", "environment")}, (Setting("NCCL_DEBUG", "INFO", ETC),)),)
    ],
    required=True,
)
def conf_files(settings: Settings) -> Iterator[Finding]:
    """A line in an NCCL configuration file does not set the variable it appears to set.

    Right: Every line in the NCCL configuration files sets the variable it names.
    Why: NCCL does not trim: "NCCL_DEBUG = INFO" sets a variable whose name ends in a space, and "export
    NCCL_DEBUG=INFO" sets one whose name begins with export. A line without = sets nothing, and # starts a comment only
    in the first column. NCCL ignores a file that it cannot read. If NCCL_CONF_FILE is set, NCCL does not read
    ~/.nccl.conf. Before 2.30.3, ~ is the home directory in the user database; since then it is $HOME. The environment
    overrides the files (src/misc/param.cc:28).
    Fix: write NAME=value without spaces, in one place only.
    """
    for entry in settings.effective.values():
        if entry.origin == "environment":
            continue
        plain = entry.name.strip("# \t\r")
        word, _, rest = plain.partition(" ")
        if word in _SHELL_WORDS and looks_like_ours(rest.strip()):
            message = f"is not set: the file is not a shell script, and the line defines {entry.name!r}"
            yield jobs_warn(rest.strip(), message, as_evidence(entry))
        elif entry.name != plain and looks_like_ours(plain):
            yield _misnamed(entry, plain)
        elif entry.value is not None and entry.value != entry.value.strip():
            yield jobs_warn(entry.name, f"is {entry.value!r}, including the spaces", as_evidence(entry))
        elif looks_like_ours(entry.name) and " #" in (entry.value or ""):
            yield jobs_warn(entry.name, f"is {entry.value!r}, including the comment", as_evidence(entry))
        elif looks_like_ours(entry.name):
            yield jobs_note(entry.name, f"is set to {entry.value!r} by a configuration file", as_evidence(entry))
    yield from _skipped(settings)
    yield from _overridden(settings)
    yield from _refused(settings)
    if settings.other_home:
        read = ", ".join(file.path for file in settings.files)
        message = (
            f"is not read: $HOME and the user database name different home directories, and this NCCL reads {read}"
        )
        yield jobs_warn(settings.other_home, message, settings.other_home)


def _misnamed(entry: Setting, plain: str) -> Finding:
    """Return a line of a file that defines another name than it shows."""
    if "#" in entry.name:
        message = (
            f"is not a comment, because # is not in the first column: the line defines {entry.name!r}, which no "
            "library reads"
        )
        return jobs_warn(plain, message, as_evidence(entry))
    return jobs_fail(plain, f"is not set: the line defines {entry.name!r}, including the spaces", as_evidence(entry))


def _skipped(settings: Settings) -> Iterator[Finding]:
    for line in settings.skipped:
        words = [word for word in re.split(r"[\s:]+", line.name) if looks_like_ours(word)]
        if words:
            yield jobs_warn(words[0], "is not set: the line has no =, and NCCL skips it", as_evidence(line))


def _overridden(settings: Settings) -> Iterator[Finding]:
    for late in settings.overridden:
        counts = settings.effective.get(late.name)
        if counts and counts.value == late.value and late.value is not None:
            continue
        first = f"{_shown(counts)} of {counts.origin}" if counts else "an earlier definition"
        message = f"{_shown(late)} has no effect: {first} overrides it"
        yield jobs_warn(late.name, message, f"{late.name}={late.value} ({late.origin})")


def _shown(entry: Setting) -> str:
    return "a value that is not recorded" if entry.value is None else repr(entry.value)


def _refused(settings: Settings) -> Iterator[Finding]:
    """Only the file that NCCL_CONF_FILE names has to be there."""
    usual = (SYSTEM_FILE,)
    for file in settings.files:
        if file.refused is None:
            continue
        named = file.path not in usual and not file.path.endswith("/.nccl.conf")
        message = f"NCCL cannot read this file and ignores it silently: {file.refused.why}"
        if named:
            yield jobs_fail(
                "NCCL_CONF_FILE", f"{file.path}: {message}; it does not read ~/.nccl.conf either", file.path
            )
        elif file.refused.refused != "Missing":
            yield jobs_warn(file.path, message, file.path)


@check(
    group=FILES_GROUP,
    slows=True,
    bad=lambda: [
        (setting("NCCL_TOPO_FILE", "/t.xml"), NamedFiles(TopologyFile("/t.xml", addresses=("0000:99:00.0",))), TREE)
    ],
    good=lambda: [
        (setting("NCCL_TOPO_FILE", "/t.xml"), NamedFiles(TopologyFile("/t.xml", addresses=("0000:07:00.0",))), TREE)
    ],
    applies=topology_named,
)
def topo_file(settings: Settings, named_files: NamedFiles, pci: Pci | Absent) -> Iterator[Finding]:
    """NCCL_TOPO_FILE or NCCL_GRAPH_FILE is missing, truncated, or describes another machine.

    Right: The files that NCCL_TOPO_FILE and NCCL_GRAPH_FILE name are complete and describe this machine.
    Why: NCCL reads the positions of GPUs and NICs from NCCL_TOPO_FILE. With a file for another machine type it pairs
    the wrong ones, and the job is slow without any message. If the file that NCCL_GRAPH_FILE names is missing or
    broken, no communicator starts ("Could not open XML graph file", src/graph/xml.cc ncclTopoGetXmlGraphFromFile), and
    the same happens if the variable is set but empty. NCCL accepts only version 1 of both files ("has wrong version").
    Fix: use the file for this machine type, or unset the variable.
    """
    yield from _graphs(settings, named_files.graph)
    found, shown = named_files.topology, evidence(settings, "NCCL_TOPO_FILE")
    if found is None:
        return
    if isinstance(found, Absent):
        yield _unread("NCCL_TOPO_FILE", found, shown)
        return
    if not found.whole:
        yield jobs_fail("NCCL_TOPO_FILE", "is truncated: the element <system … </system> is incomplete", shown)
        return
    if found.version not in ("1", ""):
        yield jobs_fail("NCCL_TOPO_FILE", f"has version {found.version}, but NCCL reads only version 1", shown)
        return
    here = set() if isinstance(pci, Absent) else {address.lower() for address in pci.devices}
    real = [address for address in found.addresses if not address.startswith("ffff:")]
    strange = [address for address in real if address not in here]
    if here and strange:
        message = f"lists {', '.join(strange)}, which this machine does not have"
        yield jobs_warn("NCCL_TOPO_FILE", message, shown)


_MADE_FOR = {
    "ndv2": ("V100",), "p3dn": ("V100",), "ndv4": ("A100",), "p4d": ("A100",), "p4de": ("A100",),
    "ndv5": ("H100", "H200"), "p5": ("H100",), "p5e": ("H200",), "p5en": ("H200",), "p6": ("B200", "B300"),
    **{name.lower(): (name,) for name in ("V100", "A100", "H100", "H200", "H800", "B200", "B300", "GB200", "GB300")},
}  # fmt: skip
"""Words in names of topology files of Azure, AWS and others, and the GPUs of the machine type that they are of."""


@check(
    group=FILES_GROUP,
    slows=True,
    bad=lambda: [(setting("NCCL_TOPO_FILE", "/opt/microsoft/ndv4-topo.xml"), gpus(8))],
    good=lambda: [(setting("NCCL_TOPO_FILE", "/opt/microsoft/ndv5-topo.xml"), gpus(8))],
    last=True,
    applies=topology_named,
)
def topo_name(
    settings: Settings, gpus: Gpus | Absent, described: NamedMachine | Absent = NOT_NAMED
) -> Iterator[Finding]:
    """NCCL_TOPO_FILE is named after a machine type with other GPUs.

    Right: NCCL_TOPO_FILE is not named after a machine type with other GPUs.
    Why: NCCL reads the positions of GPUs and NICs from this file. With a file for another machine type it pairs the
    wrong ones, and the job is slow without any message.
    Fix: use the file for this machine type, or unset the variable.
    """
    words = re.findall(r"[a-z0-9]+", (settings.get("NCCL_TOPO_FILE") or "").rpartition("/")[2].lower())
    named = next((_MADE_FOR[word] for word in words if word in _MADE_FOR), ())
    machine = machine_named(described.type) if isinstance(described, NamedMachine) and described.type else None
    if isinstance(gpus, Absent) and machine is None:
        raise Unlearned(gpus.why, gpus.refused)
    here = sorted({gpu.name for gpu in gpus.all if gpu.name} if isinstance(gpus, Gpus) else ())
    here = here or list(machine.match.gpu_names[:1] if machine else ())
    if named and here and not any(name in gpu for name in named for gpu in here):
        message = f"is named after a machine with {' or '.join(named)}; the GPUs here are {', '.join(here)}"
        yield jobs_warn("NCCL_TOPO_FILE", message, evidence(settings, "NCCL_TOPO_FILE"))


def _graphs(settings: Settings, found: str | Absent | None) -> Iterator[Finding]:
    shown = evidence(settings, "NCCL_GRAPH_FILE")
    if isinstance(found, Absent):
        yield _unread("NCCL_GRAPH_FILE", found, shown)
    elif found:
        yield jobs_fail("NCCL_GRAPH_FILE", f"{found}: no communicator starts", shown)


def _unread(name: str, found: Absent, shown: Sources) -> Finding:
    """Return that a file cannot be read. Raises Unlearned if that is not known: it was asked too late, or never."""
    if found.refused not in ("Missing", "Denied", "Failed"):
        raise Unlearned(f"{name}: {found.why}")
    return jobs_fail(name, f"cannot be read: {found.why}", shown)


@check(
    group=LIBRARIES_GROUP,
    slows=True,
    bad=lambda: [(setting("NCCL_NET_PLUGIN", "aws-ofi"), NamedFiles(), Plugins((PLUGIN,)), Loader())],
    good=lambda: [(setting("NCCL_NET_PLUGIN", "libnccl-net.so"), NamedFiles(), Plugins((PLUGIN,)), Loader())],
    applies=nccl_job,
)
def plugin_path(settings: Settings, named_files: NamedFiles, plugins: Plugins, loader: Loader) -> Iterator[Finding]:
    """The loader cannot find a plugin that a setting names.

    Right: The loader finds every plugin that a setting names.
    Why: if NCCL cannot open a plugin, it prints an INFO line at most and continues without the plugin's network or
    tuning (nccl#1634). Collectives in the network's switches (NCCL_COLLNET_ENABLE) exist only in NVIDIA's SHARP plugin.
    Without it NCCL looks for them at each start and continues without them.
    Fix: give the full path of the library, or put its folder on LD_LIBRARY_PATH.
    """
    known = {plugin.path.rpartition("/")[2] for plugin in plugins.all if plugin.reachable}
    for path, there in named_files.libraries.items():
        if isinstance(there, Absent):
            yield note(path, f"it is unknown if the file exists: {there.why}", evidence=path)
        elif not there and path.startswith("/"):
            yield jobs_fail(path, "is named as a plugin, but the file does not exist", evidence(settings, *_VARIABLES))
        elif not there:
            message = f"is named as a plugin, but is not on the loader's search path: {', '.join(loader.folders())}"
            yield jobs_warn(path, message, evidence(settings, *_VARIABLES))
    if read_setting(settings, "NCCL_COLLNET_ENABLE", 0) != 0 and not _may_have_collnet(plugins, settings):
        message = "enables collectives in the network's switches, but no plugin that the loader finds provides them"
        yield jobs_note("NCCL_COLLNET_ENABLE", message, evidence(settings, "NCCL_COLLNET_ENABLE"))
    for variable, kind in _VARIABLES.items():
        for name in (settings.get(variable) or "").split(","):
            if not name or "/" in name or name in named_files.libraries or name.lower() in _NO_FILE:
                continue
            if not {name, f"libnccl-{kind}-{name}.so"} & known:
                if isinstance(loader.cached, Absent) and loader.cached.refused == "NotCaptured":
                    raise Unlearned(f"{variable}: {loader.cached.why}", loader.cached.refused)
                shown = evidence(settings, variable)
                yield jobs_warn(variable, f"{name!r} matches no plugin in the loader's folders", shown)


def _may_have_collnet(plugins: Plugins, settings: Settings) -> bool:
    """Return whether a plugin is SHARP's, or a site's own, whose flavour is not known."""
    return bool(settings.get("NCCL_NET_PLUGIN")) or any(
        plugin.reachable and plugin.kind in ("", "net") and plugin.flavour in ("", "sharp") for plugin in plugins.all
    )


_VARIABLES = {
    "NCCL_NET_PLUGIN": "net",
    "NCCL_TUNER_PLUGIN": "tuner",
    "NCCL_PROFILER_PLUGIN": "profiler",
    "NCCL_ENV_PLUGIN": "env",
}
_NO_FILE = ("none", "static_plugin", "internal")


_BY_HAND = ("single", "options")
"""Started by a person, who may start the job from another environment."""

SYSTEM = (NcclLibrary((2, 19, 3), "/usr/lib/libnccl.so.2.19.3", "/usr/lib/libnccl.so.2.19.3"),)
WHEEL = NcclLibrary((2, 27, 3), "nvidia-nccl-cu12", "/venv/nvidia/nccl/lib/libnccl.so.2")
CUDA = Torch("/venv/torch", "12.8")
PACKAGES = {"torch": "2.8.0", "nvidia-nccl-cu12": "2.27.3"}
FOUND = Software(PACKAGES, (WHEEL,), mapped=None, torch=CUDA)


@applies
def gpu_seen(job: Job, gpus: Gpus | Absent) -> bool:
    """to jobs on GPUs, if there is a GPU."""
    return job.backend == "nccl" and isinstance(gpus, Gpus)


@check(
    group=START_GROUP,
    slows=True,
    bad=lambda: [(FOUND, ONE_NODE, Job())],
    good=lambda: [(replace(FOUND, mapped=Mapped("/venv/torch/lib/libtorch_cuda.so", "static")), ONE_NODE, Job())],
    required=True,
    applies=gpu_seen,
)
def nccl(software: Software, launch: Launch | Absent, job: Job) -> Iterator[Finding]:
    """A job started here finds no usable NCCL, or one older than torch was built with.

    Right: A job started here finds the NCCL that torch was built with, or its own.
    Why: a torch built without CUDA has no NCCL ("Distributed package doesn't have NCCL built in"). If NCCL's library is
    missing, `import torch` fails. An older NCCL found through LD_LIBRARY_PATH lacks functions that torch calls, or
    differs from the NCCL of other nodes.
    Fix: install a CUDA build of torch in the job's environment (pytorch.org/get-started), run the doctor in that
    environment, and remove folders with another libnccl from LD_LIBRARY_PATH.
    """
    torch, mapped = software.torch, software.mapped
    if isinstance(mapped, Absent):
        raise Unlearned(mapped.why)
    if isinstance(torch, Torch) and torch.cuda is None:
        message = f"{software.packages.get('torch', '')} was built without CUDA, and so without NCCL".strip()
        rest = f"; a program without torch would load {mapped.path}" if mapped else ""
        yield (warn if mapped else fail)("torch", message + rest, evidence=f"{torch.folder}/version.py", **IMAGE)
    elif mapped:
        yield from _older(software, mapped)
    elif isinstance(torch, Torch):
        message = "torch needs it, but the loader cannot find it"
        yield fail(NCCL, message, evidence=f"{torch.folder}/lib/libtorch_cuda.so", **IMAGE)
    elif isinstance(launch, Launch) and launch.kind not in _BY_HAND:
        message = f"neither torch nor {NCCL} is in the environment in which {launch.kind} started this process"
        yield fail(NCCL, message, evidence=_ALL, **IMAGE)
    elif job.local:
        message = "neither this library nor torch is in this environment; a job needs its own"
        yield note(NCCL, message, evidence=_ALL)
    else:
        raise Unlearned(f"neither torch nor {NCCL} is in this environment: run the doctor in the job's environment")


_NEW = replace(FOUND, torch=Torch("/venv/torch", "13.0"))
CUDA_12 = gpus(2)


@check(
    group=START_GROUP,
    bad=lambda: [(_NEW, CUDA_12)],
    good=lambda: [(_NEW, replace(CUDA_12, cuda=(13, 0)))],
    required=True,
    applies=gpu_seen,
)
def torch_driver(software: Software, gpus: Gpus) -> Iterator[Finding]:
    """torch was built for a newer CUDA than the driver supports.

    Right: The driver's CUDA is at least as new as the one torch was built for.
    Why: a driver runs every minor version of its CUDA release, but no later major version. torch then reports "The
    NVIDIA driver on your system is too old", and no rank has a GPU (docs.nvidia.com/deploy/cuda-compatibility).
    Fix: install a torch built for the driver's CUDA (pytorch.org/get-started), upgrade the driver, or put NVIDIA's
    cuda-compat package on LD_LIBRARY_PATH.
    """
    torch = software.torch
    if not isinstance(torch, Torch) or not isinstance(torch.cuda, str):
        return
    if int(torch.cuda.partition(".")[0]) > gpus.cuda[0]:
        message = (
            f"is built for CUDA {torch.cuda}, but the driver {gpus.driver} supports only {gpus.cuda[0]}.{gpus.cuda[1]}"
        )
        yield fail("torch", message, evidence=f"{torch.folder}/version.py", **IMAGE)


_ALL = "installed distributions and the loader's folders"


def _older(software: Software, mapped: Mapped) -> Iterator[Finding]:
    """Yield a finding if the library that is mapped is older than the wheel that torch brought."""
    wheels = [version for name, version in software.packages.items() if name.startswith("nvidia-nccl")]
    version = software.nccl_version
    if version and len(wheels) == 1 and version < parse_version(wheels[0]):
        message = f"{written(version)}, found through {mapped.why}, although torch installed {wheels[0]}"
        yield warn(mapped.path, message, evidence=mapped.why, **IMAGE)


CUDART = SharedLibrary(
    "libcudart.so.12", "/venv/torch/lib/libtorch_cuda.so", "/venv/nvidia/lib/libcudart.so.12", "DT_RPATH"
)
OURS = SharedLibrary(NCCL, CUDART.needed_by, WHEEL.path, "DT_RPATH")
_OLD_NCCL = replace(OURS, path=SYSTEM[0].path, why="LD_LIBRARY_PATH", others=(WHEEL.path,))


@check(
    group=LIBRARIES_GROUP,
    slows=True,
    bad=lambda: [(Linking((CUDART, replace(_OLD_NCCL, lacks=("ncclCommWindowRegister",)))),)],
    good=lambda: [(Linking((CUDART, _OLD_NCCL)),)],
    applies=gpu_seen,
)
def libraries(linking: Linking) -> Iterator[Finding]:
    """A library that torch, NCCL or its plugin needs is missing or lacks functions.

    Right: Every library that torch, NCCL and its plugin need is present and complete.
    Why: torch or NCCL then fails at startup with "cannot open shared object file", "undefined symbol" or "version
    `GLIBC_2.38' not found". A plugin is skipped silently, and NCCL continues with its own transports (on EFA, with
    TCP).
    Fix: install the missing library, or a plugin built for this system. Remove folders that hide a newer library from
    LD_LIBRARY_PATH and LD_PRELOAD (`LD_DEBUG=libs python -c 'import torch'` shows each choice).
    """
    for each in linking.libraries:
        by = each.needed_by.rpartition("/")[2]
        tell = warn if each.needed_by == linking.plugin else fail
        after = ", so NCCL continues without the plugin" if each.needed_by == linking.plugin else ""
        if not each.path:
            yield tell(
                each.name, f"{by} needs it, but the loader cannot find it{after}", evidence=each.needed_by, **IMAGE
            )
        elif each.lacks:
            message = f"{each.path}, found through {each.why}, lacks {', '.join(each.lacks)}, which {by} needs{after}"
            yield tell(each.name, message, evidence=each.needed_by, **IMAGE)
        elif each.others and each.why in ("LD_LIBRARY_PATH", "LD_PRELOAD"):
            yield note(
                each.name,
                f"{each.path}, found through {each.why}, hides {', '.join(each.others)}",
                evidence=each.needed_by,
            )
