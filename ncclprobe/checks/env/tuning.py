"""Algorithms and protocols chosen by hand, and knobs that are not safe to turn."""

from collections.abc import Iterator, Sequence

from ncclprobe.checks.env import evidence, jobs_fail, jobs_note, jobs_warn, loaded, nccl_job
from ncclprobe.checks.env.fixtures import NO_NCCL, PLAIN, TWO_NODES, gpus, linked, setting
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.software import Software, Version
from ncclprobe.model.findings import Finding
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.nccl.algorithms import ALGORITHMS, PROTOCOLS, Pin, forces_ll128, parse_pin, stranded
from ncclprobe.nccl.p2p import nvls
from ncclprobe.nccl.values import read_setting

_REMEDIES = {
    "NCCL_ALGO": "",  # the check's own
    "NCCL_PROTO": "unset it, or exclude what is at fault: NCCL_PROTO=^LL128; the words are LL, LL128 and Simple",
}
_OF_NCCL = Job()
_WRONG_RESULTS_BYTES = 1 << 20  # nccl#2408: sums came out wrong from here on


@check(
    slows=True,
    bad=lambda: [(setting("NCCL_ALGO", "Rng"), gpus(8), linked(8), TWO_NODES, NO_NCCL, Job())],
    good=lambda: [(PLAIN, gpus(8), linked(8), TWO_NODES, NO_NCCL, Job())],
)
def forced_algo(
    settings: Settings,
    gpus: Gpus | Absent,
    nvlinks: NvLinks | Absent,
    launch: Launch | Absent,
    software: Software | Absent,
    job: Job = _OF_NCCL,
) -> Iterator[Finding]:
    """NCCL_ALGO or NCCL_PROTO overrides NCCL's choice, or leaves a collective without any algorithm.

    Right: NCCL is free to choose algorithm and protocol.
    Why: NCCL chooses by size, and what is forced for one size is slow at others; of a list it chooses still, but never
    what the list leaves out, such as NVLS on NVSwitches. Since 2.24 a collective without an
    algorithm fails when it is called: NCCL_ALGO=Tree leaves no algorithm for broadcast, all-gather and reduce-scatter.
    LL128 allowed by hand, also by excluding others, is used where NCCL does not consider it safe, and may corrupt data
    (env.rst).
    Fix: unset it, or name the function: NCCL_ALGO=allreduce:tree,ring.
    """
    version = loaded(software)
    pins: dict[str, Pin] = {}
    for name, choices in (("NCCL_ALGO", ALGORITHMS), ("NCCL_PROTO", PROTOCOLS)):
        pins[name] = parse_pin(settings.get(name) or "", choices, version)
        if job.backend != "nccl":
            if pins[name].error:
                message = f"gloo does not read it; NCCL refuses it: {pins[name].error}"
                yield jobs_note(name, message, evidence(settings, name), _REMEDIES[name])
        elif pins[name].error:
            yield jobs_fail(name, f"NCCL refuses it: {pins[name].error}", evidence(settings, name), _REMEDIES[name])
        elif pins[name].every_function:
            yield _said(name, pins[name], choices, settings, gpus, nvlinks, version)
        if pins[name].ignored:
            ignored = f"ignores {', '.join(pins[name].ignored)}"
            yield jobs_warn(name, ignored, evidence(settings, name), _REMEDIES[name])
    if job.backend != "nccl" or any(pin.error for pin in pins.values()):
        return
    if forces_ll128(pins["NCCL_PROTO"]):
        yield jobs_warn(
            "NCCL_PROTO",
            "forces LL128 even where NCCL would not use it",
            evidence(settings, "NCCL_PROTO"),
            _REMEDIES["NCCL_PROTO"],
        )
    lacking = _lacking(settings, gpus, nvlinks, launch, software)
    left = stranded(pins["NCCL_ALGO"], pins["NCCL_PROTO"], lacking, version)
    if left and any(pin.kept for pin in pins.values()):
        name = "NCCL_ALGO" if pins["NCCL_ALGO"].kept else "NCCL_PROTO"
        message = f"leaves no algorithm to {', '.join(left)}: such calls will fail"
        yield jobs_fail(name, message, evidence(settings, "NCCL_ALGO", "NCCL_PROTO"))


