"""`parascale site init`: the files of a cluster that nobody has described yet, as far as the cluster itself says what is in them."""

from pathlib import Path

import click

from parascale import slurm
from parascale.cli import COUNT, Location, project_options
from parascale.errors import ConfigError
from parascale.files import write_text
from parascale.plan.survey import Shape, Survey, asked, data_sheet, gpu_here, networks_here, recorded, survey
from parascale.settings.strict import NAME

SHIPPED = Path(__file__).resolve().parents[3]
CHECK, MISSING = "# ~ check this", "# ? not found out: "


@click.group()
def site():
    """The machine that trainings run on."""


@site.command()
@click.argument("called", metavar="[NAME]", required=False)
@click.option(
    "--partition",
    help="The partition for trainings; default: Slurm's default if it has GPUs, else the one with most GPUs.",
)
@click.option(
    "--from",
    "printed",
    type=Location(exists=True, dir_okay=False),
    multiple=True,
    metavar="FILE",
    help="What `scontrol show node`, `scontrol show partition`, `scontrol show config` or `sinfo` printed there; once for each.",
)
@click.option("--gpus", type=COUNT, help="GPUs of a node of a machine without Slurm.")
@click.option("--gpu", help="Their name, with --gpus.")
@project_options
def init(find, called, partition, printed, gpus, gpu):
    """Begin the files of this cluster: config/sites/NAME.yaml, config/NAME.yaml and profiles/NAME/config.yaml. Without NAME, they take
    the cluster's name.

    It asks Slurm, and the driver if this machine has GPUs: on a node with GPUs it finds out more than on a login node.
    Values marked ~ are assumed, and lines marked ? could not be found out.

    \b
    Example: parascale site init mycluster
    Example: parascale site init workstation --gpus 8 --gpu H100
    """
    if sum(map(bool, (gpus or gpu, printed))) > 1 or (gpu and not gpus):
        raise click.UsageError("give --from, or --gpus with --gpu, or neither")
    find()  # the process works in the project's folder from now on
    here = not (printed or gpus)
    if gpus:
        found = Survey(called or "machine", Shape(gpus, gpu))
    else:
        found = survey(*(recorded(printed) if printed else asked()), partition)
    name, accounts = called or found.cluster, slurm.accounts() if here else []
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"`{name}` cannot name files: use letters, digits, `-`, `_` and `.`, the first a letter or a digit"
        )
    texts = {
        Path(f"config/sites/{name}.yaml"): site_file(found, *((gpu_here(), networks_here()) if here else (None, []))),
        Path(f"config/{name}.yaml"): configuration_file(name, found, accounts),
        Path(f"profiles/{name}/config.yaml"): profile_file(name, found, accounts),
    }
    if (table := Path("config") / _run_table(name, found)).name != "runs-jureca.tsv":
        texts[table] = run_table(found)
    if there := [str(path) for path in texts if path.exists()]:
        raise ConfigError(f"{there[0]}: there already; remove it, or give another name: parascale site init NAME")
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
        open_questions = sum(CHECK in line or line.startswith(MISSING) for line in text.splitlines())
        print(f"{path}: {open_questions} lines to check")
    print(f"Then: snakemake --profile profiles/{name} -n")


def site_file(found, gpu, networks):
    """The text of a site file. gpu: of this machine, as `gpu_here` says. networks: interfaces of this machine."""
    shape = found.shape
    named, memory = gpu or (None, None)
    sheet = data_sheet(named or shape.gpu, memory)
    said = "so says the driver" if gpu else f"{'Slurm says' if found.partitions else 'you said'} `{shape.gpu}`"
    named = named or (sheet["gpu"] if sheet else shape.gpu)
    lines = [
        "# yaml-language-server: $schema=../schema/site.json",
        f"# Begun by `parascale site init` for {found.cluster}. Values marked ~ are assumed: check them. Lines marked ? could not be",
        "# found out: fill them in, or leave them out, and plans that need them say `unknown`.",
        f"title: {found.cluster}, {shape.gpus} × {named or 'GPU'} a node",
        "device: cuda # that is also what torch calls AMD's GPUs",
        f"cores_per_node: {shape.cores}" if shape.cores else f"{MISSING}cores_per_node: <physical cores of a node>",
    ]
    if shape.threads_per_core > 1:
        lines += [f"threads_per_core: {shape.threads_per_core} # SMT is on"]
    lines += [f"gpus_per_node: {shape.gpus}"]
    lines += [
        f"# Other nodes of this partition: {each.gpus} × {each.gpu or 'GPU'}, {each.cores} cores, {each.memory_gb:g} GB"
        for each in found.others
    ]
    if sheet:
        lines += [
            f"gpu: {named} {CHECK}: {said}; the rates below are its data sheet's",
            f"gpu_memory_gb: {memory or sheet['gpu_memory_gb']}" + ("" if gpu else f" {CHECK}"),
            f"peak_tflops: {{{', '.join(f'{key}: {value}' for key, value in sheet['peak_tflops'].items())}}}",
            f"memory_gigabytes_per_second: {sheet['memory']}",
            f"node_link: {{gigabytes_per_second: {sheet['link']}, microseconds: 5}} {CHECK}: nvidia-smi topo -m",
        ]
    else:
        lines += [
            f"gpu: {named} # no data sheet of it is known here" if named else f"{MISSING}gpu: <name>",
            f"gpu_memory_gb: {memory}" if memory else f"{MISSING}gpu_memory_gb: <10⁹ bytes>",
            f"{MISSING}peak_tflops: {{bf16: <dense>, fp16: <dense>, tf32: <dense>, fp32: <dense>}}",
            f"{MISSING}memory_gigabytes_per_second: <of one GPU>",
            f"{MISSING}node_link: {{gigabytes_per_second: <in one direction, per GPU>, microseconds: 5}}",
        ]
    lines += [f"host_memory_gb: {shape.memory_gb:g}" if shape.memory_gb else f"{MISSING}host_memory_gb: <10⁹ bytes>"]
    if found.partitions:
        lines += _slurm_lines(found, networks)
    return "\n".join(lines) + "\n"


