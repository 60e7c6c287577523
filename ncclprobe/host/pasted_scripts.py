"""Mistakes in pasted scripts and manifests that no setting shows: which launcher starts how many workers, on which
GPUs.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ncclprobe.host import PROBLEMS, Question
from ncclprobe.host.pasted_containers import problems, workers
from ncclprobe.host.pasted_settings import settings
from ncclprobe.model.errors import HostError
from ncclprobe.model.units import plural

_MANIFEST = re.compile(r"(?:apiVersion|kind|containers):")
_NAME = re.compile(r"(?:- )?name: ([A-Z][A-Z0-9_]{1,80})")
_BARE = re.compile(r"value: (-?\d{1,12}(?:\.\d{1,6})?|true|false|yes|no|on|off|null)", re.IGNORECASE)
_TASKS = re.compile(r"#SBATCH\s+(?:--ntasks-per-node|--tasks-per-node)[= ](\d{1,3})\b")
_STEP = re.compile(r"(?:^|[\s;&|(])srun\b")
_OWN_TASKS = re.compile(r"--n?tasks(?:-per-node)?[= ]|\s-n[ =]?\S")
_TORCHRUN = re.compile(r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b")
_WORKERS = re.compile(r"--nproc[-_]per[-_]node[= ](\d{1,3})\b")
_ASKED = re.compile(r"CUDA_VISIBLE_DEVICES[\"']?\s?[:=]\s?[\"']?(\d{1,2}(?:,\d{1,2}){0,15})\b")
_GIVEN = (
    re.compile(r"device_ids:\s?\[([^\]]{1,200})\]"),
    re.compile(r"--gpus[= ][\\\"']{0,3}device=([\d,]{1,60})"),
    re.compile(r"NVIDIA_VISIBLE_DEVICES[\"']?\s?[:=]\s?[\"']?(\d{1,2}(?:,\d{1,2}){0,15})\b"),
)
_NUMBER_GIVEN = re.compile(r"nvidia\.com/gpu[\"']?: [\"']?(\d{1,2})\b")


def scripts(lines: Sequence[str]) -> dict[Question, str | HostError]:
    """Return what is wrong in a script or manifest, as :class:`ncclprobe.facts.launcher.Problem` has it.

    >>> text = ["#SBATCH --ntasks-per-node=8", "srun torchrun --nproc-per-node=8 train.py"]
    >>> json.loads(scripts(text)[PROBLEMS])[0]["subject"]
    '--ntasks-per-node'
    """
    whole = re.sub(r"\\\n\s*", " ", "\n".join(lines)).split("\n")
    found = [
        *_unquoted_values(lines),
        *_multiplied_launches(whole),
        *_unavailable_gpus(lines),
        *_too_many(whole),
        *problems(lines),
    ]
    found += [
        *_isolated_gpus(whole),
        *_mixed_nccl_versions(lines),
        *_too_few_cores(whole),
        *_node_count_mismatch(whole),
        *_no_gpu(whole),
        *_lacking_libraries(lines),
    ]
    return {PROBLEMS: json.dumps(found)} if found else {}


def _unquoted_values(lines: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the variables of a manifest whose values are numbers or booleans in YAML."""
    if not any(_MANIFEST.match(line.strip().removeprefix("- ")) for line in lines):
        return
    written = [line.strip() for line in lines if line.strip()]
    pairs = [
        (name[1], value[1])
        for one, two in pairwise(written)
        if (name := _NAME.fullmatch(one)) and (value := _BARE.fullmatch(two.partition(" #")[0].strip()))
    ]
    if pairs:
        values = ", ".join(f"{name}: {value}" for name, value in pairs[:4])
        yield {
            "subject": pairs[0][0],
            "message": f"Kubernetes refuses the manifest: values have to be strings, and these are not: {values}",
            "remedy": f'put quotation marks around each value, as in `value: "{pairs[0][1]}"`',
        }


def _multiplied_launches(whole: Sequence[str]) -> Iterator[dict[str, str]]:
    """Report that srun starts several tasks on a node, each of which starts all workers."""
    tasks = max((int(found[1]) for line in whole if (found := _TASKS.match(line.strip()))), default=1)
    for line in whole:
        step, launcher = _STEP.search(line), _TORCHRUN.search(line)
        workers = _WORKERS.search(line, launcher.end()) if launcher else None
        if not step or not launcher or not workers or line.lstrip().startswith("#"):
            continue
        if tasks > 1 and int(workers[1]) > 1 and not _OWN_TASKS.search(line, step.end(), launcher.start()):
            yield {
                "subject": "--ntasks-per-node",
                "message": f"srun starts torchrun {tasks} times on each node, and each starts {workers[1]} workers: "
                f"{tasks * int(workers[1])} in place of {workers[1]}",
                "remedy": "set `#SBATCH --ntasks-per-node=1`, or start the ranks with srun and without torchrun",
            }
            return


