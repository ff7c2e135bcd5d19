"""`parascale data`: downloads, prepares, converts, verifies and benchmarks datasets."""

import dataclasses
import functools

import click

from parascale.cli import COUNT, named, with_project
from parascale.errors import ConfigError, ParascaleError
from parascale.families import unknown_sizes
from parascale.families.counted import NOT_COUNTED
from parascale.files import write_json
from parascale.plan.planner import require_windows
from parascale.settings import load_workload
from parascale.settings.formats import IMAGE_FORMATS, TOKEN_FORMATS

FORMATS = click.Choice(list(dict.fromkeys([*IMAGE_FORMATS, *TOKEN_FORMATS])))


@click.group()
def data():
    """Datasets: download, prepare, convert, verify and benchmark them.

    \b
    Example: parascale data download --workload lm-small
    """


def with_dataset(verb):
    """Decorate a subcommand like `with_project`, and add --dataset and --workload.

    The function gets `workload`, the first workload that uses the dataset.
    """

    @click.option("--dataset", metavar="NAME", help="A dataset that a workload of the project uses.")
    @click.option("--workload", metavar="NAME", help="The dataset of this workload, even if no run trains it.")
    @with_project
    @functools.wraps(verb)
    def chosen(project, dataset, workload, **options):
        if (dataset is None) == (workload is None):
            raise click.UsageError("name either a dataset with --dataset, or a workload with --workload")
        if workload:
            found = load_workload(project.config.workloads, workload)
        else:
            if dataset not in project.users:
                project.runs.values()  # raises if rows are wrong; one of them may use this dataset
            found = named("dataset", dataset, project.users, "the workloads of the project")
        found.refuse_script("it finds its own data")
        return verb(project=project, workload=found, **options)

    return chosen


@data.command()
@with_dataset
def download(project, workload):
    """Get the raw data: from the Hub, from addresses, from files on this machine, or from installed packages.

    Runs on a login node; nothing else downloads. Complete data is kept (remove its folder to download it
    again), and an interrupted download continues where it stopped.

    \b
    Example: parascale data download --workload lm-small
    """
    from parascale.data.image_download import download_images
    from parascale.data.sources import ATTEMPTS
    from parascale.data.sources import download as download_text

    found, output = workload.data, project.paths.raw(workload.data.dataset)
    if workload.of_images:
        raw = download_images(found.source, found.images, output, ATTEMPTS)
    else:
        raw = download_text(found.source, output, ATTEMPTS)
    for split in raw.splits:
        files = raw.files(split)
        parts = [f"rows {entry['first']:,} to {entry['last']:,}" for entry in files if "first" in entry]
        size = f"{sum(entry['bytes'] for entry in files):,} bytes"
        print(f"{output}: {split}: {len(files)} file(s), {', '.join(parts[:3]) or size}")
    for note in raw.notes:
        print(note)


@data.command()
@click.option("--shard", type=click.IntRange(min=0), help="Encode only this shard of `data.shards`.")
@with_dataset
def prepare(project, workload, shard):
    """Turn raw text, or pairs of document and summary, into arrays of token numbers.

    The vocabulary comes from the train split only. With several `data.shards`, joins the shards that --shard encoded.

    \b
    Example: parascale data prepare --workload lm-small
    """
    from parascale.data import shards
    from parascale.data.own_tokens import prepare_tokens
    from parascale.data.pairs import prepare_pairs
    from parascale.data.sources.raw import Raw
    from parascale.data.text import prepare as prepare_text

    found = workload.data
    if workload.of_images:
        raise click.UsageError(f"dataset `{found.dataset}` is of images: list them with `parascale data index`")
    if shard is not None and shard >= found.shards:
        raise click.UsageError(f"--shard {shard}: shards count from 0, and `data.shards` = {found.shards}")
    output = project.paths.data(found.dataset, found.format)
    raw = Raw(project.paths.raw(found.dataset))
    if found.shards > 1 and raw.holds_tokens():
        raise ConfigError(f"{raw.folder}: holds tokens, and nothing is left to encode: leave out `data.shards`")
    make = prepare_pairs if workload.of_pairs else prepare_tokens if raw.holds_tokens() else prepare_text
    folders = [project.paths.data(found.dataset, "encoded") / found.shard(number) for number in range(found.shards)]
    made: list = [functools.partial(shards.join, folders)] if found.shards > 1 else []
    if shard is not None:
        raw, output, made = raw.shards(found.shards)[shard], folders[shard], [shards.shard]
    manifest = make(raw, found.text, found.expected, output, *made)
    print(f"{output}: vocabulary of {manifest['vocabulary']:,} entries")
    for split, counts in manifest["splits"].items():
        lies = "".join(f", read in place as {facts['dtype']}" for facts in [counts.pop("in_place", None)] if facts)
        said = ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in counts.items())
        print(f"{output}: {split}: {said}{lies}")
    for each in workloads_on(project, workload) if shard is None else ():
        require_windows(each, output)
        count_model(each, manifest["vocabulary"])


