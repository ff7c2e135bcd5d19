"""`parascale site init`: the files of a cluster that nobody has described yet, as far as the cluster itself says what is in them."""

from pathlib import Path

import click

from parascale import slurm
from parascale.cli import project_options
from parascale.errors import ConfigError
from parascale.files import write_text
from parascale.plan.survey import data_sheet, gpu_here, networks_here, survey
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
@project_options
def init(find, called, partition):
    """Begin the files of this cluster: config/sites/NAME.yaml, config/NAME.yaml and profiles/NAME/config.yaml. Without NAME, they take
    the cluster's name.

    It asks Slurm, and the driver if this machine has GPUs: on a node with GPUs it finds out more than on a login node.
    Values marked ~ are assumed, and lines marked ? could not be found out.

    \b
    Example: parascale site init mycluster
    """
    find()  # the process works in the project's folder from now on
    found = survey(slurm.records("node"), slurm.records("partition"), slurm.configuration(), partition)
    name, accounts = called or found.cluster, slurm.accounts()
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"`{name}` cannot name files: use letters, digits, `-`, `_` and `.`, the first a letter or a digit"
        )
    files = {
        Path(f"config/sites/{name}.yaml"): site_file(found, gpu_here(), networks_here()),
        Path(f"config/{name}.yaml"): configuration_file(name, found, accounts),
        Path(f"profiles/{name}/config.yaml"): profile_file(name, found, accounts),
    }
    if found.shape.gpus < 4:
        files[Path("config") / _run_table(name, found)] = run_table(found)
    if there := [str(path) for path in files if path.exists()]:
        raise ConfigError(f"{there[0]}: there already; remove it, or give another name: parascale site init NAME")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
        open_questions = sum(CHECK in line or line.startswith(MISSING) for line in text.splitlines())
        print(f"{path}: {open_questions} lines to check")
    print(f"Then: snakemake --profile profiles/{name} -n")


def site_file(found, gpu, networks):
    """The text of a site file. gpu: of this machine, as `gpu_here` says. networks: interfaces of this machine."""
    shape = found.shape
    sheet = data_sheet(gpu[0], gpu[1]) if gpu else data_sheet(shape.gpu)
    named = gpu[0] if gpu else sheet["gpu"] if sheet else shape.gpu
    said = "so says the driver" if gpu else f"Slurm says `{shape.gpu}`"
    lines = [
        "# yaml-language-server: $schema=../schema/site.json",
        f"# Begun by `parascale site init` from what Slurm says of {found.cluster}. Values marked ~ are assumed: check them. Lines marked",
        "# ? could not be found out: fill them in, or leave them out, and plans that need them say `unknown`.",
        f"title: {found.cluster}, {shape.gpus} × {named or 'GPU'} a node",
        "device: cuda # that is also what torch calls AMD's GPUs",
        f"cores_per_node: {shape.cores}",
    ]
    if shape.threads_per_core > 1:
        lines += [f"threads_per_core: {shape.threads_per_core} # SMT is on"]
    lines += [f"gpus_per_node: {shape.gpus}"]
    lines += [f"# Other nodes of this partition: {_words(other)}" for other in found.others]
    if sheet:
        lines += [
            f"gpu: {named} {CHECK}: {said}; the rates below are its data sheet's",
            f"gpu_memory_gb: {gpu[1] if gpu and gpu[1] else sheet['gpu_memory_gb']}" + ("" if gpu else f" {CHECK}"),
            f"peak_tflops: {{{', '.join(f'{key}: {value}' for key, value in sheet['peak_tflops'].items())}}}",
            f"memory_gigabytes_per_second: {sheet['memory']}",
            f"node_link: {{gigabytes_per_second: {sheet['link']}, microseconds: 5}} {CHECK}: nvidia-smi topo -m",
        ]
    else:
        lines += [f"gpu: {named} # no data sheet of it is known here"] if named else [f"{MISSING}gpu: <name>"]
        lines += [f"gpu_memory_gb: {gpu[1]}"] if gpu and gpu[1] else [f"{MISSING}gpu_memory_gb: <10⁹ bytes>"]
        lines += [
            f"{MISSING}peak_tflops: {{bf16: <dense>, fp16: <dense>, tf32: <dense>, fp32: <dense>}}",
            f"{MISSING}memory_gigabytes_per_second: <of one GPU>",
            f"{MISSING}node_link: {{gigabytes_per_second: <in one direction, per GPU>, microseconds: 5}}",
        ]
    lines += [f"host_memory_gb: {shape.memory_gb:g}"] if shape.memory_gb else [f"{MISSING}host_memory_gb: <10⁹ bytes>"]
    lines += [f"{MISSING}network_link: {{gigabytes_per_second: <between nodes, per GPU>, microseconds: 5}}"]
    if networks:
        lines += [f"network: {{interface: {networks[0]}}} {CHECK}: an interface of this machine; nodes may have others"]
    else:
        lines += [f"{MISSING}network: {{interface: <of the fast network, if nodes have several>}}"]
    lines += _slurm_lines(found)
    return "\n".join(lines) + "\n"


