"""What `parascale.prove` records on one process, and what two recordings say of each other."""

import json
import math
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from parascale import proof, prove
from parascale.errors import DataError
from parascale.likeness import looks_like


def test_what_records_may_be_copied():
    """It runs where nothing but torch and safetensors is."""
    imports = re.findall(r"^(?:from|import) (\w+)", Path(prove.__file__).read_text(), re.MULTILINE)
    assert set(imports) - sys.stdlib_module_names == {"torch", "safetensors"}


def step_of(model, folder, loss=None, steps=1):
    """Record steps of a small model on one process, as of rank 0 of 1."""
    for _ in range(steps):
        with prove.recording(model, folder) as record:
            model(torch.ones(2, 3)).sum().backward()
            if loss is not None:
                record.loss(torch.tensor(loss))


def test_recordings_that_are_no_pair_are_refused_with_the_remedy(tmp_path):
    folder = tmp_path / "whole"
    step_of(torch.nn.Linear(3, 2), folder)
    with pytest.raises(DataError, match="no recording"):
        proof.compare(folder, tmp_path / "nothing")
    (other,) = folder.glob("*.safetensors")
    shutil.copy(other, other.with_name("step-00000-rank-00001.safetensors"))
    with pytest.raises(DataError, match="record again"):
        proof.compare(folder, folder)
    other.write_bytes(b"cut short")
    with pytest.raises(DataError, match="damaged"):
        proof.compare(folder, folder)


def test_recordings_of_other_numbers_of_steps_are_refused(tmp_path):
    model = torch.nn.Linear(3, 2)
    step_of(model, tmp_path / "one", steps=2)
    step_of(model, tmp_path / "other", steps=1)
    with pytest.raises(DataError, match=r"one has 2 steps, but .*other 1"):
        proof.compare(tmp_path / "one", tmp_path / "other")


@pytest.mark.parametrize("losses", [(1.0, math.nan), (math.nan, 1.0), (1.0, math.inf), (math.inf, math.inf)])
def test_a_loss_that_is_no_number_is_different(losses, tmp_path):
    model = torch.nn.Linear(3, 2)
    for name, loss in zip("ab", losses, strict=True):
        step_of(model, tmp_path / name, loss)
        model.zero_grad()
    proof.write_card(tmp_path / "a", tmp_path / "b")
    card = json.loads((tmp_path / "b/proof.json").read_text())
    assert (card["verdict"], card["first"]["module"]) == ("different", "the loss")


@pytest.mark.parametrize(
    ("factors", "text"),
    [
        ((0.0, 2.0), "0 and 2 times what it should be: each process by a factor of its own"),
        ((-1.0, -1.0), "-1 times what it should be: of the other sign"),
        ((0.5, 0.5), "0.5 times what it should be: divided once too often by 2"),
    ],
)
def test_what_is_a_multiple_is_called_so(factors, text):
    whole = torch.arange(1.0, 9.0)
    halves = [torch.arange(4), torch.arange(4, 8)]
    parts = [([rank], factor * whole[own], own) for rank, (factor, own) in enumerate(zip(factors, halves, strict=True))]
    assert looks_like(whole, whole.shape, parts, parts, 1e-6).startswith(text)


@pytest.mark.parametrize(("shares", "verdict"), [(((0, 2), (1, 3)), "same"), (((0, 2), (1, 2)), "different")])
def test_equal_samples_on_two_ranks_are_both_there(shares, verdict, tmp_path, monkeypatch):
    model, batch = torch.nn.Linear(3, 2), torch.tensor([[1.0] * 3, [1.0] * 3, [2.0] * 3, [3.0] * 3])
    with prove.recording(model, tmp_path / "single"):
        model(batch).sum().backward()
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    for rank, share in enumerate(shares):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        vars(model).pop(prove.COUNTER)
        with prove.recording(model, tmp_path / "ranks"):  # its gradients are the single process's: reduced
            model(batch[list(share)])
    card = proof.compare(tmp_path / "single", tmp_path / "ranks")
    assert card["verdict"] == verdict and (verdict == "same" or card["first"]["pass"] == "samples")


