"""What to run and where: the one home of every setting and its default. Imports no torch."""

from parascale.config.data import SPLITS, Data, Source, Text
from parascale.config.formats import Formats, Images, Loaders
from parascale.config.layout import STRATEGIES, Layout
from parascale.config.project import (
    Config,
    Project,
    load_project,
    load_project_file,
    load_site,
    load_workload,
    run_from_dict,
)
from parascale.config.run import Run
from parascale.config.site import Site
from parascale.config.summaries import Summaries
from parascale.config.workload import Model, Optim, Training, Workload

__all__ = [
    "SPLITS",
    "STRATEGIES",
    "Config",
    "Data",
    "Formats",
    "Images",
    "Layout",
    "Loaders",
    "Model",
    "Optim",
    "Project",
    "Run",
    "Site",
    "Source",
    "Summaries",
    "Text",
    "Training",
    "Workload",
    "load_project",
    "load_project_file",
    "load_site",
    "load_workload",
    "run_from_dict",
]
