"""`parascale site init`: writes first versions of the files for a new cluster, from what Slurm reports."""

import json
from pathlib import Path

import click

from parascale import slurm
from parascale.cli import COUNT, Location, project_options
from parascale.errors import ConfigError
from parascale.files import write_text
from parascale.plan.survey import SINFO, Shape, Survey, asked, data_sheet, recorded, survey
from parascale.settings.strict import NAME

PROFILES = Path(__file__).parents[1] / "profiles"
CHECK, MISSING = "# ~ check this", "# ? not found out: "


@click.group()
def site():
    """Describe the machine that trainings run on."""


@site.command()
@click.argument("called", metavar="[NAME]", required=False)
@click.option("--partition", help="Default: Slurm's default if it has GPUs, else that with most GPUs.")
@click.option(
    "--from",
    "printed",
    type=Location(exists=True, dir_okay=False),
    multiple=True,
    metavar="FILE",
    help=f"What `scontrol show node`, `scontrol show partition` and `scontrol show config`, or `{SINFO}` printed there; once for each.",
)
@click.option("--gpus", type=COUNT, help="GPUs of a node of a machine without Slurm.")
@click.option("--gpu", help="Their name, with --gpus.")
@project_options
def init(find, called, partition, printed, gpus, gpu):
    """Write first versions of this cluster's files: config/sites/NAME.yaml, config/NAME.yaml and profiles/NAME/config.yaml. NAME defaults to
    the cluster's name.

    Values marked ~ are assumed; values in lines marked ? could not be found out.

    \b
    Example: parascale site init mycluster
    Example: parascale site init workstation --gpus 8 --gpu H100
    """
    if (gpu and not gpus) or (gpus and (printed or partition)):
        raise click.UsageError("--gpu goes with --gpus, and --gpus without --from and --partition")
    find()  # changes into the project's folder
    if gpus:
        found = Survey(called or "machine", Shape(gpus, gpu))
    else:
        found = survey(*(recorded(printed) if printed else asked()), partition)
    name, accounts = called or found.cluster, [] if gpus or printed else slurm.accounts()
    if not NAME.fullmatch(name):
        raise ConfigError(f"`{name}`: a name starts with a letter or digit, then letters, digits, `-`, `_` or `.`")
    # The run table of the full reproduction needs two nodes with four GPUs each.
    table = "runs-jureca.tsv" if found.shape.gpus >= 4 and found.partitions else f"runs-{name}.tsv"
    texts = {
        Path(f"config/sites/{name}.yaml"): site_file(name, found),
        Path(f"config/{name}.yaml"): configuration_file(name, found, table, accounts),
        Path(f"profiles/{name}/config.yaml"): profile_file(name, found, accounts),
    }
    if table == f"runs-{name}.tsv":
        gpus = found.shape.gpus  # one training on one GPU and one on all GPUs of a node
        rows = ["run\tworkload\tgpus_per_node\tdp", "single\twikitext2\t1\t1", f"ddp\twikitext2\t{gpus}\t{gpus}"]
        texts[Path("config", table)] = "\n".join(rows if gpus > 1 else rows[:2]) + "\n"
    if there := [str(path) for path in texts if path.exists()]:
        raise ConfigError(f"{there[0]}: there already; remove it, or give another name: parascale site init NAME")
    for path, text in texts.items():
        write_text(path, text)
        print(f"{path}: lines to check: {text.count(CHECK) + text.count(MISSING)}")
    print(f"Then: snakemake --profile profiles/{name} -n")


def site_file(name, found):
    shape, sheet = found.shape, data_sheet(found.shape.gpu)
    gpu = sheet["gpu"] if sheet else shape.gpu
    lines = [
        "# yaml-language-server: $schema=../schema/site.json",
        f"# Begun by `parascale site init` for {name}. Values marked ~ are assumed: check them. Lines marked ? could not be",
        "# found out: fill them in, or leave them out, and plans that need them say `unknown`.",
        f"title: {name}, {shape.gpus} × {gpu or 'GPU'} a node",
        "device: cuda # that is also what torch calls AMD's GPUs",
        f"gpus_per_node: {shape.gpus}",
        f"cores_per_node: {shape.cores}" if shape.cores else f"{MISSING}cores_per_node: <physical cores of a node>",
        *([f"threads_per_core: {shape.threads_per_core}"] if shape.cores else []),
        f"host_memory_gb: {shape.memory_gb:g}" if shape.memory_gb else f"{MISSING}host_memory_gb: <10⁹ bytes>",
        f"gpu: {gpu} {CHECK}: for `{shape.gpu}`, with what follows, from its data sheet"
        if gpu
        else f"{MISSING}gpu: <name>",
    ]
    if sheet:
        lines += [
            f"gpu_memory_gb: {sheet['gpu_memory_gb']} {CHECK}",
            f"peak_tflops: {{{', '.join(f'{key}: {value}' for key, value in sheet['peak_tflops'].items())}}}",
            f"memory_gigabytes_per_second: {sheet['memory']}",
            f"node_link: {{gigabytes_per_second: {sheet['link']}, microseconds: 5}} {CHECK}: nvidia-smi topo -m",
        ]
    else:
        lines += [
            f"{MISSING}gpu_memory_gb: <10⁹ bytes>",
            f"{MISSING}peak_tflops: {{bf16: <dense>, fp16: <dense>, tf32: <dense>, fp32: <dense>}}",
            f"{MISSING}memory_gigabytes_per_second: <of one GPU>",
            f"{MISSING}node_link: {{gigabytes_per_second: <in one direction, per GPU>, microseconds: 5}}",
        ]
    return "\n".join(lines + (_slurm_lines(found) if found.partitions else [])) + "\n"