class Whole(torch.nn.Module):
    """The second of its two stages begins with a table, of no samples."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.table = torch.nn.Linear(3, 2), torch.nn.Linear(2, 2), torch.nn.Embedding(1, 2)

    def forward(self, batch, stages=(0, 1)):
        hidden = self.first(batch) if 0 in stages else batch
        return self.last(self.table(torch.zeros(1, dtype=torch.long)) + hidden) if 1 in stages else hidden


@pytest.mark.parametrize(("shares", "verdict"), [(((0, 1), (2, 3)), "same"), (((0, 1), (0, 3)), "different")])
def test_samples_of_a_stage_that_begins_with_a_table_are_found(shares, verdict, tmp_path, monkeypatch):
    model, batch = Whole(), torch.randn(4, 3)
    with prove.recording(model, tmp_path / "single"):
        model(batch).sum().backward()
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    for rank in range(4):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        vars(model).pop(prove.COUNTER)
        inputs = batch[list(shares[rank % 2])]
        with prove.recording(model, tmp_path / "ranks"):
            model(inputs if rank < 2 else model.first.forward(inputs), stages=(rank // 2,))
    single, parts = proof.recording(tmp_path / "single")[0][0], proof.recording(tmp_path / "ranks")[0]
    [found] = proof.Step(single, parts, None).find_samples()
    assert (found["difference"] == 0.0) == (verdict == "same")
    if verdict == "same":
        assert [part.rows for part in parts] == [[0, 1], [2, 3]] * 2


@pytest.mark.parametrize("named", [True, False])
def test_gradients_that_an_optimizer_computes_itself_are_recorded(named, tmp_path):
    """By a closure, as Lightning hands it over: they are there only when it has been called."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).sum()
        loss.backward()
        return loss

    model.bias.grad = torch.full((2,), 7.0)  # of a step before
    with prove.recording(model, tmp_path):
        optimizer.step(closure=closure) if named else optimizer.step(closure)
        optimizer.zero_grad()
    ((part,),) = proof.recording(tmp_path)
    assert {name: part.value(f"gradient|{name}").unique().tolist() for name in part.names("gradient")} == {
        "weight": [2.0],
        "bias": [2.0],
    }


@pytest.mark.parametrize(
    ("module", "allowed", "rounded"),
    [
        (torch.nn.Conv1d(3, 3, 1), True, True),
        (torch.nn.Conv1d(3, 3, 1), False, False),
        (torch.nn.Linear(3, 2), True, False),
    ],
)
def test_convolutions_in_tf32_widen_the_tolerance(module, allowed, rounded, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
    with prove.recording(module, tmp_path):
        module(torch.ones(2, 3, 3)).sum().backward()
    ((part,),) = proof.recording(tmp_path)
    assert part.about["tf32"] is rounded and (proof.Step(part, [part], None).unit == proof.TF32) is rounded


@pytest.mark.parametrize(
    ("columns", "every", "said"), [(4, 2, None), (3, 2, "does not divide"), (4, (2, 1), "one column of 1, 2")]
)
def test_shards_keep_the_columns_that_the_whole_keeps_or_are_refused(columns, every, said, tmp_path, monkeypatch):
    """Plain shards of columns: where `every` does not divide them, which ones a process holds is not known."""
    every = every if isinstance(every, tuple) else (every, every)
    whole = torch.nn.Linear(2 * columns, 3, bias=False)
    with prove.recording(whole, tmp_path / "single", every=every[0]):
        pass
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    for rank in range(2):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        shard = torch.nn.Linear(columns, 3, bias=False)
        shard.weight.data = whole.weight.data.chunk(2, 1)[rank]
        with prove.recording(shard, tmp_path / "ranks", every=every[1]):
            pass
    if said:
        with pytest.raises(DataError, match=said):
            proof.compare(tmp_path / "single", tmp_path / "ranks")
        return
    assert proof.compare(tmp_path / "single", tmp_path / "ranks")["verdict"] == "same"
    ((part, _),) = proof.recording(tmp_path / "ranks")
    assert part.value("start|weight").tolist() == whole.weight[:, 0:columns:2].double().tolist()


def test_numbers_of_rows_may_be_any_that_can_be_counted(tmp_path):
    model = torch.nn.Linear(3, 2)
    with prove.recording(model, tmp_path, rows=range(2), positions=torch.arange(3)):
        model(torch.ones(2, 3)).sum().backward()
    ((part,),) = proof.recording(tmp_path)
    assert (part.rows, part.columns) == ([0, 1], [0, 1, 2])
