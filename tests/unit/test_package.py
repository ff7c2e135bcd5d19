"""The package fits: its base is small, works alone and beside other versions, and all that was tested has wheels for both machines."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from parascale.errors import PERMANENT_FAILURE
from parascale.launch.environment import NOT_OURS, PINS, TORCH, read_pins

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BASE, EXTRAS = PROJECT["dependencies"], PROJECT["optional-dependencies"]
NO_WHEELS = {"connection-pool", "rouge-score"}  # pure Python, which pip builds anywhere
# What the base is for, in a folder of the project; `NAME: text` that each says.
VERBS = {
    ("plan",): "core-s",
    ("advise", "--workload", "wikitext2", "--site", "jureca", "--gpus", "8"): "wikitext2-8",
    ("site", "init", "box", "--gpus", "8", "--gpu", "H100"): "profiles/box",
    ("store", "list"): "0 finished trainings",
}
# Beside these nothing is replaced: the lowest that the ranges allow, and ones between.
OTHERS = {
    "lowest": [need.split(",")[0].replace(">=", "==") for need in BASE],
    "between": ["numpy==2.2.6", "pandas==2.3.3"],
}
HIDDEN = """
import runpy, sys
sys.modules |= dict.fromkeys({modules!r})
sys.argv[1:] = {words!r}
runpy.run_module("parascale", run_name="__main__")
"""


def names(needs):
    return {canonicalize_name(Requirement(need).name) for need in needs}


def all_pins():
    """Name → version of every pin."""
    return {canonicalize_name(name): each for name, each in re.findall(r"(?m)^([\w.-]+)==(\S+)", PINS.read_text())}


def test_ranges_allow_what_was_tested_and_each_direct_need_has_its_place():
    ours = {canonicalize_name(name) for name in read_pins(PINS)}
    places = [names(BASE), *map(names, (EXTRAS["train"], EXTRAS["workflow"]))]
    assert set.union(*places) == ours and sum(map(len, places)) == len(ours)
    sections = dict(re.findall(r"(?ms)^# --- ([^\n]+)\n(.*?)(?=^# ---|\Z)", PINS.read_text()))
    assert sections.keys() >= NOT_OURS
    assert names(EXTRAS["dev"]) == names(re.findall(r"(?m)^[\w.-]+", sections["tests and style"]))
    for need in map(Requirement, (*BASE, *EXTRAS["train"], *EXTRAS["workflow"])):
        assert all_pins()[canonicalize_name(need.name)] in need.specifier, need
        assert "==" not in str(need) and ">=" in str(need), need
    assert f"torch>={TORCH[0]}.{TORCH[1]}" in EXTRAS["train"]


def without_extras(words, folder):
    """The command where no package of an extra can be imported."""
    modules = [name.replace("-", "_") for name in names(EXTRAS["train"]) - {"pillow"} | names(EXTRAS["workflow"])]
    code = HIDDEN.format(modules=modules, words=[*map(str, words)])
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)


def project(folder):
    """A folder with what a checkout has for plans."""
    shutil.copytree(ROOT / "config", folder / "config")
    shutil.copy(ROOT / "Snakefile", folder)
    return folder


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
def test_the_base_needs_no_extra(words, tmp_path):
    done = without_extras(words, project(tmp_path))
    assert done.returncode == 0 and VERBS[words] in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "package"),
    [
        (["prove", ".", "."], "torch"),
        (["checkpoint", "inspect", "."], "torch"),
        (["data", "download", "--workload", "lm-small"], "pyarrow"),
    ],
)
def test_what_an_extra_would_bring_is_named_in_one_line(words, package, tmp_path):
    done = without_extras(words, project(tmp_path))
    assert done.returncode == PERMANENT_FAILURE and done.stderr.count("\n") == 1
    said = rf"error: this needs the package `{package}`: .* -m pip install 'parascale\[train\]'\n"
    assert re.fullmatch(said, done.stderr)


@pytest.mark.parametrize("package", ["torch", "safetensors"])
def test_a_script_that_records_for_a_proof_hears_what_is_missing(package):
    code = f"import sys; sys.modules['{package}'] = None\nfrom parascale import prove"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert re.search(rf"ModuleNotFoundError: .*`{package}.*`: pip install {package}", done.stderr.splitlines()[-1])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, built from a copy."""
    place = tmp_path_factory.mktemp("built")
    for name in ("scripts", "envs", "profiles"):
        shutil.copytree(ROOT / name, place / name, symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", place, place)
    (built,) = place.glob("*.whl")
    return built


def pip(python, *words):
    done = subprocess.run([python, "-m", "pip", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Empty:
    """A new virtual environment."""

    def __init__(self, folder):
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        self.folder, self.python = folder, folder / "bin/python"
        self.before = self.bytes()

    def bytes(self):
        return sum(file.stat().st_size for file in self.folder.rglob("*") if not file.is_symlink())

    def packages(self):
        found = json.loads(pip(self.python, "list", "--format", "json"))
        return {canonicalize_name(each["name"]): each["version"] for each in found}

    def call(self, *words, folder):
        here = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [self.folder / "bin/parascale", *words]
        return subprocess.run(command, cwd=folder, env=here, capture_output=True, text=True)

    def works(self, folder):
        for words, said in VERBS.items():
            done = self.call(*words, folder=folder)
            assert done.returncode == 0 and said in done.stdout, done.stderr


@pytest.mark.slow
def test_the_base_of_the_wheel_works_in_an_empty_environment(wheel, tmp_path):
    empty, begun = Empty(tmp_path / "venv"), time.perf_counter()
    known = empty.packages()
    pip(empty.python, "install", "--constraint", PINS, wheel)
    seconds = time.perf_counter() - begun
    brought = empty.packages().keys() - known.keys()
    megabytes = (empty.bytes() - empty.before) / 1e6
    print(f"\n{seconds:.0f} s, {megabytes:.0f} MB, {len(brought)} packages: {sorted(brought)}")
    wanted = names((*EXTRAS["train"], *EXTRAS["workflow"], *EXTRAS["dev"])) - {"pillow"}  # which matplotlib brings
    assert brought >= names(BASE) and not brought & wanted and brought <= all_pins().keys() | {"parascale"}
    empty.works(project(tmp_path))
    assert "`torch`: " in empty.call("prove", ".", ".", folder=tmp_path).stderr
    pip(empty.python, "check")


@pytest.mark.slow
@pytest.mark.parametrize("others", OTHERS)
def test_nothing_is_replaced_beside_other_versions(others, wheel, tmp_path):
    empty = Empty(tmp_path / "venv")
    pip(empty.python, "install", *OTHERS[others])
    before = empty.packages()
    pip(empty.python, "install", wheel)
    after = empty.packages()
    assert {name: after[name] for name in before} == before
    if others == "lowest":
        assert after.keys() - before.keys() == {"parascale"}, "lower ends of ranges are tested as they are"
    empty.works(project(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_pin_has_a_wheel_for_the_machine(machine, tmp_path):
    pins = {name: version for name, version in all_pins().items() if name not in NO_WHEELS}
    (tmp_path / "pins.txt").write_text("".join(f"{name}=={version}\n" for name, version in pins.items()))
    words = [word for each in ("2014", "_2_17", "_2_28") for word in ("--platform", f"manylinux{each}_{machine}")]
    words += ["--only-binary", ":all:", "--python-version", "3.11", "--target", tmp_path / "nothing", "--no-deps"]
    report = tmp_path / "report.json"
    pip(sys.executable, "install", "--dry-run", "--report", report, *words, "--requirement", tmp_path / "pins.txt")
    found = json.loads(report.read_text())["install"]
    assert {canonicalize_name(each["metadata"]["name"]) for each in found} == pins.keys()
    assert all(each["download_info"]["url"].partition("#")[0].endswith(".whl") for each in found)
    torch = next(each["metadata"] for each in found if each["metadata"]["name"] == "torch")
    cuda = any("nccl" in need for need in torch["requires_dist"])
    assert cuda or machine != "aarch64", "envs/jsc.sh says that PyPI's torch for Arm is built for CUDA"


@pytest.mark.slow
def test_the_others_are_pure_python(tmp_path):
    pip(
        sys.executable, "wheel", "--no-deps", "--wheel-dir", tmp_path, *(f"{name}=={all_pins()[name]}" for name in NO_WHEELS)
    )  # fmt: skip
    built = [file.name for file in tmp_path.glob("*.whl")]
    assert len(built) == len(NO_WHEELS) and all(name.endswith("-none-any.whl") for name in built)
