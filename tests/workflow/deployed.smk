from snakemake.utils import min_version

min_version("6.10.0")


configfile: "config/config.yaml"


module parascale:
    snakefile:
        "SNAKEFILE"
    config:
        config


use rule * from parascale
