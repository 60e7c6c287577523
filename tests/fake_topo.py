"""Matrices as `nvidia-smi topo` prints them, made from its grammar, and what terminals, forms and people do to them."""

from collections.abc import Callable

from hypothesis import strategies as st

from ncclprobe.facts.topo_matrix import Matrix
from ncclprobe.model.values import Struct

TITLES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
LEGEND = {
    "X": "Self", "SYS": "across sockets", "PHB": "host bridge", "PXB": "bridges", "PIX": "one bridge",
    "NV#": "# NVLinks",
}  # fmt: skip
TOPO_LINKS = ("SYS", "NODE", "PHB", "PXB", "PIX", "NV1", "NV18", "SOC")


class Printed(Struct, frozen=True):
    """A machine's matrix before it is text. `links[i][j]` is of device i and j, GPUs first; `tails` one per GPU."""

    gpus: int
    nics: int
    links: tuple[tuple[str, ...], ...]
    tails: tuple[tuple[str, ...], ...]
    nic_rows: bool = True
    legend: bool = True

    @property
    def labels(self) -> list[str]:
        return [f"GPU{n}" for n in range(self.gpus)] + [f"NIC{n}" for n in range(self.nics)]

    @property
    def names(self) -> list[str]:
        return [f"GPU{n}" for n in range(self.gpus)] + [f"mlx5_{n + 2}" for n in range(self.nics)]

    def text(self) -> str:
        """The bytes of driver 535 and later with all three columns, of older ones with fewer."""
        titles = TITLES[: len(self.tails[0])]
        lines = ["\t\x1b[4m" + "\t".join((*self.labels, *titles)) + "\x1b[0m"]
        for number, label in enumerate(self.labels if self.nic_rows else self.labels[: self.gpus]):
            cells = ["\t" + (" X " if link == "X" else link) for link in self.links[number]]
            tail = tail_text(self.tails[number]) if number < self.gpus else "\t" * (0, 1, 2, 4)[len(titles)]
            lines.append(label + "".join(cells) + tail)
        lines += ["", "Legend:", "", *(f"  {word:<4} = {what}" for word, what in LEGEND.items())] if self.legend else []
        if self.nics:
            lines += ["", "NIC Legend:", "", *(f"  NIC{n}: mlx5_{n + 2}" for n in range(self.nics))]
        return "\n".join(lines) + "\n"

    def matrix(self) -> Matrix:
        """What a reader must see in that text."""
        names = self.names
        shown = len(names) if self.nic_rows else self.gpus
        columns = [tuple(tail[n] if n < len(tail) else None for tail in self.tails) for n in range(len(TITLES))]
        return Matrix(
            kind="topo-m", gpus=tuple(names[: self.gpus]), nics=tuple(names[self.gpus :]),
            links={names[n]: dict(zip(names, self.links[n], strict=True)) for n in range(shown)},
            cpu_affinity=columns[0], numa_affinity=columns[1], gpu_numa_id=columns[2],
            incomplete=() if self.nic_rows or not self.nics else (without_rows(self.labels[self.gpus :]),),
        )  # fmt: skip


def without_rows(labels: list[str]) -> str:
    return f"rows {labels[0]} to {labels[-1]} are missing" if labels[1:] else f"row {labels[0]} is missing"


def tail_text(tail: tuple[str, ...]) -> str:
    """The affinities of a GPU's row: not one field per title, an N/A and a GPU NUMA ID have a tab of their own."""
    before = ("\t", "\t\t" if tail[1:2] == ("N/A",) else "\t", "\t\t")
    return "".join(tab + value for tab, value in zip(before, tail, strict=False))


