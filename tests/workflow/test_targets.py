"""Each stage has a target of its own, whose jobs carry its name."""

import re

from tests.made_up.project import link_project

from .programs import call

# Target → what it stands for in config/runs-strategies.tsv: run → rule that trains it.
TARGETS = {
    "single_gpu": dict.fromkeys(("single", "waste", "summary-single", "images-single"), "train_single"),
    "ddp": dict.fromkeys(("ddp", "ddp-fp16", "ddp-powersgd", "images-own-norm"), "train_ddp"),
    "multi_node": dict.fromkeys(("multi-node", "summary-multi-node", "images-multi-node"), "train_multi_node"),
    "fsdp": {
        **dict.fromkeys(("fsdp", "summary-fsdp", "images-fsdp"), "train_fsdp"),
        **dict.fromkeys(("hsdp", "summary-hsdp", "images-hsdp"), "train_hsdp"),
    },
    "tp": dict.fromkeys(("tp", "summary-tp"), "train_tp"),
    "pp": {"pp": "train_pp", "naive": "train_naive"},
    "cp": {"cp": "train_cp"},
    "hybrid": dict.fromkeys(("fsdp-tp", "summary-fsdp-tp"), "train_hybrid"),
    "three_d": {"three-d": "train_three_d"},
    "lightning": dict.fromkeys(("lightning", "images-lightning"), "train_lightning"),
    "local_sgd": dict.fromkeys(("local-sgd", "gossip", "server"), "train_local_sgd"),
}
MORE = ("parity", "communication", "results/comparisons/ddp-vs-single.txt")


def jobs_in(output):
    """(rule, its lines' values by key) of each job that a dry run lists."""
    for name, lines in re.findall(r"^(?:local)?rule (\w+):\n((?: {4}.*\n)+)", output, re.MULTILINE):
        yield name, dict(re.findall(r"^ {4}(\w+): (.*)$", lines, re.MULTILINE))


def test_targets_stand_for_their_runs_under_rule_names_of_their_own(tmp_path):
    """In an empty folder, where nothing is done yet."""
    link_project(tmp_path)
    words = (
        f"snakemake --profile profiles/local -n -p --configfile config/strategies.yaml -- {' '.join((*TARGETS, *MORE))}"
    )
    code, output = call(words.split(), tmp_path, tmp_path / "printed.txt")
    assert code == 0, output
    commands = re.findall(r"^Shell command: (.*)$", output, re.MULTILINE)
    assert len(commands) > 50 and max(map(len, commands)) < 500, "a command has names and paths, settings are in files"
    assert not [command for command in commands if "{" in command]
    jobs = list(jobs_in(output))
    inputs = {name: values.get("input", "") for name, values in jobs}
    trained = {values["wildcards"].removeprefix("run="): name for name, values in jobs if name.startswith("train_")}
    found = {
        target: {run: trained[run] for run in re.findall(r"results/runs/([\w-]+)/summary\.json", inputs[target])}
        for target in TARGETS
    }
    assert found == TARGETS
    several = {run for target, runs in TARGETS.items() for run in runs if target != "single_gpu"}
    judged = set(re.findall(r"results/parity/([\w-]+)/verdict\.json", inputs["parity"]))
    assert several <= judged
    assert set(re.findall(r"results/communication/([\w-]+)\.csv", inputs["communication"])) <= several
    assert inputs["communication"]
    compared = ["results/runs/ddp/summary.json", "results/runs/single/summary.json"]
    assert inputs["compare_checkpoints"].split(", ") == compared
