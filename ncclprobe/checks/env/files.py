"""Files that rule NCCL: its configuration, a topology, and plugins."""

from collections.abc import Iterator

from ncclprobe.checks.env import as_evidence, evidence, jobs_fail, jobs_note, jobs_warn, nccl_job
from ncclprobe.checks.env.fixtures import PLAIN, having, setting
from ncclprobe.facts.loader import Loader
from ncclprobe.facts.named_files import NamedFiles, TopologyFile
from ncclprobe.facts.nccl_conf import SYSTEM_FILE, ConfFile, Settings
from ncclprobe.facts.pci import Device, Identity, Pci, PcieLink, PciPosition
from ncclprobe.facts.plugins import Plugin, Plugins
from ncclprobe.model.findings import Finding, note
from ncclprobe.model.registry import applies, check
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent
from ncclprobe.nccl.parameters import looks_like_ours

_ETC = f"{SYSTEM_FILE}:1"
_GPU = Device(
    "0000:07:00.0", Identity(0x030200, 0x10DE, 0x2330), PciPosition("pci0000:00", ()), PcieLink(32, 16, 32, 16), 0
)
_TREE = Pci({_GPU.address: _GPU})
_PLUGIN = Plugin("/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so", "net", "sharp", reachable=True)


@applies
def topology_named(settings: Settings) -> bool:
    """where NCCL_TOPO_FILE is set."""
    return bool(settings.get("NCCL_TOPO_FILE"))


@check(
    bad=lambda: [
        (setting("NCCL_DEBUG ", " INFO", _ETC),),
        (setting("  #NCCL_DEBUG", "INFO", _ETC),),
        (Settings({}, (Setting("NCCL_DEBUG", "INFO", _ETC),)),),
        (Settings({}, (), (ConfFile("/etc/job.conf", Absent("no such file", "Missing")), ConfFile(SYSTEM_FILE))),),
        (Settings({}, (), (ConfFile(SYSTEM_FILE, Absent("permission denied", "Denied")),)),),
        (Settings({}, (), (ConfFile("/root/.nccl.conf"),), other_home="/home/me/.nccl.conf"),),
    ],
    good=lambda: [
        (setting("NCCL_DEBUG", "INFO", _ETC),),
        (setting("NCCL_DEBUG", "INFO"),),
        (Settings({}, (), (ConfFile("/root/.nccl.conf", Absent("no such file", "Missing")), ConfFile(SYSTEM_FILE))),),
        (
            Settings(
                {"NCCL_DEBUG": Setting("NCCL_DEBUG", "INFO", "environment")}, (Setting("NCCL_DEBUG", "INFO", _ETC),)
            ),
        ),
    ],
    required=True,
)
def conf_files(settings: Settings) -> Iterator[Finding]:
    """A line of an NCCL configuration file does not set what it names.

    Right: Every line of the NCCL configuration files sets what it names.
    Why: NCCL trims nothing: "NCCL_DEBUG = INFO" sets a variable whose name ends in a blank, and # is a comment in the
    first column only. NCCL ignores a file that it cannot read, and with NCCL_CONF_FILE set also ~/.nccl.conf, where ~
    is the home of the password file before 2.30.3 and $HOME since. The environment beats the files
    (src/misc/param.cc:28).
    Fix: write NAME=value without blanks, in one place.
    """
    for entry in settings.effective.values():
        if entry.origin == "environment":
            continue
        plain = entry.name.strip("# \t\r")
        if entry.name != plain and looks_like_ours(plain):
            yield _misnamed(entry, plain)
        elif entry.value is not None and entry.value != entry.value.strip():
            yield jobs_warn(entry.name, f"is {entry.value!r}, including blanks", as_evidence(entry))
        elif looks_like_ours(entry.name):
            yield jobs_note(entry.name, f"is set by a file: {entry.value}", as_evidence(entry))
    yield from _overridden(settings)
    yield from _refused(settings)
    if settings.other_home:
        read = ", ".join(file.path for file in settings.files)
        message = f"is not read: $HOME and the password file disagree, and this NCCL reads {read}"
        yield jobs_warn(settings.other_home, message, settings.other_home)


def _misnamed(entry: Setting, plain: str) -> Finding:
    """Return a line of a file that defines another name than it shows."""
    if "#" in entry.name:
        message = (
            f"is not a comment, because # is not in the first column: it defines {entry.name!r}, which no library reads"
        )
        return jobs_warn(plain, message, as_evidence(entry))
    return jobs_fail(plain, f"is not set: the line defines {entry.name!r}, including blanks", as_evidence(entry))


def _overridden(settings: Settings) -> Iterator[Finding]:
    for late in settings.overridden:
        counts = settings.effective.get(late.name)
        if counts and counts.value == late.value and late.value is not None:
            continue
        first = f"{_shown(counts)} of {counts.origin}" if counts else "an earlier definition"
        message = f"{_shown(late)} has no effect: {first} comes first"
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
        message = f"NCCL cannot read it, and does not say so: {file.refused.why}"
        if named:
            yield jobs_fail("NCCL_CONF_FILE", f"{file.path}: {message}; nor does it read ~/.nccl.conf", file.path)
        elif file.refused.refused != "Missing":
            yield jobs_warn(file.path, message, file.path)