def _slurm_lines(found, networks):
    lines = [f"{MISSING}network_link: {{gigabytes_per_second: <between nodes, per GPU>, microseconds: 5}}"]
    if networks:
        lines += [f"network: {{interface: {networks[0]}}} {CHECK}: an interface of this machine; nodes may have others"]
    else:
        lines += [f"{MISSING}network: {{interface: <of the fast network, if nodes have several>}}"]
    if not found.whole_nodes:
        lines += [f"charges: whole_nodes {CHECK}: Slurm shares nodes here, but jobs ask for all cores of theirs"]
    lines += [
        f"needs_account: {str(bool(found.needs_account)).lower()}",
        f"{MISSING}demands_gpus: <true if jobs without GPUs are refused in partition {found.partitions[0].name}>",
        f"{MISSING}purge_days: <days after which the filesystem of results deletes unused files, if it does>",
    ]
    if found.data:
        lines += [f"data_partition: {found.data.name} {CHECK}: it has no GPUs; may your account use it?"]
    lines += ["partitions: # the first is that of trainings; current limits: scontrol show partition"]
    for each in filter(None, (*found.partitions, found.data)):
        values = {"name": each.name, "max_hours": f"{each.max_hours:g}", "max_nodes": each.max_nodes}
        if each is found.data and found.data_cores != found.shape.cores:
            values["cores_per_node"] = found.data_cores
        words = ", ".join(f"{key}: {value}" for key, value in values.items() if value is not None)
        lines += [f"  - {{{words}}}"]
    return lines


def _run_table(name, found):
    """The name of a run table whose rows fit: that of the full reproduction takes two nodes of four GPUs."""
    return "runs-jureca.tsv" if found.shape.gpus >= 4 and found.partitions else f"runs-{name}.tsv"


def run_table(found):
    """The text of a run table for a node: a training on one GPU, and on all of them."""
    rows = ["run\tworkload\tgpus_per_node\tdp", "single\twikitext2\t1\t1"]
    if (gpus := found.shape.gpus) > 1:
        rows += [f"ddp\twikitext2\t{gpus}\t{gpus}"]
    return "\n".join(rows) + "\n"


def configuration_file(name, found, accounts):
    """The text of a configuration: what runs there."""
    if len(accounts) == 1 and found.needs_account:
        account = f"account: {accounts[0]}"
    else:
        account = f"{MISSING}account: <one of {', '.join(accounts)}>" if accounts else "# account:"
    return f"""\
# yaml-language-server: $schema=schema/config.json
# What runs on {found.cluster}: profiles/{name} names this file. Every key is explained in config/README.md.
site: {name}
runs: {_run_table(name, found)}
title: parascale on {found.cluster}
{MISSING}root: <a folder of your own on the fast filesystem, for results/, work/ and store/>
{account}
"""


def profile_file(name, found, accounts):
    """The text of a profile: a shipped one, with what Slurm says of this cluster, or for one machine where it has none."""
    base = "slurm" if found.partitions else "local"
    text = (SHIPPED / f"profiles/{base}/config.yaml").read_text(encoding="utf-8")
    account = " --config account=<project>" if found.needs_account and len(accounts) != 1 else ""
    changes = {
        "# A GPU cluster with Slurm.": f"# {found.cluster}, begun by `parascale site init`.",
        "--profile profiles/slurm --config account=<project>": f"--profile profiles/{name}{account}",
        "config/sites/slurm.yaml": f"config/sites/{name}.yaml",
        "../../config/slurm.yaml": f"../../config/{name}.yaml",
    }
    if not found.partitions:
        changes = {"profiles/local": f"profiles/{name}", "../../config/config.yaml": f"../../config/{name}.yaml"}
    elif found.needs_account is None:
        changes["# slurm-no-account: true # if"] = "slurm-no-account: true #"
    if found.shape.threads_per_core > 1:
        changes["'--signal=TERM@120'"] = "'--signal=TERM@120 --threads-per-core=1'"
    if found.data is None and found.partitions:
        changes |= {f"# {key}: [": f"{key}: [" for key in ("groups", "group-components", "set-resource-scopes")}
        changes["# resources: [cpus_per_task=64]"] = f"resources: [cpus_per_task={found.shape.cores}]"
    if found.forgets and found.forgets < 60:
        changes["status-checks: 20"] = f"status-checks: {max(1, int(found.forgets / 3))}"
    for old, new in changes.items():
        if text.count(old) != 1:
            raise ConfigError(f"profiles/{base}/config.yaml: no longer has `{old}` once; restore it")
        text = text.replace(old, new)
    qos = f"slurm-qos: {found.qos[0]} {CHECK}: the partition takes {', '.join(found.qos)}\n" if found.qos else ""
    return text + qos
