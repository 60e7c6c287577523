"""`nvidia-smi topo`: what it prints on machines of every age, what becomes of that, and what is refused by its cause.

Each text is our own, written after the grammar in docs/maintainers/nccl.md; `fake_topo` makes those of drivers from 535
on, and the common damage.
"""

import re
from contextlib import suppress

import pytest
from fake_topo import CARRIERS, FORMS, Printed, on_header, plain, printed, rewrap
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.facts.topo_matrix import parse
from ncclprobe.model.errors import ParseError
from ncclprobe.model.values import replace
from tests.each_row import each_row
from tests.facts.made_up_matrices import PAIR, THREE, WIDE


@given(printed(), st.sampled_from(sorted(FORMS)), st.sampled_from(sorted(CARRIERS)))
def test_a_matrix_survives_its_journey(seen: Printed, form: str, carrier: str) -> None:
    assert parse(CARRIERS[carrier](FORMS[form](seen.text()))) == (seen.matrix(),)


@given(printed(blanks=False, least=2), st.data())
def test_rows_are_told_by_their_label_and_cells_that_a_terminal_glued_are_parted(
    seen: Printed, data: st.DataObject
) -> None:
    header, *lines = seen.text().splitlines()
    number = data.draw(st.integers(0, seen.gpus - 1))
    lines[number] = re.sub(r"\t *([A-Z0-9]+) *\t *([A-Z0-9]+)(?=\s|$)", r"\t\1\2", lines[number], count=1)
    shown = lines.index("")
    shuffled = data.draw(st.permutations(lines[:shown]))
    assert parse("\n".join([header, *shuffled, *lines[shown:]]) + "\n") == (seen.matrix(),)


def whole_or_said(seen: Printed, text: str) -> None:
    """A damaged text is refused, or says what is missing, or shows every cell."""
    with suppress(ParseError):
        (found,) = parse(text)
        cells = [[*row.values()] for row in found.links.values()]
        wanted = [[*row.values()] for row in seen.matrix().links.values()]
        assert found.incomplete or (cells == wanted and len(found.nics) == seen.nics)


@given(printed(), st.booleans(), st.data())
def test_a_text_that_is_cut_or_wrapped_is_never_taken_for_whole(
    seen: Printed, legend: bool, data: st.DataObject
) -> None:
    text = replace(seen, legend=legend).text()
    whole_or_said(seen, text[: data.draw(st.integers(0, len(text)))])
    whole_or_said(seen, rewrap(seen.text(), data.draw(st.integers(4, 110))))


@given(printed(blanks=False, least=2), st.data())
def test_one_cell_changed_is_always_found(seen: Printed, data: st.DataObject) -> None:
    one = data.draw(st.integers(0, seen.gpus - 1))
    two = data.draw(st.integers(0, seen.gpus - 1).filter(lambda n: n != one))
    row = list(seen.links[one])
    row[two] = data.draw(st.sampled_from(["X", "NV7", "OK", "FOO", ""]))
    with pytest.raises(ParseError):
        parse(replace(seen, links=(*seen.links[:one], tuple(row), *seen.links[one + 1 :])).text())


def glued(glue: str) -> str:
    """Return THREE with the names of its NICs in the header, and without the blank between two of its words."""
    text = plain(THREE.text()).partition("NIC Legend")[0]
    for label, name in zip(THREE.labels, THREE.names, strict=True):
        text = text.replace(label, name)
    return on_header(lambda line: line.replace(glue, glue.replace("\t", "")))(text)


def in_wide(cells: str) -> str:
    lines = WIDE.text().splitlines()
    lines[3] = lines[3].replace("NODE\tNODE", cells, 1)
    return "\n".join(lines) + "\n"


NIC0 = ("NIC0: mlx5_2", "NIC0:mlx5_2", "NIC0 : mlx5_2", "NIC0 -> mlx5_2", "NIC0 => mlx5_2", "NIC0 = mlx5_2",
        "NIC0: mlx5_2 -> eth2 (rail 0)", "NIC0: mlx5_2->ib0", "NIC0: mlx5_2 → ib0", "NIC0: mlx5_2(ib0), up",
        "NIC0: mlx5_2,", "NIC0: mlx5_2 # of socket 0", "# for the GPUs\n  NIC0: mlx5_2\n  -- for storage")  # fmt: skip
ABOVE = ("+ nvidia-smi topo -m", "== topology ==", "GPU Topology:", "--- Topology at Mon Sep 1 ---")
BETWEEN = ("   ", ", ", "; ", " | ", "\t")
GLUES = ("GPU0\tGPU1", "GPU1\tmlx5_2", "mlx5_2\tmlx5_3", "mlx5_4\tCPU", "Affinity\tNUMA")


@each_row(
    ("seen", "text"),
    [
        *((THREE, THREE.text().replace("NIC0: mlx5_2", entry)) for entry in NIC0),
        *((THREE, THREE.text().replace("mlx5_2\n  NIC1", f"mlx5_2{by}NIC1")) for by in BETWEEN),
        *((THREE, glued(glue)) for glue in GLUES),
        (THREE, on_header(lambda line: re.sub(r"\s", "", line))(plain(THREE.text()))),
        (THREE, THREE.text() + "\n$ nvidia-smi\nNIC0: see above\n"),
        *((PAIR, change(PAIR.text())) for change in (*FORMS.values(), *CARRIERS.values())),
        *((PAIR, f"{line}\n{PAIR.text()}") for line in ABOVE),
        (PAIR, PAIR.text().rstrip("\n") + "\nuser@host:~$ exit\n"), (WIDE, plain(WIDE.text()).expandtabs(8)),
        (PAIR, PAIR.text() + "  NIC0: mlx5_2\n"), (WIDE, in_wide("NODENODE")), (WIDE, in_wide("NODE NODE"))
    ])  # fmt: skip
def test_a_matrix_is_the_same_in_each_form_that_people_give_it(seen: Printed, text: str) -> None:
    assert parse(text) == (seen.matrix(),)