_BOUND = re.compile(r"--gpu-bind[= ](?:verbose,)?(single|per_task|none|closest|map_gpu|mask_gpu)")
_PER_TASK = re.compile(r"--gpus-per-task[= ](?:[a-z][\w.-]{1,30}:)?(\d)\b")


def _isolated_gpus(whole: Sequence[str]) -> Iterator[dict[str, str | bool]]:
    """Report that Slurm gives each task a GPU of its own, so that it sees no other GPU of its node."""
    own = [line for line in whole if line.startswith("#SBATCH") or _STEP.search(line)]
    bound = next((found[1] for line in own if (found := _BOUND.search(line))), "")
    each = next((found[0] for line in own if (found := _PER_TASK.search(line))), "")
    several = any(int(found[1]) > 1 for line in own if (found := _TASKS.match(line)))
    if several and (bound in ("single", "per_task") or (each and not bound)):
        yield {
            "subject": "--gpu-bind" if bound else "--gpus-per-task",
            "message": "lets each task of a node see only its own GPU: ranks cannot open each other's memory, and "
            "NVLink between them stays unused",
            "remedy": "set `--gpus-per-node` and `--gpu-bind=none`, and pick the device by SLURM_LOCALID",
            "harmless": not bound,
        }


_CORES = re.compile(r"--cpus-per-task[= ](\d{1,3})\b")
_TO_CORE = re.compile(r"\b(?:mpirun|mpiexec)\b.{0,400}\s--?bind-to core\b(?!.{0,400}--map-by \S{0,40}PE=)")
_FEWEST_CORES = 2
_USES_GPUS = re.compile(r"\btorchrun\b|\bpython|_perf\b")


def _too_few_cores(whole: Sequence[str]) -> Iterator[dict[str, str | bool]]:
    """Report that a launcher gives each rank fewer processors than NCCL's and torch's threads need."""
    for line in whole:
        cores = _CORES.search(line) if line.startswith("#SBATCH") or _STEP.search(line) else None
        if (cores and int(cores[1]) < _FEWEST_CORES) or (_TO_CORE.search(line) and _USES_GPUS.search(line)):
            yield {
                "subject": cores[0] if cores else "--bind-to core",
                "message": "gives each task one processor, on which NCCL's proxies and torch's threads wait in turn",
                "remedy": "give each rank of a GPU 8 processors or more: --cpus-per-task=8, or --bind-to none",
                "harmless": True,
            }
            return


_NODES_OF_JOB = re.compile(r"#SBATCH\s+(?:--nodes[= ]|-N ?)(\d{1,5})\b(?!-)")
_NODES_OF_STEP = re.compile(r"\bsrun\b.{0,200}?\s(?:-N ?|--nodes[= ])\d")
_NODES_OF_RUN = re.compile(r"--nnodes[= ][\"']?(\d{1,5})[\"']?(?:\s|$)")


def _node_count_mismatch(whole: Sequence[str]) -> Iterator[dict[str, str]]:
    """Report that torchrun waits for another number of nodes than srun starts it on."""
    allocated = {int(found[1]) for line in whole if (found := _NODES_OF_JOB.match(line.strip()))}
    for line in whole:
        started = _NODES_OF_RUN.search(line)
        if started and _STEP.search(line) and len(allocated) == 1 and not _NODES_OF_STEP.search(line):
            if int(started[1]) not in allocated:
                yield {
                    "subject": "--nnodes",
                    "message": f"is {started[1]}, but srun starts torchrun on {max(allocated)} nodes",
                    "remedy": "use --nnodes=$SLURM_NNODES",
                }
            return


_CONTAINED = re.compile(r"\b(apptainer|singularity) (?:exec|run)\b(.{0,400})")
_DOCKERED = re.compile(r"\b(?:docker|podman) run\b(.{0,2000})")
_GIVES_GPUS = re.compile(
    r"\s--nv(?:ccli)?\b|--gpus\b|--runtime|--device[= ]\S{0,4}nvidia|NVIDIA_VISIBLE_DEVICES|/dev/nvidia"
)


