"""Scripts as they are written elsewhere, for Hugging Face's Trainer, accelerate and Lightning, and a regression on arrays with a loss of
its own: each starts by its row of the run table, and is stopped and continued from what it has saved itself."""

import json
import signal
import time

import h5py
import numpy as np
import pytest

from .small_project import SmallProject
from .test_script import BLOCKS, launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PATIENCE = 300  # seconds: these libraries take ten of a processor's to import, in each process

BEGIN = """
import argparse, os, time
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--output_dir")
parser.add_argument("--data")
options = parser.parse_args()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x, y):
        time.sleep(0.05)
        output = self.layers(x)
        return {"loss": nn.functional.mse_loss(output, y), "logits": output}

x = torch.linspace(0, 6, 512)[:, None]
pairs = [{"x": each, "y": each.sin()} for each in x]
"""
TRAINER = """
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

arguments = TrainingArguments(
    options.output_dir, max_steps=options.steps, save_steps=10, per_device_train_batch_size=8, learning_rate=0.01, use_cpu=True, report_to=[]
)
trainer = Trainer(Net(), arguments, train_dataset=pairs)
trainer.train(resume_from_checkpoint=get_last_checkpoint(options.output_dir) if os.path.isdir(options.output_dir) else None)
assert int(os.environ["WORLD_SIZE"]) == arguments.world_size == 2
"""
ACCELERATE = """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = Net()
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.Adam(model.parameters(), 0.01), torch.utils.data.DataLoader(pairs, 8, shuffle=True)
)
done, saved = 0, os.path.join(options.output_dir, "state")
if os.path.exists(saved):
    accelerator.load_state(saved)
    done = int(optimizer.state_dict()["state"][0]["step"])
while done < options.steps:
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        done += 1
        if done % 10 == 0:
            accelerator.save_state(saved)
        if done == options.steps:
            break
assert accelerator.num_processes == 2
"""
LIGHTNING = """
import signal
import lightning
from lightning.pytorch.callbacks import ModelCheckpoint

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, number):
        return self.net(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)

callbacks = [ModelCheckpoint(options.output_dir, save_last=True, every_n_train_steps=10)]
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_steps=options.steps, default_root_dir=options.output_dir, logger=False, callbacks=callbacks
)
trainer.fit(Module(), torch.utils.data.DataLoader(pairs, 8, shuffle=True), ckpt_path="last")
assert trainer.world_size == 2
"""
# With what the document adds, so that it ends when it is asked to.
STOPPING = LIGHTNING.replace("callbacks = [", BLOCKS[-1][1] + "\ncallbacks = [Stop(), ")
# A climate field at one hour to the next, in files of NetCDF-4, which are HDF5; the loss weighs by the area of a cell.
FIELDS = """
import h5py
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from parascale import record

class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.GELU())
        self.inner = nn.Sequential(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.GELU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.out = nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, x):
        high = self.down(x)
        return x + self.out(torch.cat([high, self.up(self.inner(high))], 1))

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
with h5py.File(options.data) as file:
    fields, latitude = torch.tensor(file["t2m"][:])[:, None], torch.tensor(file["latitude"][:])
area = latitude.deg2rad().cos()[:, None]
model = DistributedDataParallel(UNet())
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
step, saved = 0, options.output_dir + "/last.pt"
if os.path.exists(saved):
    step, weights, state = torch.load(saved)
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
while step < options.steps:
    chosen = torch.randint(len(fields) - 1, (8,), generator=torch.Generator().manual_seed(step))[rank::world]
    error = model(fields[chosen]) - fields[chosen + 1]
    loss = (area * error**2).sum() / (area.expand_as(error)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    time.sleep(0.05)
    record(step=step, loss=loss, samples=8)
    if rank == 0 and step % 10 == 0:
        torch.save((step, model.state_dict(), optimizer.state_dict()), saved + ".new")
        os.replace(saved + ".new", saved)
"""
# name → script, what it saves, the signal, exit code and outcome; without a handler of SIGTERM nobody can say that it has saved
SCRIPTS = {
    "trainer": (TRAINER, "checkpoint-*/trainer_state.json", signal.SIGTERM, 143, "failed"),
    "accelerate": (ACCELERATE, "state/model.safetensors", signal.SIGTERM, 143, "failed"),
    "lightning": (STOPPING, "last.ckpt", signal.SIGTERM, 75, "stopped"),
    "lightning_plain": (LIGHTNING, "last.ckpt", signal.SIGKILL, -9, "killed"),
    "fields": (FIELDS, "last.pt", signal.SIGTERM, 143, "failed"),
}
WORKLOAD = """
task: script
command: own_{name}.py
arguments: {{steps: "{{steps}}", output_dir: "{{work}}", data: "{{folder}}/fields.nc"}}
steps: 60
"""


def write(folder, name):
    """A script, its workload, and fields of a wave that travels, in a folder of workloads."""
    (folder / f"own_{name}.py").write_text(BEGIN + SCRIPTS[name][0])
    (folder / f"{name}.yaml").write_text(WORKLOAD.format(name=name))
    latitude, longitude = np.linspace(-75, 75, 16, dtype="f4"), np.linspace(0, 2 * np.pi, 32, endpoint=False)
    with h5py.File(folder / "fields.nc", "w") as file:
        file["latitude"] = latitude
        file["t2m"] = np.stack(
            [np.cos(np.deg2rad(latitude))[:, None] * np.sin(longitude + hour / 3) for hour in range(48)]
        ).astype("f4")


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_starts_by_its_row_is_stopped_and_continues_from_what_it_saved(name, tmp_path):
    (_, saved, how, code, outcome), project = SCRIPTS[name], SmallProject(tmp_path)
    write(tmp_path / "config/workloads", name)
    (tmp_path / "config/tiny.tsv").write_text(f"run\tworkload\tgpus_per_node\tdp\n{name}\t{name}\t2\t2\n")
    files = tmp_path / "work/runs" / name / "files"
    process = launch(project, "--run", name)
    deadline = time.monotonic() + PATIENCE
    while not list(files.glob(saved)) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    time.sleep(0.3)  # more steps, which are lost
    process.send_signal(how)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == code, said
    process = launch(project, "--run", name)
    said = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == 0, said
    assert "Restored all states" in said or "lightning" not in name
    summary = json.loads((tmp_path / f"results/runs/{name}/summary.json").read_text())
    attempts = json.loads((tmp_path / f"results/runs/{name}/run.json").read_text())["attempts"]
    assert [each["outcome"] for each in attempts] == [outcome, "finished"]
    assert list((tmp_path / f"results/runs/{name}/checkpoint").glob(saved))
    if name == "fields":
        lines = [json.loads(line) for line in (tmp_path / f"results/runs/{name}/steps.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, 61)) and attempts[1]["first_step"] % 10 == 1
        assert lines[-1]["loss"] < lines[0]["loss"] / 2 and summary["work"] == 480
    else:
        assert (summary["steps"], summary["rate"], summary["train_loss"]) == (0, None, None)
    assert summary["peak_memory_bytes"] > 1e8
