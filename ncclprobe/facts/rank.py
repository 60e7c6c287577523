"""Per-rank facts of a node: visible devices, processors, and the GPUs that NVML shows to the rank.

A control group or a container may give each rank of a node its own GPUs. NVML counts only the GPUs that its process may
open, and numbers them from 0 in each process. So the ranks' answers are combined by UUID: the node has the GPUs of all
its ranks, in the order of their PCI addresses, as NVML numbers those of a whole machine.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ncclprobe.facts.environment import Environment
from ncclprobe.facts.field import learn
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nvlink import nvlink
from ncclprobe.facts.nvml import ASK, CAPABILITIES, ask, listed, number, nvml, text
from ncclprobe.facts.process import SHM, Process
from ncclprobe.host import Host, Question
from ncclprobe.host.capture import Answers
from ncclprobe.model.errors import HostError, Missing
from ncclprobe.model.registry import rank_collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct


class RankProcess(Struct, frozen=True):
    """One rank. `visible` holds the entries of CUDA_VISIBLE_DEVICES; None: unset, so all devices.

    `host_id` is NCCL_HOSTID. `shm_device` is the file system of /dev/shm (st_dev): ranks in one IPC and mount namespace
    share it. `namespaces` are inode numbers by kind.
    """

    local_rank: int | None
    local_world_size: int | None
    visible: tuple[str, ...] | None
    host_id: str | None
    cpus: tuple[int, ...]
    namespaces: Mapping[str, int | Absent]
    shm_device: int | Absent


@rank_collector
def rank_process(host: Host, environment: Environment, launch: Launch, process: Process) -> RankProcess:
    """Collect this process's variables, affinity and namespaces."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    return RankProcess(
        local_rank=launch.local_rank,
        local_world_size=launch.local_world_size,
        visible=None if visible is None else tuple(entry.strip() for entry in visible.split(",") if entry.strip()),
        host_id=environment.get("NCCL_HOSTID"),
        cpus=process.cpus,
        namespaces=process.namespaces,
        shm_device=learn(host, lambda text: int(json.loads(text)["device"]), "stat", SHM),
    )


_UUID, _PLACE, _COUNT = "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo", "nvmlDeviceGetCount"
_LIST = "CUDA_VISIBLE_DEVICES"
_NUMBERED_ANEW = (("run", "nvidia-smi", "topo", "-m"), ("run", "nvidia-smi", "nvlink", "-s"))
_APART = "each rank of this node sees GPUs of its own, and numbers them from 0"


class OwnGpus(Struct, frozen=True):
    """UUIDs of this rank's GPUs, in NVML's order."""

    uuids: tuple[str, ...]


@rank_collector
def own_gpus(host: Host, launch: Launch) -> OwnGpus:
    """Ask NVML which GPUs this rank may use; read them fully if they are fewer than the ranks of its node.

    Ranks that torchrun started see the same GPUs as its agent. Raises Missing if all ranks see the same GPUs.
    """
    ranks = launch.local_world_size or launch.world_size or 1
    if ranks == 1 or launch.kind == "torchrun":
        raise Missing("the ranks of this node are one, or see the same GPUs")
    count = ask(host, number, _COUNT)
    if count < ranks:
        nvlink.run(host, nvml.run(host))
    return OwnGpus(tuple(ask(host, text, _UUID, index) for index in range(min(count, ranks))))


def merge_ranks(own: Answers, ranks: Mapping[int, Answers]) -> Answers:
    """Combine a node's answers with the GPUs of all its `ranks`; return `own` if these see no others.

    Answers that use the first rank's own GPU numbers are refused. CUDA_VISIBLE_DEVICES then means nothing for the node.
    If all ranks see the same GPUs, any rank's value is the node's.
    """
    others = [answers for answers in ranks.values() if isinstance(answers.get(("nvml", _UUID, 0)), str)]
    if not others:
        return _add_visible_gpus(own, ranks)
    mine = _gpus_by_uuid(own)
    tables = [(own, mine), *((answers, _gpus_by_uuid(answers)) for answers in others)]
    places = {uuid: place for _, table in tables for uuid, (_, place) in table.items()}
    if len(places) == len(mine):
        return _add_visible_gpus(own, ranks)
    numbers = {uuid: index for index, uuid in enumerate(sorted(places, key=lambda uuid: (places[uuid], uuid)))}
    merged = {q: answer for q, answer in own.items() if _device(q) is None}
    for answers, table in tables:
        anew = {index: numbers[uuid] for uuid, (index, _) in table.items()}
        merged |= {(*q[:2], anew[_device(q) or 0], *q[3:]): a for q, a in answers.items() if _device(q) in anew}
    merged |= {q: Missing(_APART) for q in (*_NUMBERED_ANEW, *_peers(len(numbers)))}
    return merged | {("nvml", _COUNT): str(len(numbers)), ("env",): _env(own, [])}


def _device(question: Question) -> int | None:
    """Return the number of the GPU that a question is about; None: not about a single GPU."""
    of_device = question[0] == "nvml" and len(question) > 2 and question[1] != ASK
    return question[2] if of_device and isinstance(question[2], int) else None


def _gpus_by_uuid(answers: Answers) -> dict[str, tuple[int, str]]:
    """Map each GPU's UUID to its number and PCI address; a lost GPU, which reports no UUID, is keyed by its number."""
    found = {}
    for index in sorted({index for q in answers if (index := _device(q)) is not None}):
        uuid = answers.get(("nvml", _UUID, index))
        address = _object(answers.get(("nvml", _PLACE, index))).get("busId", "")
        found[uuid if isinstance(uuid, str) else f"lost {index}"] = (index, str(address))
    return found


def _peers(count: int) -> Iterator[Question]:
    """Yield the questions about pairs of GPUs; no rank sees both GPUs of a pair."""
    for gpu in range(count):
        others = listed(peer for peer in range(count) if peer != gpu)
        yield from (("nvml", ASK, gpu, others, capability) for capability in CAPABILITIES)


def _add_visible_gpus(own: Answers, ranks: Mapping[int, Answers]) -> Answers:
    """Return `own` with the union of the ranks' CUDA_VISIBLE_DEVICES if they differ."""
    lists = [_visible_devices(answers) for answers in (own, *ranks.values())]
    shown = list(dict.fromkeys(entry for entries in lists for entry in entries))
    return {**own, ("env",): _env(own, shown)} if all(lists) and len(shown) > len(lists[0]) else own


def _visible_devices(answers: Answers) -> list[str]:
    listed_ones = str(_object(answers.get(("env",))).get(_LIST) or "")
    return [entry.strip() for entry in listed_ones.split(",") if entry.strip()]


def _env(answers: Answers, shown: Sequence[str]) -> str | HostError:
    """Return the variables of `answers` with this CUDA_VISIBLE_DEVICES, or without one if `shown` is empty."""
    said = answers.get(("env",), Missing("the environment was not asked for"))
    variables = _object(said)
    variables.pop(_LIST, None)
    return json.dumps(variables | ({_LIST: ",".join(shown)} if shown else {})) if isinstance(said, str) else said


def _object(said: object) -> dict[str, Any]:
    """Decode a JSON object; empty if the answer is anything else."""
    try:
        found = json.loads(said) if isinstance(said, str) else None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
