"""NCCL's device sources for a host compiler: PTX becomes the functions of tests/cuda_stand_in/device_code.h."""

import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_stages import processes

_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8}
_TRANSLATED: Sequence[tuple[str, str]] = (
    (r"\{ \.reg \.pred .*barrier\.red\.or\.pred\S* p, %2, p", "{0} = simt_barrier_or({1}, {2}, blockDim.x);"),
    (r"\{ \.reg \.pred .*barrier\.red\.or\.pred\S* p, %2, %3, p", "{0} = simt_barrier_or({1}, {2}, {3});"),
    (r"barrier\.sync\S* %0;", "simt_barrier({0}, blockDim.x);"),
    (r"barrier\.sync\S* %0, %1;", "simt_barrier({0}, {1});"),
    (r"(fence|membar)\.[\w.]+;$", "__sync_synchronize();"),
    (r"mov\.u64 %0, %%globaltimer;", "{0} = simt_time();"),
    (r"cvta\.", "simt_point({0}, (uintptr_t){1});"),
    (r"mad\.lo\.u32 %0, %1, %2, %0;", "{0} += {1} * {2};"),
    (r"mad\.hi\.u32 %0, %1, %2, %0;", "{0} += __umulhi({1}, {2});"),
    (r"mul\.hi\.u32 %0, %1, %2;", "{0} = __umulhi({1}, {2});"),
    (r"multimem|red\.", "__builtin_trap();"),
)
"""PTX, as a regular expression of its begin, and what is written for it; {n} is its operand %n."""
_MOVE = re.compile(r"(?:membar\.\w+; ?)?(ld|st)\.(\S+) (.*)")
_ASM = re.compile(r"\basm\b\s*(?:volatile)?\s*\(")
_TYPES = {
    "Sum": "i8|u8|i32|u32|i64|u64|f16|f32|f64|bf16",
    "MinMax": "i8|u8|i64|u64|f32|bf16",
    "PreMulSum": "f32|bf16",
    "Prod": "f32",
    "SumPostDiv": "i32|u32",
}
_FEW = {"Sum": "f32|f64"}
"""The types that are built of each operator, and those of a release that no torch runs above. Any other function ends
the process with a line.
"""
_GENERATE_S = 60.0
_TOGETHER = 3
"""So many generated files are compiled as one: much of their time goes to the same headers."""


def translate(asm: str) -> str:
    """The C++ for what stands between the parentheses of one asm statement. Raises ValueError where it is not known."""
    template, *sections = _split(asm, ":")
    ptx = "".join(literal or name for literal, name in re.findall(r'"([^"]*)"|([#\w]+)', template))
    operands = [each[each.index("(") :].strip() for part in sections[:2] for each in _split(part, ",") if "(" in each]
    for pattern, text in _TRANSLATED:
        if re.match(pattern, ptx):
            return text.format(*operands)
    move = _MOVE.match(ptx)
    size = re.search(r"\.[bu](8|16|32|64)\b", ptx)
    if not move or not (size or "#" in ptx):
        raise ValueError(f"unknown PTX: {ptx}")
    kind, _, places = move.groups()
    address = operands[int(re.findall(r"\[%(\d)\]", places)[0])]
    values = [operands[int(each)] for each in re.findall(r"(?<!\[)%(\d)", places)]
    if len(values) > 1:
        name = "load" if kind == "ld" else "store"
        return f"simt_{name}{len(values)}({address}, {', '.join(values)});"
    nbytes = _SIZES[size[1]] if size else "bytes"  # the parameter of NCCL's macro
    if kind == "ld":
        return f"{values[0]} = simt_load<{nbytes}>({address});"
    return f"simt_store<{nbytes}>({address}, {values[0]});"


def _split(text: str, mark: str) -> list[str]:
    """Split where `mark` stands outside of quotes and parentheses."""
    parts, depth, quoted = [""], 0, False
    for letter in text:
        quoted ^= letter == '"'
        depth += 0 if quoted else (letter == "(") - (letter == ")")
        if letter == mark and not quoted and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def rewrite(text: str) -> str:
    """A source with all its asm statements translated."""
    done, at = "", 0
    while found := _ASM.search(text, at):
        end, depth, quoted = found.end(), 1, False
        while depth:
            quoted ^= text[end] == '"'
            depth += 0 if quoted else (text[end] == "(") - (text[end] == ")")
            end += 1
        statement = text[found.end() : end - 1].replace("\\\n", " ")
        done += f"{text[at : found.start()]}{{ {translate(statement)} }}"
        at = end + (text[end] == ";")
    return done + text[at:]


