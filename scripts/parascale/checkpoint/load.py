"""Load a trained model in one process, whichever layout trained it."""

from pathlib import Path

import torch

from parascale.checkpoint.source import WEIGHTS, open_source
from parascale.errors import CheckpointError
from parascale.families.build import build_model
from parascale.families.language.modules import documents
from parascale.files import read_json
from parascale.paths import RunFolder
from parascale.settings import run_from_dict


def load_run(folder, which="best", converted=None):
    """Load (Run, model in evaluation mode on the CPU) from a finished run's folder.

    which: best | last. converted: folder of a conversion of that run's checkpoint, in any form, to read instead.
    """
    folder, record = Path(folder), RunFolder(folder).record
    if not record.is_file():
        raise CheckpointError(f"{folder}: no finished run there; train it first (its name is a row of the run table)")
    description = read_json(record)
    run = run_from_dict(description["settings"])
    if converted and (Path(converted) / "config.json").is_file():
        return run, Exported(converted)
    model = build_model(run.workload.model, description["vocabulary"], *run.workload.sizes)
    place = Path(converted) if converted else folder / run.checkpoint_folder(which)
    tensors = {WEIGHTS + name: tensor.whole() for name, tensor in open_source(place).weights.items()}
    return run, fill(model, tensors, place)


class Exported(torch.nn.Module):
    """A language model that `transformers` loads, in fp32 and evaluation mode; it is called like ours."""

    def __init__(self, folder):
        from transformers import AutoModelForCausalLM

        super().__init__()
        self.theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.eval()

    def forward(self, tokens_BT, *starts):
        """starts: where each token's document starts, if documents are separate."""
        if not starts:
            return self.theirs(tokens_BT).logits
        mask, places_B1T = documents(starts[0], next(self.theirs.parameters()), True)
        return self.theirs(tokens_BT, attention_mask=mask, position_ids=places_B1T[:, 0]).logits


def fill(model, tensors, origin):
    """Load the weights in `tensors` (tied parameters once) into a whole model, in its own dtypes; returns it in evaluation mode.

    Raises CheckpointError that names the tensors that `origin` lacks and the unexpected ones.
    """
    held = {name.removeprefix(WEIGHTS): tensor for name, tensor in tensors.items() if name.startswith(WEIGHTS)}
    own, first = model.state_dict(keep_vars=True), {}
    for name, tensor in own.items():
        first.setdefault(id(tensor), name)
    wanted = set(first.values())
    if held.keys() != wanted:
        odd = wanted - held.keys(), held.keys() - wanted
        lacks, more = (", ".join(sorted(names)[:3]) or "nothing" for names in odd)
        raise CheckpointError(f"{origin} does not fit the model: missing tensors: {lacks}; unexpected tensors: {more}")
    model.load_state_dict({name: held[first[id(tensor)]] for name, tensor in own.items()})
    return model.eval()
