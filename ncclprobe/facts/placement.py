"""The location of a node: region, zone, placement group, switches above it, physical host.

No metadata service is queried. Sources:

- ``NCCLPROBE_PLACEMENT``: the user, outermost level first: ``block7/subblock2``. A job script uses it to pass on a
  cloud's answer: GCP's ``physical_host``, the ``NetworkNodes`` of AWS's DescribeInstanceTopology.
- ``SLURM_TOPOLOGY_ADDR`` with its ``_PATTERN``: Slurm's plugins topology/tree and topology/block (srun(1)).
- cloud-init's ``instance-data.json``, readable by every user: the metadata service's answers at boot. Only the fields
  below are used.
- ``/etc/podinfo/labels``: a pod's own labels, if a volume of the downward API puts them there. Kubernetes 1.35 gives
  pods the zone of their node.
- Hyper-V's key-value pool 3, which has the name of Azure's host.
"""

import json
import re
from collections.abc import Iterator

from ncclprobe.facts.environment import Environment
from ncclprobe.facts.field import attempt, learn
from ncclprobe.facts.machine import Machine
from ncclprobe.host import Host
from ncclprobe.model.errors import ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.report import PlacementLevel
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

OWN = "NCCLPROBE_PLACEMENT"
SLURM, SLURM_PATTERN = "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN"
READS = frozenset({OWN, SLURM, SLURM_PATTERN})
CLOUD_INIT = "/run/cloud-init/instance-data.json"
LABELS = "/etc/podinfo/labels"
HYPERV = "/var/lib/hyperv/.kvp_pool_3"

REGION, ZONE, GROUP, HOST = "region", "zone", "placement group", "physical host"
_LEAF = "leaf switch"
_AWS = "ds.meta_data.placement."  # DataSourceEc2.py: the tree of the metadata service
_OF_CLOUD_INIT = {  # the first that is there counts
    REGION: ("v1.region",),
    ZONE: (f"{_AWS}availability-zone-id", "v1.availability_zone", "ds.meta_data.imds.compute.zone"),
    GROUP: (f"{_AWS}group-name", "ds.meta_data.imds.compute.placementGroupId"),
    HOST: (f"{_AWS}host-id",),
}
QUESTION = ("json", CLOUD_INIT, *(key for keys in _OF_CLOUD_INIT.values() for key in keys))
LEVEL_OF_LABEL = {
    "topology.kubernetes.io/region": REGION,
    "topology.kubernetes.io/zone": ZONE,
    "cloud.google.com/gce-topology-block": "block",
    "cloud.google.com/gce-topology-subblock": "subblock",
    "topology.k8s.aws/network-node-layer-1": "network node",
    "topology.k8s.aws/network-node-layer-2": "network node",
    "topology.k8s.aws/network-node-layer-3": "network node",
    "cloud.google.com/gce-topology-host": HOST,
}
_MOST_LEVELS = 8


class Placement(Struct, frozen=True):
    """The known levels, outermost first; empty: unknown."""

    levels: tuple[PlacementLevel, ...] = ()

    def get(self, kind: str) -> PlacementLevel | None:
        """Return the level of this kind, or None."""
        return next((each for each in self.levels if each.kind == kind), None)

    @property
    def tree(self) -> tuple[PlacementLevel, ...]:
        """Return only the network levels: switches, blocks."""
        return tuple(each for each in self.levels if each.kind not in (REGION, ZONE, GROUP, HOST))


@collector
def placement(host: Host, environment: Environment, machine: Machine) -> Placement:
    """Read variables, and one small file on a cloud machine or in a pod. Needs no privileges."""
    found: dict[str, PlacementLevel] = {}
    tree = [*_own(environment)] or [*_slurm(environment)]
    if environment.get("KUBERNETES_SERVICE_HOST"):
        labels = learn(host, pod_labels, "lines", LABELS, f"^({'|'.join(map(re.escape, LEVEL_OF_LABEL))})=")
        said = () if isinstance(labels, Absent) else labels
        tree = tree or [each for each in said if each.kind not in (REGION, ZONE, HOST)]
        found |= {each.kind: each for each in said if each not in tree}
    if machine.cloud:
        instance = learn(host, cloud_init, *QUESTION)
        found |= {} if isinstance(instance, Absent) else {each.kind: each for each in instance}
    if machine.cloud == "azure":
        name = attempt(lambda: host.ask("kvp", HYPERV, "PhysicalHostNameFullyQualified").strip())
        found |= {HOST: PlacementLevel(HOST, name, HYPERV)} if isinstance(name, str) and name else {}
    outer = [found[kind] for kind in (REGION, ZONE, GROUP) if kind in found]
    return Placement((*outer, *tree[:_MOST_LEVELS], *([found[HOST]] if HOST in found else [])))


def _own(environment: Environment) -> Iterator[PlacementLevel]:
    names = [each.strip() for each in (environment.get(OWN) or "").split("/")]
    yield from (PlacementLevel("place", name, OWN) for name in names if name)


def _slurm(environment: Environment) -> Iterator[PlacementLevel]:
    """Yield the switches or blocks above the node; none if unknown, or in a form not described in srun(1)."""
    names = (environment.get(SLURM) or "").split(".")
    kinds = (environment.get(SLURM_PATTERN) or "").split(".")
    if len(names) == len(kinds) > 1 and kinds[-1] == "node":
        for number, (name, kind) in enumerate(zip(names[:-1], kinds, strict=False), 2):
            yield PlacementLevel(_LEAF if kind == "switch" and number == len(names) else kind, name, SLURM)


def cloud_init(text: str) -> tuple[PlacementLevel, ...]:
    """Parse the levels in the answer to `QUESTION`. Raises ParseError."""
    try:
        said = json.loads(text)
    except ValueError:
        raise ParseError(f"{CLOUD_INIT}: not JSON: {text[:80]!r}") from None
    if not isinstance(said, dict):
        raise ParseError(f"{CLOUD_INIT}: not an object: {text[:80]!r}")
    names = {kind: next((str(said[key]) for key in keys if said.get(key)), "") for kind, keys in _OF_CLOUD_INIT.items()}
    return tuple(PlacementLevel(kind, name, CLOUD_INIT) for kind, name in names.items() if name)


def pod_labels(text: str) -> tuple[PlacementLevel, ...]:
    """Parse the levels from a pod's labels, one ``key="value"`` per line, outermost first."""
    lines = (line.partition("=") for line in text.splitlines())
    said = {key: value.strip().strip('"') for key, _, value in lines}
    return tuple(PlacementLevel(kind, said[key], LABELS) for key, kind in LEVEL_OF_LABEL.items() if said.get(key))
