# Needs: common.smk. Makes: nothing; it looks up what the rules of data, formats, checkpoints and the report ask for.

from parascale.data.named_files import local_files, local_folders
from parascale.settings.identity import of_group
from parascale.settings.options import RECIPE


def own_files(wildcards):
    """The files on this machine that a dataset is made from, so that an edited text is seen."""
    return local_files(PROJECT.datasets[wildcards.dataset].source)


def own_folders(wildcards):
    """The folders on this machine that a dataset's images lie in, so that images that came or went are seen."""
    return local_folders(PROJECT.datasets[wildcards.dataset].source)


def shards_of(wildcards):
    """The shards of a text that jobs of their own encode; none where one job does it all."""
    data = PROJECT.datasets[wildcards.dataset]
    return [PATHS.data(data.dataset, "encoded") / data.shard(each) for each in range(data.shards) if data.shards > 1]


def data_settings(*sections):
    """A function from wildcards to what decides a dataset's content in those sections of its settings."""
    return lambda wildcards: as_json(
        {name: of_group(getattr(PROJECT.datasets[wildcards.dataset], name), RECIPE) for name in sections}
    )


def verified_of(dataset):
    """The proofs of a dataset's formats, those that the configuration names."""
    formats = PROJECT.config.formats
    names = formats.images if dataset in IMAGE_DATA else formats.tokens
    return [PATHS.data(dataset, name) / "verify.json" for name in names]


def readable_of(wildcards):
    """What stands for each format that can be read of a dataset, the flat tokens among them."""
    flat = [] if wildcards.dataset in IMAGE_DATA else [source_of(wildcards.dataset)]
    return flat + verified_of(wildcards.dataset)


def conversion_settings(wildcards):
    """The settings that a finished shard depends on."""
    return as_json({key: getattr(PROJECT.config.formats, key) for key in ("shards", "seed", "check")})


def reading_settings(wildcards):
    """The settings of a benchmark of readers."""
    return as_json({key: value for key, value in of_group(PROJECT.config.loaders).items() if key != "workloads"})


def sample_of(wildcards):
    """What a sample is in the first workload on a dataset: the tokens of a window, or the pixels of a side and the smallest crop."""
    first = PROJECT.users[wildcards.dataset]
    if first.of_images:
        return [first.training.image_size, first.training.smallest_crop]
    return first.training.window


def checkpoint_of(wildcards):
    """The folder of the checkpoint of a run that is converted. As text: Snakemake does not see when a path in params changes."""
    run = PROJECT.runs[wildcards.run]
    return str(PATHS.run(run.run) / run.checkpoint_folder(PROJECT.config.checkpoints.which))


def form_settings():
    """Those settings of conversions that decide what is written."""
    return as_json(
        {key: getattr(PROJECT.config.checkpoints, key) for key in ("forms", "dtype", "optimizer", "file_mb")}
    )


def proofs_shown():
    """Proofs of conversion that the report shows: those it is to have, and those that were made besides."""
    proofs = {name: PATHS.checkpoint(name) / "verify.json" for name in PROJECT.runs}
    return [path for name, path in proofs.items() if name in PROJECT.converted or path.exists()]