@check(
    slows=True,
    bad=lambda: [
        (setting("NCCL_TOPO_FILE", "/none.xml"), NamedFiles(Absent("no such file", "Missing")), _TREE),
        (setting("NCCL_TOPO_FILE", "/t.xml"), NamedFiles(TopologyFile("/t.xml", whole=False)), _TREE),
        (setting("NCCL_TOPO_FILE", "/t.xml"), NamedFiles(TopologyFile("/t.xml", addresses=("0000:99:00.0",))), _TREE),
    ],
    good=lambda: [
        (setting("NCCL_TOPO_FILE", "/t.xml"), NamedFiles(TopologyFile("/t.xml", addresses=("0000:07:00.0",))), _TREE),
        (setting("NCCL_TOPO_FILE", "/t.xml"), NamedFiles(TopologyFile("/t.xml")), Absent("no PCI tree")),
        (setting("NCCL_TOPO_FILE", "/t.xml"), NamedFiles(TopologyFile("/t.xml", addresses=("ffff:ff:01.0",))), _TREE),
    ],
    applies=topology_named,
)
def topo_file(settings: Settings, named_files: NamedFiles, pci: Pci | Absent) -> Iterator[Finding]:
    """NCCL_TOPO_FILE is missing, truncated, or describes another machine.

    Right: NCCL_TOPO_FILE is complete and describes this machine.
    Why: NCCL takes the places of GPUs and NICs from it; with the file of another machine type it pairs the wrong ones,
    and the job is slow without any message.
    Fix: use the file of this machine type, or unset the variable.
    """
    found, shown = named_files.topology, evidence(settings, "NCCL_TOPO_FILE")
    if found is None:
        return
    if isinstance(found, Absent):
        yield jobs_fail("NCCL_TOPO_FILE", f"cannot be read: {found.why}", shown)
        return
    if not found.whole:
        yield jobs_fail("NCCL_TOPO_FILE", "is not a whole topology: <system … </system> is incomplete", shown)
        return
    here = set() if isinstance(pci, Absent) else {address.lower() for address in pci.devices}
    real = [address for address in found.addresses if not address.startswith("ffff:")]
    strange = [address for address in real if address not in here]
    if here and strange:
        message = f"names {', '.join(strange)}, which this machine does not have"
        yield jobs_warn("NCCL_TOPO_FILE", message, shown)


@check(
    slows=True,
    bad=lambda: [
        (
            setting("NCCL_NET_PLUGIN", "/none/libnccl-net.so"),
            NamedFiles(libraries={"/none/libnccl-net.so": False}),
            Plugins(),
            Loader(),
        ),
        (setting("NCCL_NET_PLUGIN", "aws-ofi"), NamedFiles(), Plugins((_PLUGIN,)), Loader()),
        (setting("NCCL_TUNER_PLUGIN", "libnccl-tuner-x.so"), NamedFiles(), Plugins(), Loader()),
    ],
    good=lambda: [
        (setting("NCCL_NET_PLUGIN", _PLUGIN.path), NamedFiles(libraries={_PLUGIN.path: True}), Plugins(), Loader()),
        (setting("NCCL_NET_PLUGIN", "none"), NamedFiles(), Plugins(), Loader()),
        (setting("NCCL_NET_PLUGIN", "libnccl-net.so"), NamedFiles(), Plugins((_PLUGIN,)), Loader()),
        (having(NCCL_NET_PLUGIN=""), NamedFiles(), Plugins(), Loader()),
        (PLAIN, NamedFiles(), Plugins(), Loader()),
    ],
    applies=nccl_job,
)
def plugin_path(settings: Settings, named_files: NamedFiles, plugins: Plugins, loader: Loader) -> Iterator[Finding]:
    """The loader does not find a plugin that is named.

    Right: The loader finds every plugin that is named.
    Why: NCCL goes on without a plugin that it cannot open, with an INFO line at most, and so without the network or the
    tuning that it was for (nccl#1634).
    Fix: give the whole path of the library, or put its folder on LD_LIBRARY_PATH.
    """
    known = {plugin.path.rpartition("/")[2] for plugin in plugins.all if plugin.reachable}
    for path, there in named_files.libraries.items():
        if isinstance(there, Absent):
            yield note(path, f"whether it is there is not known: {there.why}", evidence=path)
        elif not there:
            yield jobs_fail(path, "is named as a plugin, and the file does not exist", evidence(settings, *_VARIABLES))
    for variable, kind in _VARIABLES.items():
        for name in (settings.get(variable) or "").split(","):
            if not name or name.startswith("/") or name.lower() in ("none", "static_plugin", "internal"):
                continue
            tried = {name, f"libnccl-{kind}-{name}.so"}
            if not tried & known and not _elsewhere(name):
                shown = evidence(settings, variable)
                yield jobs_warn(variable, f"{name!r} matches no plugin in the loader's folders", shown)


_VARIABLES = {"NCCL_NET_PLUGIN": "net", "NCCL_TUNER_PLUGIN": "tuner", "NCCL_PROFILER_PLUGIN": "profiler"}


def _elsewhere(name: str) -> bool:
    """Return a library that is not called as plugins usually are, which we did not look for, or a relative path."""
    return "/" in name or (name.endswith(".so") and not name.startswith("libnccl"))