@st.composite
def printed(draw: st.DrawFn, *, blanks: bool = True, least: int = 1) -> Printed:
    """Any small matrix. `blanks`: affinities may be printed blank. `least`: the fewest GPUs."""
    gpus, nics = draw(st.integers(least, 4)), draw(st.integers(0, 4))
    size = gpus + nics
    above = [[draw(st.sampled_from(TOPO_LINKS)) for _ in range(size)] for _ in range(size)]
    links = tuple(tuple("X" if i == j else above[min(i, j)][max(i, j)] for j in range(size)) for i in range(size))
    width = draw(st.integers(0, 3))
    cpus = st.sampled_from(("0-31,64-95", "0", "48-95", *[""] * blanks))
    numa = st.sampled_from(("0", "1", "N/A", "0,252-255", "0-1"))
    tails = st.tuples(cpus, numa, st.sampled_from(("N/A", "2"))).map(lambda tail: tail[:width])
    rows = tuple(draw(tails) for _ in range(gpus))
    return Printed(gpus, nics, links, rows, nic_rows=draw(st.booleans()), legend=True)


def plain(text: str) -> str:
    """The text without its colours."""
    return text.replace("\x1b[4m", "").replace("\x1b[0m", "")


def on_header(change: Callable[[str], str]) -> Callable[[str], str]:
    """A damage to the first line alone."""
    return lambda text: change(text.partition("\n")[0]) + "\n" + text.partition("\n")[2]


def on_lines(change: Callable[[int, str], str]) -> Callable[[str], str]:
    """A damage to every line, given its number."""
    return lambda text: "".join(change(number, line) + "\n" for number, line in enumerate(text.splitlines()))


FORMS: dict[str, Callable[[str], str]] = {
    "raw": lambda text: text, "escape bytes lost": lambda text: text.replace("\x1b", ""), "colours lost": plain,
    "colour never closed": lambda text: text.replace("\x1b[0m", ""),
    "tabs expanded": lambda text: plain(text).expandtabs(8), "no-break spaces": lambda text: text.replace("\t",
    "\t\xa0"), "tab and four blanks": lambda text: text.replace("\t", "\t    "),
    "the header's tab lost": on_header(str.lstrip),
    "the header indented by blanks and a tab": on_header(lambda line: "  \t" + line.lstrip()),
    "the header's names glued": on_header(lambda line: line.replace("\tGPU", "GPU").replace("\tNIC", "NIC")),
    "the header broken": on_header(lambda line: plain(line).replace("GPU0\t", "GPU0\n", 1)),
    "a border": on_lines(lambda _, line: line + "  | |"),
    "a prompt and an empty line": lambda text: "user@host:~$ nvidia-smi topo -m\n\n" + text,
    "prose that names a GPU": lambda text: "Note: GPU0 was seen at start\n" + text,
    "prose behind": lambda text: text + "\nGPU0 and GPU1 are far apart, see above.\nGPU0 mlx5_2\n",
}  # fmt: skip
"""Forms of one matrix that say the same."""

CARRIERS: dict[str, Callable[[str], str]] = {
    "a file": lambda text: text, "a file without its last newline": lambda text: text.rstrip("\n"),
    "a pager": on_lines(lambda n, line: line + "\n[0/1989]" if n == 1 else line),
    "Windows": lambda text: text.replace("\n", "\r\n"), "a block of Markdown": on_lines(lambda _, line: "    " + line),
    "a quoting mail": on_lines(lambda _, line: "> " + line), "srun --label": on_lines(lambda _, line: "0: " + line),
    "mpirun --tag-output": on_lines(lambda _, line: "[1,0]<stdout>:" + line), "kubectl --prefix": on_lines(lambda _,
    line: "[pod/job-x7/main] " + line), "a log with time stamps": on_lines(lambda n,
    line: f"2026-09-01T23:52:{n:02}.000{n}Z {line}"), "grep over files": on_lines(lambda _,
    line: "logs/node-1.out:# " + line), "HTML": lambda text: "<p>" + text.replace("\n", "<br>\n").replace("\t",
    "\t&nbsp;"),
}  # fmt: skip
"""What brings a text to us, and leaves its marks on every line."""


def rewrap(text: str, width: int) -> str:
    """What a terminal of that width makes of it when it is copied."""
    lines = plain(text).expandtabs(8).splitlines()
    pieces = [line[at : at + width] for line in lines for at in range(0, max(len(line), 1), width)]
    return "\n".join(pieces) + "\n"