def workloads_on(project, workload):
    """All workloads of the project that use the dataset of `workload`, including itself."""
    named = {each.name: each for each in (*project.workloads.values(), workload)}
    return [each for each in named.values() if each.data.dataset == workload.data.dataset]


def count_model(workload, outputs):
    """Count a workload's model for plans, unless it is already counted. If that fails, print why."""
    try:
        if unknown_sizes(workload.model, outputs, *workload.sizes) == NOT_COUNTED:
            from parascale.train.counting import keep_count  # torch loads slowly

            print(f"counted for plans: {keep_count(workload, outputs)}")
    except (ParascaleError, OSError) as error:  # the data is made anyway
        print(f"{workload.model.kind}: {error}")


@data.command()
@with_dataset
def index(project, workload):
    """Write an index of the raw images: paths, sizes, labels. All later steps read the index.

    \b
    Example: parascale data index --dataset shapes
    """
    from parascale.data.image_download import images_root
    from parascale.data.image_sources import index_images
    from parascale.data.sources.raw import Raw

    found = workload.data
    if not workload.of_images:
        raise click.UsageError(f"dataset `{found.dataset}` is of text: prepare it with `parascale data prepare`")
    root = images_root(Raw(project.paths.raw(found.dataset)))
    manifest = index_images(root, found.images, source_of(project, workload), found.source.columns)
    for split, facts in manifest["splits"].items():
        print(f"{split}: {facts['samples']:,} images, {facts['bytes']:,} bytes, {len(manifest['classes'])} classes")
    for note in manifest["notes"]:
        print(note)
    for each in workloads_on(project, workload):
        count_model(each, len(manifest["classes"]))


@data.command()
@click.option("--format", "form", type=FORMATS, required=True, help="The format to write.")
@click.option("--shard", type=click.IntRange(min=0), help="Images: write only this shard.")
@click.option("--gather", is_flag=True, help="Images: write the manifest of finished shards.")
@click.option("--threads", type=COUNT, help="Overrides `formats.threads`.")
@with_dataset
def convert(project, workload, form, shard, gather, threads):
    """Write a dataset in another format: images from their index, tokens from the flat arrays.

    Without --shard and --gather, it writes everything and continues where an earlier conversion stopped. A shard with bad samples
    leaves them out and counts as finished; --gather then fails, or lists them in the manifest (`formats.bad_samples`).

    \b
    Example: parascale data convert --dataset shapes --format arrow
    """
    from parascale.data import convert as conversion
    from parascale.data.convert import convert_tokens
    from parascale.data.images import ImageIndex
    from parascale.data.text import Tokens

    require_format(workload, form)
    settings, dataset = project.config.formats, workload.data.dataset
    if not workload.of_images and (gather or shard is not None):
        raise click.UsageError("--shard and --gather are for images: tokens are converted at once")
    if shard is not None and shard >= settings.shards:
        raise click.UsageError(f"--shard {shard}: shards count from 0, and `formats.shards` = {settings.shards}")
    if threads:
        settings = dataclasses.replace(settings, threads=threads)
    source, output = source_of(project, workload), project.paths.data(dataset, form)
    if not workload.of_images:
        convert_tokens(Tokens(source), dataset, form, output)
    elif gather:
        conversion.write_manifest(ImageIndex(source), dataset, form, settings, output)
    elif shard is None:
        conversion.convert(ImageIndex(source), dataset, form, settings, output)
    else:
        record = conversion.convert_shard(ImageIndex(source), dataset, form, shard, settings, output)
        if record["bad"]:
            print(conversion.bad_message(dataset, record["bad"]))