def _built(types: Mapping[str, str]) -> str:
    reduced = [f"{name} ({types_of})" for name, types_of in types.items()]
    return "|".join(
        [
            "SendRecv|(AllGather|AllGatherV|Broadcast) RING *",
            *(f"AllReduce {each} (RING|TREE) *" for each in reduced),
            *(f"(ReduceScatter|Reduce) {each} RING *" for each in reduced),
        ]
    )


def make(source: Path, out: Path, few: bool) -> list[Path]:
    """Write `out`/device and what is to be compiled of it; return that. Raises OSError, ValueError."""
    device, generated = out / "device", out / "generated"
    shutil.rmtree(device, ignore_errors=True)
    shutil.copytree(source / "src" / "device", device)
    for path in sorted(device.rglob("*")):
        if path.suffix in (".h", ".cu", ".cuh") and "symmetric" not in path.parts:
            path.write_text(adapt(path.name, rewrite(path.read_text())))
    _generate(device / "generate.py", generated, out, _built(_FEW if few else _TYPES))
    table = generated / "device_table.cu"
    table.write_text(table.read_text().replace("ncclDevFunc_Nop,", "simt_not_built,"))
    files = [path for path in sorted(generated.glob("*.cu")) if path != table]
    tables = [table, generated / "host_table.cc", *_symmetric(device, out)]
    return [*_units(files, out), *tables, device / "common.cu", device / "onerank.cu"]


def _units(files: Sequence[Path], out: Path) -> list[Path]:
    """The generated files, some together: those that include the same headers, which have no guards."""
    bodies: dict[str, list[str]] = {}
    for path in files:
        text = path.read_text()
        if "DEFINE_" in text:
            includes = "".join(re.findall(r"#include .*\n", text))
            bodies.setdefault(includes, []).append(text.replace(includes, ""))
    units: list[Path] = []
    for includes, texts in bodies.items():
        for begin in range(0, len(texts), _TOGETHER):
            units.append(out / f"unit{len(units)}.cu")
            units[-1].write_text(includes + "".join(texts[begin : begin + _TOGETHER]))
    return sorted(units, key=lambda path: path.stat().st_size, reverse=True)  # the slowest first


def _symmetric(device: Path, out: Path) -> list[Path]:
    """The host's table of symmetric kernels, each of which traps."""
    script, generated = device / "symmetric" / "generate.py", out / "symmetric"
    if not script.exists():
        return []
    _generate(script, generated, out)
    table = next(generated.glob("*host*.cc"), None)
    if table is None:
        return []
    text = re.sub(r"(?m)^(__global__ void [^;]*);", r"\1 { __builtin_trap(); }", table.read_text())
    (out / "symmetric.cc").write_text(text)
    return [out / "symmetric.cc"]


def _generate(script: Path, into: Path, out: Path, *arguments: str) -> None:
    into.mkdir(exist_ok=True)
    ended = processes.run(
        [sys.executable, script, into, *arguments], out / "generate.log", {"NCCL_USE_CMAKE": "0"}, _GENERATE_S
    )
    if ended.code:
        raise OSError(str(ended))


def adapt(name: str, text: str) -> str:
    """Shared memory belongs to the thread's block, and who polls lets others go on."""
    if name == "common.h":
        return re.sub(r"extern __shared__ ncclShmemData ncclShmem;\n#if.*?#endif\n", "", text, flags=re.S)
    if name == "common.cu":
        text = re.sub(
            r"(__global__ void ncclDevKernelGin\w+\([^)]*\)) \{\n.*?\n\}", r"\1 { __builtin_trap(); }", text, flags=re.S
        )
        return re.sub(r"__shared__ ncclShmemData ncclShmem;\n#if.*?#endif\n", "", text, flags=re.S)
    return re.sub(r"((?:int|bool) checkAbort\([^)]*\) \{\n)", r"\1  simt_yield();\n", text)
