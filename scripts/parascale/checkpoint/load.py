"""A trained model in one process, whatever layout trained it."""

from pathlib import Path

from parascale.checkpoint import read
from parascale.checkpoint.source import WEIGHTS
from parascale.errors import CheckpointError
from parascale.families.build import build_model
from parascale.files import read_json
from parascale.settings import run_from_dict


def load_run(folder, which="best"):
    """(Run, model in evaluation mode, on the CPU) of a finished run's folder. which: best | last."""
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        raise CheckpointError(f"{folder}: no finished run there; train it first (its name is a row of the run table)")
    description = read_json(folder / "run.json")
    run = run_from_dict(description["settings"])
    model = build_model(run.workload.model, description["vocabulary"], *run.workload.sizes)
    place = folder / run.checkpoint_folder(which)
    return run, fill(model, read.read(place, [name for name in read.tensors(place) if name.startswith(WEIGHTS)]), place)


def fill(model, tensors, origin):
    """Fill a whole model with the weights in `tensors` (a tied parameter stands there once), in its own dtypes; for evaluation.

    Raises CheckpointError, which says what `origin` lacks or has too many.
    """
    held = {name.removeprefix(WEIGHTS): tensor for name, tensor in tensors.items() if name.startswith(WEIGHTS)}
    own, first = model.state_dict(keep_vars=True), {}
    for name, tensor in own.items():
        first.setdefault(id(tensor), name)
    wanted = set(first.values())
    if held.keys() != wanted:
        lacks, more = sorted(wanted - held.keys())[:3], sorted(held.keys() - wanted)[:3]
        raise CheckpointError(f"{origin} does not fit the model: it lacks {lacks} and has {more} too many")
    model.load_state_dict({name: held[first[id(tensor)]] for name, tensor in own.items()})
    return model.eval()