def _no_gpu(whole: Sequence[str]) -> Iterator[dict[str, str | bool]]:
    """Report that a GPU job's container is started without an option that gives it GPUs."""
    text = "\n".join(whole)
    if re.search(r"(?:APPTAINER|SINGULARITY)_NV\b|default-runtime\"?: \"nvidia|ENABLE_NV", text):
        return
    for line in whole:
        found = _CONTAINED.search(line) or _DOCKERED.search(line)
        gpu_job = found and re.search(r"\btorchrun\b|_perf\b|\bdeepspeed\b|NCCL_|nvcr\.io", line)
        if found and gpu_job and not _GIVES_GPUS.search(line) and not line.lstrip().startswith("#"):
            option = "--nv" if _CONTAINED.search(line) else "--gpus all"
            message = "is started without an option that gives it GPUs: CUDA finds none in it"
            yield {
                "subject": "container",
                "message": message,
                "remedy": f"add `{option}`",
                "harmless": option != "--nv",
            }
            return


_LIBRARIES = {"utility": "libnvidia-ml.so.1, so NCCL", "compute": "libcuda.so.1, so CUDA"}
"""Library that each capability of the NVIDIA Container Toolkit brings, and what does not start without it."""


def _lacking_libraries(lines: Sequence[str]) -> Iterator[dict[str, str]]:
    """Report a container that gets only some of the driver's libraries (NVIDIA Container Toolkit, "Docker
    Specialized Configurations").
    """
    given = settings(lines).get("NVIDIA_DRIVER_CAPABILITIES", "").lower().replace(" ", "").split(",")
    for capability, library in _LIBRARIES.items() if given != [""] and "all" not in given else ():
        if capability not in given:
            yield {
                "subject": "NVIDIA_DRIVER_CAPABILITIES",
                "message": f"is {','.join(given)}: without {capability} the container has no {library} does not start",
                "remedy": "set NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            }


_NCCL_OF = re.compile(r"([\w.-]{1,60}): .{0,80}\((2), (\d{1,2}), (\d{1,2})\)")


def _mixed_nccl_versions(lines: Sequence[str]) -> Iterator[dict[str, str]]:
    """Report hosts with different versions of NCCL, as pdsh shows ``torch.cuda.nccl.version()`` of each."""
    hosts: dict[str, list[str]] = {}
    for line in lines:
        if found := _NCCL_OF.match(line):
            hosts.setdefault(".".join(found.groups()[1:]), []).append(found[1])
    if len(hosts) > 1:
        told = "; ".join(f"{version} on {', '.join(names[:4])}" for version, names in hosts.items())
        yield {
            "subject": "NCCL",
            "message": f"is not the same on all hosts: {told}: ranks of different versions fail or hang",
            "remedy": "install the same build of torch and NCCL on every host",
        }


def _too_many(whole: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield that torchrun starts more workers on a node than the container or the allocation has GPUs."""
    started = {int(found[1]) for line in whole if (found := _WORKERS.search(line))}
    given = workers(whole)
    if len(started) == 1 and len({*given.values()}) == 1 and max(started) > max(given.values()) > 0:
        words, count = next(iter(given.items()))
        yield {
            "subject": "--nproc-per-node",
            "message": f"starts {max(started)} workers on a node, but `{words}` gives it {plural(count, 'GPU')}: the "
            'ranks beyond them fail with "invalid device ordinal"',
            "remedy": "ask for as many GPUs as there are workers",
        }


def _unavailable_gpus(lines: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield that a container's job asks for a GPU that the container does not have: inside they count from 0."""
    asked = [max(map(int, found[1].split(","))) for line in lines if (found := _ASKED.search(line))]
    lists = [found[1].split(",") for line in lines for each in _GIVEN if (found := each.search(line))]
    given = [len(each) for each in lists] + [int(found[1]) for line in lines if (found := _NUMBER_GIVEN.search(line))]
    if len(asked) == 1 and given and len(set(given)) == 1 and asked[0] >= given[0] > 0:
        yield {
            "subject": "CUDA_VISIBLE_DEVICES",
            "message": f"names GPU {asked[0]}, but the container has {given[0]}, which count from 0 inside",
            "remedy": "leave CUDA_VISIBLE_DEVICES out: the container has only the GPUs that it is given",
        }
