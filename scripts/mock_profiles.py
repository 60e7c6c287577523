#!/usr/bin/env python3
"""Run the doctor on every profile of NVIDIA's mock of NVML, InfiniBand and PCI sysfs, with one fault each.

    scripts/mock_profiles.py MOCK --captures DIR [-o reports/mock-profiles.md] [--profile NAME ...]

The mock is github.com/NVIDIA/k8s-test-infra (Apache-2.0), built with Go; nothing of it is kept here. MOCK is a folder
with ``lib/`` (libnvidia-ml.so.1, libibmocksys.so, libpcimocksys.so), ``bin/`` (mock-ib, render-pci-sysfs) and
``profiles/`` (its YAML). A fault is found where a finding that the machine without it does not have comes from the
check foretold.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ncclprobe.engine import diagnose
from ncclprobe.engine.judge import judge
from ncclprobe.engine.observe import replayed
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.nvml import GpuFabric, Gpus
from ncclprobe.model.findings import Severity
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Absent, Job, Snapshot

ROOT = Path(__file__).resolve().parents[1]
PROFILES = ("t4", "l40s", "a100", "h100", "b200", "gb200", "gb300")
GPU = 3
_CAPTURE_S = 60.0
Found = set[tuple[str, str, str]]
Edit = Callable[[dict[str, Any], Path], None]


def of_gpu(**changes: Any) -> Edit:
    """Change some of one GPU's description, such as ``ecc__mode_current``: two underscores go a level down."""

    def edit(overrides: dict[str, Any], _tree: Path) -> None:
        for path, value in changes.items():
            *above, last = path.split("__")
            inner = overrides.setdefault("devices", {}).setdefault(str(GPU), {})
            for name in above:
                inner = inner.setdefault(name, {})
            inner[last] = value

    return edit


def of_port(name: str, text: str, device: str = "mlx5_1") -> Edit:
    """Change one file of one InfiniBand port."""

    def edit(_overrides: dict[str, Any], tree: Path) -> None:
        (tree / "sys/class/infiniband" / device / "ports/1" / name).write_text(text + "\n", encoding="utf-8")

    return edit


def no_uverbs(_overrides: dict[str, Any], tree: Path) -> None:
    """Take /dev/infiniband away, as a container without devices has it."""
    shutil.rmtree(tree / "dev/infiniband")


def another_model(_overrides: dict[str, Any], tree: Path) -> None:
    """Name one GPU otherwise; the mock takes names from its profile alone."""
    config = tree.with_name("config.yaml")
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace(f"- index: {GPU}\n", f"- index: {GPU}\n    name: NVIDIA H20\n"), encoding="utf-8")


def port_down(overrides: dict[str, Any], tree: Path) -> None:
    """Take the cable of a port away."""
    of_port("state", "1: DOWN")(overrides, tree)
    of_port("phys_state", "2: Polling")(overrides, tree)