def _slurm_lines(found):
    lines = []
    if not found.whole_nodes:
        lines += [f"charges: whole_nodes {CHECK}: Slurm shares nodes here, but jobs ask for all cores of theirs"]
    lines += [f"needs_account: {str(bool(found.needs_account)).lower()}"]
    lines += [f"{MISSING}demands_gpus: <true if jobs without GPUs are refused in partition {found.partitions[0].name}>"]
    lines += [f"{MISSING}purge_days: <days after which the filesystem of results deletes unused files, if it does>"]
    if found.data:
        lines += [f"data_partition: {found.data.name} {CHECK}: it has no GPUs; may your account use it?"]
    lines += ["partitions: # the first is that of trainings; current limits: scontrol show partition"]
    lines += [_partition(each) for each in found.partitions]
    if found.data:
        lines += [_partition(found.data, found.data_cores if found.data_cores != found.shape.cores else None)]
    return lines


def _partition(each, cores=None):
    values = {
        "name": each.name,
        "max_hours": f"{each.max_hours:g}",
        "max_nodes": each.max_nodes,
        "cores_per_node": cores,
    }
    return f"  - {{{', '.join(f'{key}: {value}' for key, value in values.items() if value is not None)}}}"


def _words(shape):
    return f"{shape.gpus} × {shape.gpu or 'GPU'}, {shape.cores} cores, {shape.memory_gb:g} GB"


def _run_table(name, found):
    """The name of a run table whose rows fit: that of the full reproduction takes two nodes of four GPUs."""
    return "runs-jureca.tsv" if found.shape.gpus >= 4 else f"runs-{name}.tsv"


def run_table(found):
    """The text of a run table for nodes of few GPUs: a training on one, and on all of a node."""
    rows = [("run", "workload", "gpus_per_node", "dp"), ("single", "wikitext2", 1, 1)]
    if (gpus := found.shape.gpus) > 1:
        rows += [("ddp", "wikitext2", gpus, gpus)]
    return "".join("\t".join(map(str, row)) + "\n" for row in rows)


def configuration_file(name, found, accounts):
    """The text of a configuration: what runs there."""
    if len(accounts) == 1 and found.needs_account:
        account = f"account: {accounts[0]}"
    else:
        account = f"{MISSING}account: <one of {', '.join(accounts)}>" if accounts else "# account:"
    return "\n".join(
        [
            "# yaml-language-server: $schema=schema/config.json",
            f"# What runs on {found.cluster}: profiles/{name} names this file. Every key is explained in config/README.md.",
            f"site: {name}",
            f"runs: {_run_table(name, found)}",
            f"title: parascale on {found.cluster}",
            f"{MISSING}root: <a folder of your own on the fast filesystem, for results/, work/ and store/>",
            account,
            "",
        ]
    )


def profile_file(name, found, accounts):
    """The text of a profile: the shipped one of any cluster, with what Slurm says of this one."""
    text = (SHIPPED / "profiles/slurm/config.yaml").read_text(encoding="utf-8")
    account = " --config account=<project>" if found.needs_account and len(accounts) != 1 else ""
    changes = {
        "# A GPU cluster with Slurm.": f"# {found.cluster}, begun by `parascale site init`.",
        "--profile profiles/slurm --config account=<project>": f"--profile profiles/{name}{account}",
        "config/sites/slurm.yaml": f"config/sites/{name}.yaml",
        "../../config/slurm.yaml": f"../../config/{name}.yaml",
    }
    if found.shape.threads_per_core > 1:
        changes["'--signal=TERM@120'"] = "'--signal=TERM@120 --threads-per-core=1'"
    if found.needs_account is None:
        changes["# slurm-no-account: true # if"] = "slurm-no-account: true #"
    if found.data is None:
        changes |= {f"# {key}: [": f"{key}: [" for key in ("groups", "group-components", "set-resource-scopes")}
        changes["# resources: [cpus_per_task=64]"] = f"resources: [cpus_per_task={found.shape.cores}]"
    if found.forgets and found.forgets < 60:
        changes["status-checks: 20"] = f"status-checks: {max(1, int(found.forgets / 3))}"
    for old, new in changes.items():
        if text.count(old) != 1:
            raise ConfigError(f"profiles/slurm/config.yaml: no longer has `{old}` once; restore it")
        text = text.replace(old, new)
    qos = f"slurm-qos: {found.qos[0]} {CHECK}: the partition takes {', '.join(found.qos)}\n" if found.qos else ""
    return text + qos
