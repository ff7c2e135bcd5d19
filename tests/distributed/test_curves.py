"""What a whole training gives to Weights & Biases: rank 0's curves, the same run over all attempts, offline."""

import json
import struct
from pathlib import Path

from parascale.files import read_json_lines
from parascale.train import wandb_run

from .examine import train_settings, train_until_told_to_stop
from .harness import run_on_ranks


def curves(folder):
    """(name, steps) of the one record of W&B in a run's folder."""
    (record,) = (Path(folder) / "wandb").glob("offline-run-*/run-*.wandb")
    return record.name, history(record)


def history(path):
    """(step, loss) of each step in a record of wandb's: records of its protocol in LevelDB's log format, after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, found, part = path.read_bytes(), 7, [], b""
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        part += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record, part = Record.FromString(part), b""
            values = {".".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            if values:
                found.append((json.loads(values["_step"]), json.loads(values["loss"])))
    return found


def patiently(train, *arguments):
    """Train as long as the package takes to end: the machine may be busy."""
    wandb_run.END_SECONDS = 60.0
    return train(*arguments)


def test_a_continued_training_writes_one_run_with_every_step_of_its_record(make_settings, tmp_path):
    settings = make_settings("ddp", {"dp": 2}) | {"monitor": {"wandb": "offline", "wandb_project": "a project"}}
    run_on_ranks(patiently, 2, tmp_path / "ranks", train_until_told_to_stop, settings, 7, 1)
    begun, before = curves(settings["work"])
    assert [step for step, _ in before] == list(range(1, 8))
    run_on_ranks(patiently, 2, tmp_path / "ranks", train_settings, settings)
    name, after = curves(settings["output"])
    assert name == begun and after[:7] == before
    assert after == [(line["step"], line["loss"]) for line in read_json_lines(Path(settings["output"]) / "steps.jsonl")]


def test_without_the_setting_a_training_leaves_no_curves_there(make_settings, tmp_path):
    settings = make_settings("single") | {"monitor": {}}
    run_on_ranks(train_settings, 1, tmp_path / "ranks", settings)
    assert not list(tmp_path.rglob("wandb"))