@data.command()
@click.option("--format", "form", type=FORMATS, required=True, help="The format to verify.")
@with_dataset
def verify(project, workload, form):
    """Prove that converted data equals its source, sample by sample.

    If every sample is equal, it writes `verify.json` beside the manifest.

    \b
    Example: parascale data verify --dataset shapes --format arrow
    """
    from parascale.data.images import ImageIndex
    from parascale.data.text import Tokens
    from parascale.data.verify import verify_images, verify_tokens

    require_format(workload, form)
    dataset, source = workload.data.dataset, source_of(project, workload)
    folder = project.paths.data(dataset, form)
    if workload.of_images:
        result = verify_images(folder, ImageIndex(source), dataset, project.config.formats)
    else:
        result = verify_tokens(folder, Tokens(source), dataset)
    write_json(folder / "verify.json", result)
    print(f"{folder}: identical to its source, {result.get('samples', result.get('tokens')):,} compared")


@data.command()
@click.option("--format", "forms", multiple=True, type=FORMATS, help="Only this format; repeat for several.")
@with_dataset
def benchmark(project, workload, forms):
    """Measure how fast this machine reads each format of a dataset, and recommend one.

    Measures the formats in the configuration, and for text also the unconverted tokens. Writes results/loaders/DATASET.csv
    and, beside it, a JSON file with the machine, its limits and the recommendation.

    \b
    Example: parascale data benchmark --dataset shapes
    """
    from parascale.data import benchmark as readers
    from parascale.data.benchmark import advise

    if workload.of_pairs:
        raise ConfigError("pairs have only one format: there is nothing to compare")
    formats, settings, dataset = project.config.formats, project.config.loaders, workload.data.dataset
    usual = formats.images if workload.of_images else [workload.data.format, *formats.tokens]
    folders = [project.paths.data(dataset, form) for form in forms or usual]
    rows = readers.benchmark(dataset, folders, settings, workload.training)
    unit = "images" if workload.of_images else "windows"
    taken = images_taken(project, dataset) if workload.of_images else None
    devices = "processes" if project.site.device == "cpu" else "GPUs"
    chosen, said = advise(rows, unit, taken=taken, devices=devices)
    # Imported after the measurements, which torch in the process would slow down.
    import torch

    from parascale.train.machine import read_machine

    output = project.paths.results / "loaders" / f"{dataset}.csv"
    decoded = [row for row in rows if row["decoder"] and row["decoder"] == workload.training.decoder]
    fastest = max(decoded, key=lambda row: row["samples_per_second"], default=None)
    facts = {
        "schema_version": 1,
        "dataset": dataset,
        "site": project.site.name,
        "core_seconds": fastest and fastest["cpu_seconds"] / fastest["samples"],  # per sample, for prices
        "read": [workload.training.decoder, workload.training.image_size] if workload.of_images else None,
        "unit": unit,
        "format": chosen,
        "advice": said,
        "ceilings": readers.best_ceilings(folders),
        "machine": read_machine(torch.device("cpu")),
    }
    write_json(output.with_suffix(".json"), facts)
    readers.write_rows(output, rows)
    print(said)


def images_taken(project, dataset):
    """Planned images per second and device of the run on this dataset that needs most; None without a plan."""
    from parascale.plan.planner import Planner

    planner, found = Planner(project), []
    for name, run in project.right.items():
        phases = planner.prediction(name).phases if run.workload.data.dataset == dataset else None
        if phases:
            computing = sum(seconds for phase, seconds in phases.items() if phase != "data")
            found.append(run.global_batch / (computing * run.layout.world_size))
    return max(found, default=None)


def source_of(project, workload):
    """The folder that conversions of a dataset read: the index of its images, or its tokens."""
    return project.paths.data(workload.data.dataset, "index" if workload.of_images else workload.data.format)


def require_format(workload, form):
    """Raise ConfigError if data of this kind cannot be written in the format."""
    offered = () if workload.of_pairs else IMAGE_FORMATS if workload.of_images else TOKEN_FORMATS
    if form not in offered:
        kind = "pairs" if workload.of_pairs else "images" if workload.of_images else "tokens"
        known = f"Their formats: {', '.join(offered)}" if offered else "They have one format only"
        raise ConfigError(f"{kind} are not written as {form}. {known}")
