"""All settings and their defaults. Imports no torch."""

from parascale.settings.config import Config, Summaries
from parascale.settings.data import SPLITS, Data, Source, Text
from parascale.settings.formats import Formats
from parascale.settings.layout import Layout
from parascale.settings.optim import Optim
from parascale.settings.project import (
    compiled_where_it_gains,
    load_project,
    load_project_file,
    load_site,
    load_workload,
    run_from_dict,
)
from parascale.settings.run import Run
from parascale.settings.site import Site
from parascale.settings.strict import make
from parascale.settings.workload import Model, Workload
