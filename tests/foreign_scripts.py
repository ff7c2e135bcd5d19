"""Typical scripts for Hugging Face's Trainer, accelerate and Lightning, without a line of ours, and a regression on arrays with its own
loss, which records its steps. Each step takes ten times as long while the file `box/brake` exists."""

import re
from pathlib import Path

import h5py
import numpy as np

BEGIN = """
import argparse, os, time
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--output_dir")
parser.add_argument("--data")
options = parser.parse_args()

def pause():
    time.sleep(0.5 if os.path.exists("box/brake") else 0.05)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x, y):
        pause()
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
# With the document's callback, which ends it on request.
DOCUMENT = Path(__file__).parents[1] / "docs/own-script.md"
STOP = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)[-1]
STOPPING = LIGHTNING.replace("callbacks = [", STOP + "\ncallbacks = [Stop(), ")
# Predicts a climate field an hour ahead, from NetCDF-4 files (which are HDF5); the loss is weighted by the area of a cell.
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
    pause()
    record(step=step, loss=loss, samples=8)
    if rank == 0 and step % 10 == 0:
        torch.save((step, model.state_dict(), optimizer.state_dict()), saved + ".new")
        os.replace(saved + ".new", saved)
"""
SCRIPTS = {  # name → (script, pattern of a file that it saves)
    "trainer": (TRAINER, "checkpoint-*/trainer_state.json"),
    "accelerate": (ACCELERATE, "state/model.safetensors"),
    "lightning": (STOPPING, "last.ckpt"),
    "lightning_plain": (LIGHTNING, "last.ckpt"),
    "fields": (FIELDS, "last.pt"),
}
WORKLOAD = """
task: script
command: own_{name}.py
arguments: {{steps: "{{steps}}", output_dir: "{{work}}", data: "{{folder}}/fields.nc"}}
steps: 60
"""


def write_script(folder, name):
    """Write a script, its workload, and fields of a travelling wave into a folder of workloads."""
    (folder / f"own_{name}.py").write_text(BEGIN + SCRIPTS[name][0])
    (folder / f"{name}.yaml").write_text(WORKLOAD.format(name=name))
    latitude, longitude = np.linspace(-75, 75, 16, dtype="f4"), np.linspace(0, 2 * np.pi, 32, endpoint=False)
    with h5py.File(folder / "fields.nc", "w") as file:
        file["latitude"] = latitude
        file["t2m"] = np.stack(
            [np.cos(np.deg2rad(latitude))[:, None] * np.sin(longitude + hour / 3) for hour in range(48)]
        ).astype("f4")
