"""What the data scripts share: which dataset is meant, by a workload's name or by settings that a rule hands over."""

import json
from pathlib import Path

from parascale.errors import ConfigError
from parascale.settings import Data, load_project_file, load_workload, strict


def add_dataset_arguments(parser):
    """Add the arguments that say which dataset is meant."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--workload", help="name of a workload: its dataset, below the configuration's root")
    which.add_argument("--settings", help="the `data` section as JSON, as rules hand it over; needs --output")
    parser.add_argument("--config", default="config/config.yaml", help="the configuration (default: %(default)s)")


def chosen_dataset(arguments):
    """(the Data settings that the arguments mean, the project's Paths or None where settings were given)."""
    if arguments.settings:
        try:
            values = json.loads(arguments.settings)
        except json.JSONDecodeError as error:
            raise ConfigError(f"--settings is not valid JSON: {error}") from None
        return strict.load(Data, values, "--settings"), None
    project = load_project_file(arguments.config)
    return load_workload(project.config.workloads, arguments.workload).data, project.paths


def folder_argument(arguments, name, usual):
    """The folder that the argument `name` gives, or else its usual place."""
    value = getattr(arguments, name)
    if value is None and usual is None:
        raise ConfigError(f"--settings needs --{name} too")
    return usual if value is None else Path(value)