FAULTS: dict[str, tuple[str, Edit]] = {
    "a GPU is lost": ("gpu.count", of_gpu(failure__mode="lost")),
    "a GPU has fallen off the bus": ("gpu.count", of_gpu(failure__mode="fallen_off_bus")),
    "ECC: 2 uncorrectable errors since the reset": (
        "gpu.ecc",
        of_gpu(ecc__errors__volatile__double_bit__total=2, ecc__errors__volatile__double_bit__device_memory=2),
    ),
    "ECC: SRAM beyond its threshold": ("gpu.ecc", of_gpu(ecc__sram__threshold_exceeded=True)),
    "ECC off on one": ("gpu.ecc-mode", of_gpu(ecc__mode_current="disabled", ecc__mode_pending="disabled")),
    "ECC off after the next reset": ("gpu.ecc-mode", of_gpu(ecc__mode_pending="disabled")),
    "a row to be remapped": ("gpu.remap", of_gpu(remapped_rows__uncorrectable=1, remapped_rows__pending=True)),
    "a row that could not be remapped": ("gpu.remap", of_gpu(remapped_rows__failure_occurred=True)),
    "MIG on one": ("gpu.mig", of_gpu(mig__mode_current="enabled", mig__mode_pending="enabled")),
    "MIG after the next reset": ("gpu.mig", of_gpu(mig__mode_pending="enabled")),
    "another model": ("gpu.model", another_model),
    "compute mode prohibited": ("gpu.compute-mode", of_gpu(compute_mode="prohibited")),
    "persistence mode off on one": ("gpu.persistence", of_gpu(persistence_mode="disabled")),
    "8 of 16 lanes": ("pci.gpu-width", of_gpu(pcie__current_link_width=8)),
    "a slot of 8 lanes": ("pci.gpu-width", of_gpu(pcie__current_link_width=8, pcie__max_link_width=8)),
    "a slot of generation 2": ("pci.gpu-gen", of_gpu(pcie__current_link_gen=1, pcie__max_link_gen=2)),
    "slowed down by heat": ("gpu.throttle", of_gpu(clocks_throttle_reasons__hw_thermal_slowdown=True)),
    "memory in use": ("gpu.busy", of_gpu(memory__used_bytes=12 << 30)),
    "fabric: bandwidth degraded": ("nvl.fabric", of_gpu(fabric__health__degraded_bandwidth=True)),
    "fabric: route unhealthy": ("nvl.fabric", of_gpu(fabric__health__route_unhealthy=True)),
    "fabric: wrong configuration": ("nvl.fabric", of_gpu(fabric__health__incorrect_configuration="incorrect_sysguid")),
    "fabric: registration in progress": ("nvl.fabric", of_gpu(fabric__state="in_progress")),
    "fabric: another clique": ("nvl.fabric", of_gpu(fabric__clique_id=7)),
    "a port DOWN": ("ib.state", port_down),
    "a port INIT": ("ib.state", of_port("state", "2: INIT")),
    "a port on one lane": ("ib.rate", of_port("rate", "100 Gb/sec (1X NDR)")),
    "a port at half rate": ("ib.rate", of_port("rate", "50 Gb/sec (4X QDR)")),
    "no /dev/infiniband": ("ib.perm", no_uverbs),
}


def captured(mock: Path, profile: str, fault: str, kept: Path) -> Snapshot:
    """Return the facts of a profile with a fault, or with none, as `ncclprobe capture` saw them; asked once only."""
    path = kept / profile / f"{fault or 'healthy'}.jsonl".replace(" ", "-").replace("/", "-")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            _capture(mock, profile, FAULTS[fault][1] if fault else None, Path(folder), path)
    (snapshot,) = replayed([path], discover("ncclprobe.facts", Collector, {"machine"}))
    return snapshot


def _capture(mock: Path, profile: str, edit: Edit | None, folder: Path, path: Path) -> None:
    source, tree, config = mock / "profiles" / f"{profile}.yaml", folder / "tree", folder / "config.yaml"
    overrides: dict[str, Any] = {}
    shutil.copyfile(source, config)
    gpus = source.read_text(encoding="utf-8").partition("\ndevices:")[2].count("- index:")
    ib = [
        str(mock / "bin/mock-ib"),
        "-config",
        str(source),
        "-gpu-count",
        str(gpus),
        "-node-name",
        "n0",
        "-render-only",
    ]
    _quiet([*ib, "-ib-root", str(tree)])
    _quiet([str(mock / "bin/render-pci-sysfs"), "-config", str(source), "-output", str(tree)])
    if edit:
        edit(overrides, tree)
    (folder / "overrides.yaml").write_text(json.dumps(overrides), encoding="utf-8")  # JSON is YAML
    seen = {
        "LD_LIBRARY_PATH": str(mock / "lib"),
        "LD_PRELOAD": ":".join(str(mock / "lib" / name) for name in ("libibmocksys.so", "libpcimocksys.so")),
        "MOCK_NVML_CONFIG": str(config),
        "MOCK_IB": "sysfs",
        **dict.fromkeys(("MOCK_IB_ROOT", "MOCK_PCI_ROOT"), str(tree)),
        **{"TORCHELASTIC_RUN_ID": "1", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(gpus)},
        "WORLD_SIZE": str(2 * gpus),
        **{"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2"},
    }
    _quiet([sys.executable, "-m", "ncclprobe", "capture", "-o", str(path)], env={**os.environ, **seen})


