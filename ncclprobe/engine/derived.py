"""Facts that follow from others: what NCCL would choose, and which settings the vendor of the network prescribes."""

from collections.abc import Mapping, Sequence
from typing import Any

from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.model.nccl_selection import Choices
from ncclprobe.model.registry import Check
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import replace


def with_choices(snapshots: Sequence[Snapshot], checks: Sequence[Check]) -> list[Snapshot]:
    """Return the snapshots with what NCCL would choose on each, if a check asks for it."""
    asked = any(need.fact is Choices for each in checks for need in each.needs)
    if not asked or all(Choices in snapshot.facts for snapshot in snapshots):
        return list(snapshots)
    from ncclprobe.nccl.known import Choosing
    from ncclprobe.nccl.selection import choose  # and with it the distances between devices

    others = Choosing()
    return [replace(s, facts={**s.facts, Choices: choose(s, others)}) for s in snapshots]


def prescriptions(facts: Mapping[type, Any]) -> Mapping[str, str]:
    """Return the variables that are set as the vendor of the network prescribes, each with whose word that is."""
    from ncclprobe.nccl import vendors  # and the table of what each prescribes

    settings, choices = facts.get(Settings), facts.get(Choices)
    if not isinstance(settings, Settings) or not isinstance(choices, Choices):
        return {}
    machine = facts.get(Machine, Absent("not asked"))
    found = vendors.compared(settings, vendors.in_use(settings, machine, choices))
    return {name: f"{vendors.TITLES[vendor]} prescribes it" for name, vendor in found.right.items()}
