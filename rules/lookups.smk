# Functions that the rules of data, formats, checkpoints and the report use as input and params. Needs common.smk.

from parascale.data.named_files import local_files, local_folders
from parascale.settings.identity import of_group
from parascale.settings.options import RECIPE


def own_files(wildcards):
    """The local files that a dataset is made from, so that Snakemake notices edits."""
    return local_files(PROJECT.datasets[wildcards.dataset].source)


def own_folders(wildcards):
    """The local folders with a dataset's images, so that Snakemake notices added and removed images."""
    return local_folders(PROJECT.datasets[wildcards.dataset].source)


def shards_of(wildcards):
    """The shards of a text that separate jobs encode; empty if one job encodes all."""
    data = PROJECT.datasets[wildcards.dataset]
    return [PATHS.data(data.dataset, "encoded") / data.shard(each) for each in range(data.shards) if data.shards > 1]


def data_settings(*sections):
    """A function from wildcards to the settings in some sections that decide a dataset's content."""
    return lambda wildcards: as_json(
        {name: of_group(getattr(PROJECT.datasets[wildcards.dataset], name), RECIPE) for name in sections}
    )


def verified_of(dataset):
    """The proofs of a dataset's formats that the configuration names."""
    formats = PROJECT.config.formats
    names = formats.images if dataset in IMAGE_DATA else formats.tokens
    return [PATHS.data(dataset, name) / "verify.json" for name in names]


def readable_of(wildcards):
    """A file for each readable format of a dataset, including flat tokens."""
    flat = [] if wildcards.dataset in IMAGE_DATA else [source_of(wildcards.dataset)]
    return flat + verified_of(wildcards.dataset)


def conversion_settings(wildcards):
    """The settings that a finished shard depends on."""
    return as_json({key: getattr(PROJECT.config.formats, key) for key in ("shards", "seed", "check")})


def reading_settings(wildcards):
    """The settings of a benchmark of readers."""
    return as_json({key: value for key, value in of_group(PROJECT.config.loaders).items() if key != "workloads"})


def sample_of(wildcards):
    """The size of a sample in the first workload that uses a dataset: tokens per window, or [pixels per side, smallest crop]."""
    first = PROJECT.users[wildcards.dataset]
    if first.of_images:
        return [first.training.image_size, first.training.smallest_crop]
    return first.training.window


def checkpoint_of(wildcards):
    """The folder of a run's checkpoint to convert. As text, because Snakemake does not notice changes of a Path in params."""
    run = PROJECT.runs[wildcards.run]
    return str(PATHS.run(run.run) / run.checkpoint_folder(PROJECT.config.checkpoints.which))


def form_settings():
    """The settings of conversions that change the output."""
    return as_json(
        {key: getattr(PROJECT.config.checkpoints, key) for key in ("forms", "dtype", "optimizer", "file_mb")}
    )


def proofs_shown():
    """Proofs of conversion for the report: those of `converted` runs, and any others that exist."""
    proofs = {name: PATHS.checkpoint(name) / "verify.json" for name in PROJECT.runs}
    return [path for name, path in proofs.items() if name in PROJECT.converted or path.exists()]
