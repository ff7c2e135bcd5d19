"""`parascale site init` on clusters of three shapes: what Slurm says is in the files, what it does not say is marked, and they load."""

import difflib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from parascale import slurm
from parascale.cli import parascale
from parascale.commands import site
from parascale.errors import PERMANENT_FAILURE, RequirementError
from parascale.plan import limits
from parascale.plan.planner import Planner
from parascale.plan.survey import Shape, data_sheet, survey
from parascale.settings import load_project_file
from tests.made_up.cluster import AMD, PARTITIONS, RECORDED, SHARED, SMALL
from tests.made_up.project import link_project

ROOT = Path(__file__).parents[2]
ACCOUNTS = {"meadow": ["lab", "course"], "northern": ["project_465"], "cluster": []}


@pytest.fixture
def asked(monkeypatch):
    """A function that lets Slurm, and no driver, answer as on one of the clusters."""

    def answer(cluster):
        nodes, partitions, configuration = cluster
        texts = {"node": nodes, "partition": partitions, "config": configuration}
        monkeypatch.setattr(slurm, "_ask", lambda command, within=0: texts[command[2]])
        name = slurm.configuration().get("ClusterName", "cluster")
        monkeypatch.setattr(slurm, "accounts", lambda: ACCOUNTS[name])
        return name

    return answer


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the project by links, into whose folders of settings files may be written."""
    link_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    for place in map(tmp_path.joinpath, ("config", "config/sites", "profiles")):
        target = place.resolve()
        if place.is_symlink():
            place.unlink()
            place.mkdir()
            for each in target.iterdir():
                (place / each.name).symlink_to(each)
    return tmp_path


def begun(name):
    """The texts of the site file, the configuration and the profile."""
    places = f"config/sites/{name}.yaml", f"config/{name}.yaml", f"profiles/{name}/config.yaml"
    return [Path(place).read_text() for place in places]


def not_found_out(texts):
    """The keys that are marked so."""
    lines = (line for text in texts for line in text.splitlines())
    return [line.removeprefix(site.MISSING).partition(":")[0] for line in lines if line.startswith(site.MISSING)]


@pytest.mark.parametrize("printed", [False, True], ids=["asked", "recorded"])
@pytest.mark.parametrize("cluster", [SHARED, AMD, SMALL], ids=ACCOUNTS)
def test_the_files_of_a_cluster_say_what_slurm_says_and_mark_the_rest(cluster, printed, asked, folder, capsys, golden):
    """Whether it answers or its answers were recorded, one of them as records of several lines; an account is asked for here alone."""
    name, arguments = asked(cluster), ["site", "init"]
    if printed:
        for number, text in enumerate(cluster):
            (folder / f"{number}.txt").write_text(text.replace(" CPUAlloc", "\n   CPUAlloc"))
            arguments += ["--from", f"{number}.txt"]
    parascale.main(arguments, standalone_mode=False)
    written, configuration, profile = begun(name)
    golden(written, "site")
    golden(configuration, "configuration")
    shipped = Path("profiles/slurm/config.yaml").read_text().splitlines()
    lines = (line for line in difflib.ndiff(shipped, profile.splitlines()) if line[0] in "+-")
    golden("\n".join(lines), "profile, against the shipped one")
    project = load_project_file(f"config/{name}.yaml")
    assert len(project.runs) == (44 if project.site.gpus_per_node >= 4 else 2)
    assert project.site.device == "cuda"
    assert project.site.name == name
    extra = yaml.safe_load(profile)["default-resources"]["slurm_extra"]
    assert ("--threads-per-core=1" in extra) == (project.site.threads_per_core > 1)
    assert parascale.main(["site", "init"], standalone_mode=False) == PERMANENT_FAILURE
    assert "there already" in capsys.readouterr().err


SINFO = """\
PARTITION TIMELIMIT NODES S:C:T MEMORY GRES
cpu 7-00:00:00 40 2:64:2 500000 (null)
gpu* 2-00:00:00 3 2+:48+:1 1031000+ gpu:h100:8(S:0-1)
gpu* 2-00:00:00 1 2:32:1 500000 gpu:v100:4
"""


def test_sinfo_tells_the_most(folder, capsys):
    """Its nodes and limits; of accounts and networks nothing."""
    (folder / "sinfo.txt").write_text(SINFO)
    parascale.main(["site", "init", "there", "--from", "sinfo.txt"], standalone_mode=False)
    found = load_project_file("config/there.yaml").site
    assert (found.gpus_per_node, found.cores_per_node, found.gpu_memory_gb) == (8, 96, 85.5)
    read = [(each.name, each.max_hours, each.max_nodes) for each in found.partitions]
    assert read == [("gpu", 48, 4), ("cpu", 168, 40)]
    texts = begun("there")
    assert "needs_account" in not_found_out(texts) and "slurm-no-account" not in yaml.safe_load(texts[2])
    (folder / "sinfo.txt").write_text("PARTITION AVAIL TIMELIMIT NODES STATE NODELIST")
    assert parascale.main(["site", "init", "empty", "--from", "sinfo.txt"], standalone_mode=False)
    assert "record `scontrol show node` or `sinfo -o" in capsys.readouterr().err


def test_a_machine_without_slurm_plans(folder, monkeypatch, capsys):
    """From the GPUs that are named. Where nothing is, one line says what to do."""
    monkeypatch.setenv("PATH", str(folder))
    assert parascale.main(["site", "init"], standalone_mode=False)
    assert re.search(r"`scontrol` is not installed.*--from FILE.*--gpus 8 --gpu H100\n$", capsys.readouterr().err)
    parascale.main(["site", "init", "box", "--gpus", "8", "--gpu", "H100"], standalone_mode=False)
    planner = Planner(load_project_file("config/box.yaml", overrides={"root": "r"}))
    assert planner.site.gpus_per_node == 8 and planner.prediction("ddp").wall_seconds > 0
    assert not_found_out(begun("box")) == ["cores_per_node", "host_memory_gb", "root"]
    assert "executor" not in yaml.safe_load(begun("box")[2])


def test_a_profile_that_was_begun_plans(asked, folder):
    """With the marked lines as they are: what nobody knows is unknown, and nothing fails."""
    name = asked(SMALL)
    parascale.main(["site", "init", name], standalone_mode=False)
    command = [sys.executable, "-m", "snakemake", "--profile", f"profiles/{name}", "-n"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "train_single" in done.stdout + done.stderr, done.stdout + done.stderr


# As RECORDED has them, in its order: the shape of nodes, and (name, hours, nodes) of the partitions with GPUs.
WEEK = 168.0
FOUND = [
    (Shape(8, None, 64, 2, 1028.0), [("a6000", WEEK, 1)]),
    (Shape(1, "rtxproserver6000", 32, 1, 261.1), [("compute-gpu", WEEK, 1)]),
    (Shape(1, "nvidia-rtx-3090", 8, 1, 0.0), [("compute100", WEEK, 1)]),
    (Shape(4, "nvidia_h100_80gb_hbm3", 64, 1, 536.9), [("h100", 48.0, 3)]),
    (Shape(1, "GTX1660Super", 3, 2, 16.6), [("normal_master", 120.0, 1)]),
    (Shape(4, "a100", 32, 2, 265.7), [("interactive", WEEK, 1), ("gpu", WEEK, 1)]),
]


@pytest.mark.parametrize(
    ("texts", "shape", "partitions"),
    [(texts, *found) for texts, found in zip(RECORDED.values(), FOUND, strict=True)],
    ids=[*RECORDED],
)
def test_real_clusters_are_read_as_they_printed_themselves(texts, shape, partitions):
    """Where only nodes are published, their partitions are made up."""
    nodes = slurm.parse_records("node", texts[0])
    names = {name for record in nodes.values() for name in record["Partitions"].split(",")}
    made_up = "\n".join(f"PartitionName={name} MaxTime=7-00:00:00 State=UP TotalNodes=1" for name in names)
    found = survey(nodes, slurm.parse_records("partition", texts[1] or made_up), {})
    assert found.shape == shape
    assert sorted((each.name, each.max_hours, each.max_nodes) for each in found.partitions) == sorted(partitions)
    assert found.needs_account is None and not found.whole_nodes and found.data is None
    written = yaml.safe_load(site.site_file("mine", found))
    assert written["gpus_per_node"] == shape.gpus and written.get("host_memory_gb") == (shape.memory_gb or None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            PARTITIONS["seawulf"],
            {"a100": (8, 2), "a100-long": (48, 1), "large-40core": (8, 50), "extended-96core-shared": (84, 1)},
        ),
        (PARTITIONS["aris"], {"compute": (48, 48)}),
    ],
    ids=[*PARTITIONS],
)
def test_limits_of_real_partitions_are_read_as_they_printed_them(text, expected):
    found = limits.partitions(slurm.parse_records("partition", text))
    assert {each.name: (each.max_hours, each.max_nodes) for each in found} == expected


def test_another_partition_is_chosen_by_name_and_a_wrong_one_refused():
    records = [slurm.parse_records(kind, text) for kind, text in zip(("node", "partition"), SHARED, strict=False)]
    found = survey(*records, {}, "gpu-short")
    assert found.partitions[0].name == "gpu-short" and found.needs_account is None
    said = "no partition `gpu-shrot` with GPUs takes jobs here; did you mean `gpu-short`"
    with pytest.raises(RequirementError, match=said):
        survey(*records, {}, "gpu-shrot")
    without = {name: record for name, record in records[0].items() if record["Gres"] == "(null)"}
    with pytest.raises(RequirementError, match="no partition here has nodes with GPUs"):
        survey(without, records[1], {})


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("a100", "NVIDIA A100-SXM4-40GB"),
        ("a100_80gb", "NVIDIA A100-SXM4-80GB"),
        ("Tesla V100-SXM2-32GB", "Tesla V100-SXM2-32GB"),
        ("gh200", "NVIDIA GH200 96GB"),
        ("mi250x", "AMD Instinct MI250X (one of two dies)"),
        ("Tesla T4", "Tesla T4"),
        ("nvidia_h100_pcie", "NVIDIA H100 PCIe"),
        ("nvidia_h100_80gb_pcie", "NVIDIA H100 PCIe"),
        ("h100_nvl", "NVIDIA H100 NVL"),
        ("nvidia_h100_80gb_hbm3", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100 80GB PCIe"),
        ("NVIDIA A100-SXM-64GB", "NVIDIA A100-SXM4-40GB"),
        ("T400", None),
        (None, None),
    ],
)
def test_a_gpu_is_found_among_the_data_sheets(name, gpu):
    sheet = data_sheet(name)
    assert (sheet and sheet["gpu"]) == gpu


def test_each_data_sheet_says_how_fast_fp16_is():
    names = ("v100", "a100", "gh200", "h100", "h200", "t4", "l40s", "mi250x", "mi300x")
    known = [data_sheet(name)["peak_tflops"]["fp16"] for name in names]
    assert known == [125, 312, 990, 989, 989, 65, 362, 191.5, 1307]


@pytest.mark.parametrize(
    ("configuration", "accounting", "needed"),
    [
        ({"AccountingStorageType": "accounting_storage/slurmdbd"}, True, True),
        ({"AccountingStorageType": "accounting_storage/none"}, False, False),
        ({"AccountingStorageType": "(null)"}, False, False),
        ({}, None, None),
    ],
)
def test_an_account_is_needed_only_where_there_is_accounting(configuration, accounting, needed):
    records = [slurm.parse_records(kind, text) for kind, text in zip(("node", "partition"), SMALL, strict=False)]
    found = survey(*records, configuration and {**configuration, "AccountingStorageEnforce": "associations"})
    assert (found.accounting, found.needs_account) == (accounting, needed)
