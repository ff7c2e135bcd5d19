"""Results packed for others: a Workflow Run RO-Crate (https://w3id.org/ro/wfrun/workflow/0.5), one zip file.

It holds the workflow with its configuration and pins, what each run left (records, samples, verdicts) and the reports, and says
in `ro-crate-metadata.json` which was made from which. Data sets stay out, their manifests name source and checksums.
"""

import mimetypes
from pathlib import Path

from rocrate.rocrate import ROCrate

from parascale import __version__
from parascale.errors import DataError
from parascale.files import atomic_path, read_json

PROFILES = (
    ("https://w3id.org/ro/wfrun/process/0.5", "Process Run Crate"),
    ("https://w3id.org/ro/wfrun/workflow/0.5", "Workflow Run Crate"),
    ("https://w3id.org/workflowhub/workflow-ro-crate/1.0", "Workflow RO-Crate"),
)
LICENCE = "https://spdx.org/licenses/MIT"
CODE = ("rules", "scripts", "config", "profiles", "envs")
ALONE = ("README.md", "CONTRIBUTING.md", "LICENSE", "CITATION.cff", "pyproject.toml", "Makefile")
TRAINING = "scripts/parascale/commands/train.py"
LEFT_OUT = ("__pycache__", ".egg-info", ".pyc")
# Below results/: patterns of what is packed, which is all that the report is made from.
RECORDS = ("runs/*/*.json", "runs/*/*.jsonl", "runs/*/*.csv", "runs/*/events.*", "runs/*/profile/*")
RESULTS = (
    *RECORDS,
    "parity/*/*.json*",
    "report/**/*",
    "checkpoints/*/*.json",
    "data/*/*/manifest.json",
    "summaries/*.json",
    "loaders/*.csv",
    "loaders/*.json",
    "calibration/*.json",
    "probes/*/*.json*",
    "plan/*",
    "comparisons/*",
    "communication/*.csv",
    "benchmarks/**/*.tsv",
)
WEIGHTS = ("runs/*/best/**/*", "runs/*/checkpoint/**/*")
# Those that Python knows itself, the same on every machine, and three more.
FORMATS = mimetypes.MimeTypes().types_map[True]
FORMATS |= {".jsonl": "application/jsonl", ".yaml": "application/yaml", ".md": "text/markdown"}


def pack(project, results, target, title, weights=False):
    """Write the crate of the results in a folder to a zip file, whole or not at all.

    project: the folder that holds the Snakefile. weights: whether the checkpoints of the runs go in as well.
    Raises DataError where no run has finished.
    """
    project, results = Path(project), Path(results)
    runs = {path.parent.name: read_json(path) for path in sorted(results.glob("runs/*/run.json"))}
    if not runs:
        raise DataError(
            f"{results}/runs: no finished run to pack; `snakemake` with a profile trains the runs of the table"
        )
    crate = ROCrate(version="1.1")  # what the profiles build on
    crate.name, crate.license = title, LICENCE
    crate.description = (
        f"{len(runs)} trainings, compared: what each layout costs, and whether it gives the same result."
    )
    workflow = _add_code(crate, project)
    kept = _add_results(crate, results, (*RESULTS, *(WEIGHTS if weights else ())))
    _add_actions(crate, workflow, runs, kept)
    crate.root_dataset["conformsTo"] = [_profile(crate, *profile) for profile in PROFILES]
    with atomic_path(target) as partial:
        crate.write_zip(partial)


def _add_code(crate, project):
    """The workflow with everything that it is made of; returns the Snakefile's entity."""
    workflow = crate.add_workflow(
        project / "Snakefile",
        "Snakefile",
        main=True,
        lang="snakemake",
        properties={"name": "parascale", "license": LICENCE, "version": __version__},
    )
    paths = [path for name in CODE for path in sorted((project / name).rglob("*")) if path.is_file()]
    paths += [project / name for name in ALONE if (project / name).is_file()]
    parts = [
        _add_file(crate, path, path.relative_to(project))
        for path in paths
        if not any(word in str(path.relative_to(project)) for word in LEFT_OUT)
    ]
    workflow["hasPart"] = [part for part in parts if str(part.id).startswith(("rules/", "scripts/"))]
    return workflow


def _add_results(crate, results, patterns):
    """Path below `results` → entity, for each file that is packed."""
    paths = sorted({path for pattern in patterns for path in results.glob(pattern) if path.is_file()})
    return {
        str(path.relative_to(results)): _add_file(crate, path, Path("results") / path.relative_to(results))
        for path in paths
    }


def _add_file(crate, path, place):
    kind = FORMATS.get(path.suffix)
    properties = {"name": str(place), "contentSize": str(path.stat().st_size)}
    if str(place) == TRAINING:  # what an action was done with is no mere file
        properties |= {"@type": ["File", "SoftwareSourceCode"], "version": __version__}
    return crate.add_file(path, place.as_posix(), properties=properties | ({"encodingFormat": kind} if kind else {}))


def _add_actions(crate, workflow, runs, kept):
    """What was done: the workflow as a whole, and each training."""
    inputs = [entity for entity in crate.get_by_type("File") if str(entity.id).startswith("config/")]
    inputs += [entity for name, entity in kept.items() if name.startswith("data/")]
    trained = crate.dereference(TRAINING)
    actions = []
    for name, described in runs.items():
        made = [entity for path, entity in kept.items() if path.startswith((f"runs/{name}/", f"parity/{name}/"))]
        properties = _times([described]) | {
            "name": f"Training `{name}`: {described['strategy']}",
            "description": f"git commit {described.get('git_commit') or 'unknown'}, code digest {described['code_digest']}",
        }
        actions.append(crate.add_action(trained or workflow, f"#train-{name}", inputs, made, properties))
    reports = [entity for path, entity in kept.items() if path.startswith("report/")]
    properties = _times(runs.values()) | {"name": "The workflow, from raw data to the comparison report"}
    properties["description"] = f"{len(runs)} trainings, their parity runs, and the report that compares them"
    properties["actionStatus"] = "http://schema.org/CompletedActionStatus"
    whole = crate.add_action(workflow, "#workflow-run", inputs, reports or list(kept.values()), properties)
    crate.root_dataset["mentions"] = [whole, *actions]


def _times(described):
    """startTime and endTime over all attempts of some runs, ISO 8601."""
    attempts = [attempt for values in described for attempt in values.get("attempts") or ()]
    starts = sorted(attempt["start"] for attempt in attempts if attempt.get("start"))
    ends = sorted(attempt["end"] for attempt in attempts if attempt.get("end"))
    return ({"startTime": starts[0]} if starts else {}) | ({"endTime": ends[-1]} if ends else {})


def _profile(crate, identifier, name):
    properties = {"@type": "CreativeWork", "name": name, "version": identifier.rpartition("/")[2]}
    return crate.add_jsonld({"@id": identifier, **properties})