def _has(fault: str, profile: str, healthy: Snapshot) -> bool:
    """Return whether a machine has the thing that is broken."""
    gpus, fabric = healthy.facts[Gpus], healthy.facts[Fabric]
    kind = FAULTS[fault][0].partition(".")[0] if not fault.startswith(("ECC", "MIG", "a row")) else fault.split()[0]
    gpu = gpus.all[GPU]
    return {
        "ib": bool(fabric.devices),
        "nvl": isinstance(gpu.fabric, GpuFabric) and gpu.fabric.state != "not-supported",
        "ECC:": isinstance(gpu.ecc, bool) and not ("SRAM" in fault and isinstance(gpu.sram_worn, Absent)),
        "ECC": isinstance(gpu.ecc, bool),
        "MIG": profile not in ("t4", "l40s"),
        "a": isinstance(gpu.remap_pending, bool),
    }.get(kind, True)


def _quiet(command: Sequence[str], env: dict[str, str] | None = None) -> None:
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_CAPTURE_S, env=env
    )


def found(snapshot: Snapshot) -> Found:
    """Return severity, check and subject of all that is found on a machine, but for notes."""
    verdicts = judge([snapshot], diagnose.every_check(diagnose.MACHINE), Job())
    return {
        (finding.severity.value, verdict.id, finding.subject)
        for verdict in verdicts
        for finding in verdict.findings
        if finding.severity is not Severity.NOTE
    }


def row(name: str, foretold: str, seen: dict[str, Found], control: dict[str, Found]) -> str:
    """Return a line of the table: of each profile what was found beyond the healthy machine."""
    cells = []
    for profile in control:
        if profile not in seen:
            cells.append("n/a")
            continue
        new = seen[profile] - control[profile]
        ours = sorted({severity for severity, check, _ in new if check == foretold})
        others = sorted({check for _, check, _ in new if check != foretold})
        cells.append(f"{ours[0].upper() if ours else 'no'}{', ' + ', '.join(others) if others else ''}")
    return f"| {name} | `{foretold}` | {' | '.join(cells)} |"


def page(seen: dict[str, dict[str, Found]], control: dict[str, Found]) -> str:
    """Return the report."""
    profiles = list(control)
    hits = sum(
        any(i == FAULTS[n][0] for _, i, _ in each - control[p]) for n, by in seen.items() for p, each in by.items()
    )
    lines = [
        "# NVIDIA's mock machines, with one fault each",
        "",
        "`scripts/mock_profiles.py`: the doctor on the profiles of NVIDIA's own mock of NVML, InfiniBand sysfs and PCI",
        "sysfs (github.com/NVIDIA/k8s-test-infra, Apache-2.0, built with Go), as rank 0 of two nodes with a rank for",
        f"each GPU. {hits} of {sum(map(len, seen.values()))} were named by the check foretold. A cell says what the",
        "fault adds to what is found without it: the severity by the check foretold, then other checks. n/a: the",
        "profile has no such thing. The mock shows no kernel log, no links of a PCI device and no interface of an HCA.",
        "",
        "Where the answer is no: the machine of this run is a virtual one, where the most that a slot allows is the",
        "hypervisor's choice, a note; and on Grace memory in use is none either, for Linux keeps files in the GPUs'.",
        "The mock's B200 has no NVLinks on purpose, which nvl.links says without a fault, for the product has 18.",
        "",
        "Without a fault, above a note (this machine has two processors and a torch without CUDA):",
        "",
        *(f"- {p}: {', '.join(sorted({f'{s.upper()} {i}' for s, i, _ in control[p]})) or 'nothing'}" for p in profiles),
        "",
        f"| fault | check | {' | '.join(profiles)} |",
        f"|---|---|{'---|' * len(profiles)}",
        *(row(name, FAULTS[name][0], by, control) for name, by in seen.items()),
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("mock", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "reports" / "mock-profiles.md")
    parser.add_argument("--captures", type=Path, required=True, metavar="DIR", help="keep captures here, taken once")
    parser.add_argument("--profile", action="append", choices=PROFILES)
    options = parser.parse_args(argv)
    options.captures.mkdir(parents=True, exist_ok=True)
    control: dict[str, Found] = {}
    seen: dict[str, dict[str, Found]] = {name: {} for name in FAULTS}
    for profile in options.profile or PROFILES:
        healthy = captured(options.mock, profile, "", options.captures)
        control[profile] = found(healthy)
        for name in (name for name in FAULTS if _has(name, profile, healthy)):
            seen[name][profile] = found(captured(options.mock, profile, name, options.captures))
        print(profile, file=sys.stderr, flush=True)
    options.output.write_text(page(seen, control), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