def _slurm_lines(found):
    lines = [
        f"{MISSING}network_link: {{gigabytes_per_second: <between nodes, per GPU>, microseconds: 5}}",
        f"{MISSING}network: {{interface: <of the fast network, if nodes have several>}}",
        f"{MISSING}needs_account: <true if jobs need one>"
        if found.accounting is None
        else f"needs_account: {str(found.needs_account).lower()}",
        f"{MISSING}demands_gpus: <true if jobs without GPUs are refused in partition {found.partitions[0].name}>",
        f"{MISSING}purge_days: <days after which the filesystem of results deletes unused files, if it does>",
    ]
    if not found.whole_nodes:
        lines += [f"charges: whole_nodes {CHECK}: jobs ask for all cores of their nodes"]
    if found.data:
        lines += [f"data_partition: {found.data.name} {CHECK}: it has no GPUs; may your account use it?"]
    lines += ["partitions: # trainings use the first; current limits: scontrol show partition"]
    for each in filter(None, (*found.partitions, found.data)):
        cores = found.data_cores if each is found.data and found.data_cores != found.shape.cores else None
        values = {"name": each.name, "max_hours": each.max_hours, "max_nodes": each.max_nodes, "cores_per_node": cores}
        lines += [f"  - {json.dumps({key: value for key, value in values.items() if value is not None})}"]
    return lines


def configuration_file(name, found, table, accounts):
    """The text of the configuration."""
    known = len(accounts) == 1 and found.needs_account
    account = f"account: {accounts[0]}" if known else f"{MISSING}account: <one of {', '.join(accounts)}>"
    return f"""\
# yaml-language-server: $schema=schema/config.json
# What runs on {name}: profiles/{name} names this file. Every key is explained in config/README.md.
site: {name}
runs: {table}
title: parascale on {name}
{MISSING}root: <a folder of your own on the fast filesystem, for results/, work/ and store/>
{account if accounts else "# account:"}
"""


def profile_file(name, found, accounts):
    """The text of the profile: the shipped one for Slurm with changes for this cluster, or the local one for a machine without Slurm."""
    base, files = ("slurm", "slurm.yaml") if found.partitions else ("local", "config.yaml")
    text = (PROFILES / base / "config.yaml").read_text(encoding="utf-8")
    changes = {
        f"../../config/{files}": f"../../config/{name}.yaml",
        f"--profile profiles/{base}": f"--profile profiles/{name}",
    }
    if found.partitions:
        changes["config/sites/slurm.yaml"] = f"config/sites/{name}.yaml"
        if found.needs_account is False or len(accounts) == 1:
            changes[" --config account=<project>"] = ""
    if found.accounting is False:
        changes["# slurm-no-account: true # if"] = "slurm-no-account: true #"
    if found.shape.threads_per_core > 1:
        changes["'--signal=TERM@120'"] = "'--signal=TERM@120 --threads-per-core=1'"
    if found.partitions and found.data is None:
        changes |= {f"# {key}: [": f"{key}: [" for key in ("groups", "group-components", "set-resource-scopes")}
        changes["# resources: [cpus_per_task=64]"] = f"resources: [cpus_per_task={found.shape.cores}]"
    if found.forgets and found.forgets < 60:
        changes["status-checks: 20"] = f"status-checks: {max(1, int(found.forgets / 3))}"
    for old, new in changes.items():
        if text.count(old) != 1:
            raise ConfigError(f"profiles/{base}/config.yaml: no longer has `{old}` once; restore it")
        text = text.replace(old, new)
    return text
