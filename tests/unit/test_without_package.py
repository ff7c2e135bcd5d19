"""Where our package is not installed, Snakemake says what to install; the version that it asks for is the
one that is pinned, and so tested."""

import re
import subprocess
import sys
from pathlib import Path

import yaml

from parascale.launch.environment import PINS, read_pins

ROOT = Path(__file__).parents[2]
# Snakemake in an environment that has everything but our package and its plugins.
WITHOUT = """
import sys
sys.path[:] = [folder for folder in sys.path if not folder.endswith("scripts")]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in str(finder).lower()]
from snakemake.cli import main
main({arguments!r})
"""


def snakemake_without(*arguments):
    """(exit code, both streams) of Snakemake in such an environment."""
    command = [sys.executable, "-c", WITHOUT.format(arguments=list(arguments))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_what_is_missing_is_named_with_the_remedy():
    code, said = snakemake_without("-n", "--cores", "1")
    assert code and "lacks `parascale`" in said and "pip install -e" in said, said


def test_what_snakemake_says_of_a_profile_stands_in_the_documents_with_the_remedy():
    """Snakemake reads a profile before our Snakefile, and knows nothing of the plugin that it names."""
    code, said = snakemake_without("--profile", "profiles/jureca", "-n")
    explained = re.search(
        r"`(argument --logger: invalid choice: \S+)`(.*?)\n\n", (ROOT / "README.md").read_text(), re.DOTALL
    )
    assert code == 2 and explained[1] in said and "pip install -e" in explained[2], said
    for profile in (ROOT / "profiles").glob("*/config.yaml"):
        lines = profile.read_text().splitlines()
        comment = lines[lines.index(next(line for line in lines if line.startswith("logger:"))) - 1]
        assert re.search("`(.*)`", comment)[1] in said and "pip install -e" in comment, profile


def test_the_least_snakemake_is_the_pinned_one():
    least = re.search(r'min_version\("(.*)"\)', (ROOT / "Snakefile").read_text())[1]
    assert read_pins(PINS)["snakemake"] == least


def test_the_slurm_plugin_that_modules_are_written_for_is_the_pinned_one():
    pinned = read_pins(PINS)["snakemake-executor-plugin-slurm"]
    texts = {path: path.read_text() for path in (ROOT / "scripts").rglob("*.py")}
    named = {path: re.findall(r"snakemake-executor-plugin-slurm (\d[\d.]*\d)", text) for path, text in texts.items()}
    named = {path: versions for path, versions in named.items() if versions}
    assert len(named) == 2 and all(versions == [pinned] for versions in named.values()), named


def test_the_entry_of_the_catalog_is_true():
    """The flags that it names exist, and it promises no environment that the workflow refuses to deploy."""
    entry = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    option, profile = entry["mandatory-flags"]["flags"].split()
    assert option == "--profile" and (ROOT / profile / "config.yaml").is_file()
    assert entry["software-stack-deployment"] == {"conda": False, "singularity": False, "singularity+conda": False}
    assert "--sdm: no container or conda environment" in (ROOT / "rules/common.smk").read_text()
    assert entry["report"] and re.search(r"^report: ", (ROOT / "Snakefile").read_text(), re.MULTILINE)
