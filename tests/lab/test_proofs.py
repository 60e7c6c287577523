"""Each launcher once, by the commands of the documentation, and each way in which nodes prove that they belong."""

import shlex

import pytest
from documentation import ROOT, Example, blocks, prints

from . import Completed, Lab, launchers, why_not
from .hosts import ended
from .launchers import BY_NAME, DOCTOR, NCCLPROBE, PORT, TOKEN, by_hand, findings, report, verdict

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "a lab can be made here")]
need_slurm = pytest.mark.skipif(bool(why_not(*launchers.SLURM)), reason=why_not(*launchers.SLURM) or "here")
need_mpirun = pytest.mark.skipif(bool(why_not("mpirun")), reason=why_not("mpirun") or "here")


def example(page: str, where: str) -> Example:
    """Return the one command of a page that is for `where`."""
    (found,) = (block for block in blocks(ROOT / "docs" / page) if block.comment == f"lab: {where}")
    (only,) = found.examples
    return only


def words(command: str) -> list[str]:
    """Return the words of a command, in which ncclprobe is that of this checkout."""
    return [word for each in shlex.split(command) for word in (NCCLPROBE if each == "ncclprobe" else [each])]


def nodes(lab: Lab) -> list[str]:
    return [each["name"] for each in report(lab)["nodes"]]


def test_by_hand_the_lines_of_the_page_and_of_node_0_start_both_nodes() -> None:
    first, second = (example("reference/many-nodes.md", host) for host in ("n0", "n1"))
    with Lab(hosts=2) as lab:
        began = lab["n0"].start([*words(first.command), "--json", str(lab.folder / "n0.json"), "--no-color"])
        began.until_says("--node-rank 1")
        (line,) = (line for line in began.err.splitlines() if "--node-rank 1" in line)
        name, secret = line.split()[0].split("=")
        assert line.split()[1:3] == ["ncclprobe", "doctor"]
        assert second.command.startswith(f"{name}=… ncclprobe doctor ")
        assert lab["n1"].run(words(second.command)[1:], {name: secret}).code == 0
        done = began.wait(60.0)
        assert (done.code, prints(done.out, first.expected)) == (0, True), done
        assert verdict(lab, "launch.unproven")["status"] == "pass"
        assert secret not in (lab.folder / "n0.json").read_text()


def test_by_hand_a_trusted_network_or_a_file_in_a_shared_home_is_enough_and_nothing_else_is() -> None:
    with Lab(hosts=2) as lab:
        done = ended(by_hand(lab.hosts, "--trust-network", env={}), 60.0)
        assert [each.code for each in done.values()] == [0, 0], done
        assert verdict(lab, "launch.unproven")["status"] == "warn"
        for env, hint in (({}, "the command that node 0 prints"), ({"NCCLPROBE_TOKEN": "changeme"}, "openssl rand")):
            alone = by_hand([lab["n1"]], nodes=2, env=env)["n1"].wait(30.0)
            assert (alone.code, hint in alone.err) == (2, True), alone
        path = lab.folder / ".config/ncclprobe/token"
        path.parent.mkdir(parents=True)
        path.touch(0o600)
        path.write_text("0123456789abcdef" * 4)
        done = ended(by_hand(lab.hosts, env={"HOME": str(lab.folder)}), 60.0)
        assert [each.code for each in done.values()] == [0, 0], done
        assert verdict(lab, "launch.unproven")["status"] == "pass"


@need_slurm
def test_under_slurm_munge_proves_the_nodes_and_without_it_each_is_alone() -> None:
    said = example("deploy.md", "slurm")
    switches = "SwitchName=leaf7 Nodes=n[0-1]\nSwitchName=leaf8 Nodes=n2\nSwitchName=spine Switches=leaf[7-8]\n"
    with Lab(hosts=3) as lab, launchers.slurm(lab, switches=switches) as cluster:
        srun, *line = words(said.command)
        start = line.index(NCCLPROBE[0])
        doctor = [*line[:start], *BY_NAME, str(lab.folder), *line[start:], "--no-color"]
        done = cluster.run([srun, *doctor], {"MASTER_PORT": str(PORT)})
        assert (done.code, prints(done.out, said.expected)) == (0, True), done
        assert {verdict(lab, id_)["status"] for id_ in ("launch.unproven", "launch.mesh")} == {"pass"}
        assert "token: munge" in (lab.folder / "n0.json").read_text()

        location = [*DOCTOR, "--select", "sync.location"]
        done = cluster.run([srun, "-N3", "--ntasks-per-node=1", *location], TOKEN)
        assert "WARN  sync.location  n2" in done.out, done
        only = "is the only node below leaf switch leaf8; the other 2 nodes are below leaf7"
        assert only in " ".join(done.out.split())

        for host in lab.hosts:
            host.must("umount", "/run/munge")
        done = cluster.run([srun, *doctor], {"MASTER_PORT": str(PORT)})
        assert done.code == 3, done
        assert nodes(lab) == ["n0"]
        for name in ("n0", "n1"):  # each says so
            unproven = verdict(lab, "launch.unproven", name)
            assert (unproven["status"], unproven["required"]) == ("unknown", True)
            assert "no secret" in unproven["why"]
        assert "--trust-network" in unproven["why"]


def mpi(lab: Lab, **env: str) -> Completed:
    given = {"MASTER_ADDR": "n0", "MASTER_PORT": str(PORT), **env}
    return launchers.mpirun(lab, [*BY_NAME, str(lab.folder), *DOCTOR, "--timeout", "40"], given).wait(90.0)


@need_mpirun
def test_under_mpirun_the_users_own_token_proves_them_and_without_one_each_node_is_alone() -> None:
    with Lab(hosts=2, nics=2, ipv4=False, ipv6=True) as lab:
        assert mpi(lab, **TOKEN).code == 0
        assert nodes(lab) == ["n0", "n1"]
        assert findings(lab, "warn", "fail") == {}
        done = mpi(lab)
        assert done.code == 3, done
        assert nodes(lab) == ["n0"]
        assert verdict(lab, "launch.unproven", "n1")["status"] == "unknown"


def test_under_torchrun_its_store_is_where_the_nodes_meet() -> None:
    pytest.importorskip("torch")
    with Lab(hosts=2) as lab:
        doctor = ["-m", "ncclprobe.doctor", "--backend", "gloo", "--json", str(lab.folder / "n0.json")]
        done = ended(launchers.torchrun(lab, doctor), 120.0)
        assert [each.code for each in done.values()] == [0, 0], done
        assert nodes(lab) == ["n0", "n1"]
        assert findings(lab, "warn", "fail") == {}