def _said(
    name: str,
    pin: Pin,
    choices: Sequence[str],
    settings: Settings,
    gpus: Gpus | Absent,
    nvlinks: NvLinks | Absent,
    version: Version | None,
) -> Finding:
    """Return what a list for every collective leaves to NCCL: one choice, or several without those that it excludes."""
    shown, text = evidence(settings, name), settings.get(name)
    if all(len(left) < 2 for left in pin.kept.values()):
        return jobs_warn(name, f"{text!r} forces one choice on every collective at every size", shown, _REMEDIES[name])
    out = [one for one in choices if not any(one in left for left in pin.kept.values())]
    message = f"{text!r} excludes {', '.join(out)} from every collective; NCCL chooses among the others by size"
    if not out:
        message = f"{text!r} leaves each collective its own list; NCCL chooses from it by size"
    if "NVLS" in out and isinstance(gpus, Gpus) and nvls(gpus, nvlinks, settings, version).available:
        return jobs_warn(name, f"{message}: NVLink SHARP of this node is not used", shown, _REMEDIES[name])
    return jobs_note(name, message, shown, _REMEDIES[name])


def _lacking(
    settings: Settings,
    gpus: Gpus | Absent,
    nvlinks: NvLinks | Absent,
    launch: Launch | Absent,
    software: Software | Absent,
) -> frozenset[str]:
    """Return algorithms that this machine is known not to have (src/graph/tuning.cc:490)."""
    nodes = None if isinstance(launch, Absent) else launch.nnodes
    collnet = read_setting(settings, "NCCL_COLLNET_ENABLE", 0) != 0
    lacking = {"CollNetDirect", "CollNetChain"} if not collnet else set()
    if nodes == 1:
        lacking.add("NVLSTree")
    if isinstance(gpus, Gpus) and nvls(gpus, nvlinks, settings, loaded(software)).available is False:
        lacking |= {"NVLS", "NVLSTree"}
    return frozenset(lacking)


@check(
    slows=True,
    bad=lambda: [(setting("NCCL_IGNORE_DISABLED_P2P", "1"),)],
    good=lambda: [(setting("NCCL_IGNORE_DISABLED_P2P", "0"),)],
    applies=nccl_job,
)
def danger_knob(settings: Settings) -> Iterator[Finding]:
    """A setting can make results wrong, or hides a fault.

    Right: No setting that can make results wrong or hide a fault is in use.
    Why: NCCL_CHUNK_SIZE from 1 MiB on made all-reduce faster and its sums wrong (nccl#2408). NCCL_IGNORE_DISABLED_P2P
    lets a job start whose NVLinks the driver refuses to use, and then runs slowly.
    Fix: unset the variable, and repair what it hides.
    """
    size = read_setting(settings, "NCCL_CHUNK_SIZE", 0)
    if size >= _WRONG_RESULTS_BYTES:
        yield jobs_warn(
            "NCCL_CHUNK_SIZE",
            f"is {size} bytes: all-reduce may deliver wrong sums",
            evidence(settings, "NCCL_CHUNK_SIZE"),
        )
    elif size:
        yield jobs_note(
            "NCCL_CHUNK_SIZE", f"is {size} bytes; it is not documented", evidence(settings, "NCCL_CHUNK_SIZE")
        )
    if read_setting(settings, "NCCL_IGNORE_DISABLED_P2P", 0) > 0:
        shown = evidence(settings, "NCCL_IGNORE_DISABLED_P2P")
        yield jobs_warn("NCCL_IGNORE_DISABLED_P2P", "hides that the driver denies P2P over NVLinks", shown)
