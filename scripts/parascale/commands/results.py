"""Subcommands that use finished runs: `generate`, `summarise`, `prove` and `calibrate`. Functions import torch themselves because it loads slowly."""

import functools
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context

import click

from parascale.cli import COUNT, WHICH, InputFile, Location, Number, OutputFolder, named_run, run_option, with_project
from parascale.errors import ConfigError, DataError
from parascale.files import read_json, write_json
from parascale.launch import die_with_parent
from parascale.paths import RunFolder
from parascale.plan import calibrate as prices
from parascale.plan.planner import Planner
from parascale.settings import run_from_dict

BATCH = 32  # documents at once; summaries do not depend on it
DEVICE = click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Device.  [default: the site's]")


@click.command()
@run_option("A finished run of a language model.", required=True)
@click.option("--prompt", help="The text to continue.")
@click.option("--prompts", type=InputFile(), help="Texts to continue, one a line.")
@click.option("--batch", type=COUNT, default=16, help="Texts continued at once.")
@click.option("--tokens", "count", type=COUNT, default=40, help="Number of tokens to add.")
@click.option("--temperature", type=Number(0), default=0.8, help="0: always the likeliest token; higher: more random.")
@click.option("--seed", type=click.IntRange(0), default=1, help="Seed of the random choice, the same for every text.")
@click.option("--which", type=WHICH, default="best", help="Checkpoint to use.")
@click.option("--checkpoint", type=Location(), metavar="DIR", help="Use this converted checkpoint (any form) instead.")
@DEVICE
@click.option("--allow-unknown", is_flag=True, help="Allow the model to write <unk>.")
@with_project
def generate(project, name, prompt, prompts, batch, count, temperature, seed, which, checkpoint, device, allow_unknown):
    """Continue texts with the language model of a run, in one process, whatever the layout it was trained in.

    With --prompts, each line gives one line of JSON with `prompt` and `text`. The result for a text does not depend on the other texts.

    \b
    Example: parascale generate --run single --prompt "the function returns a"
    Example: parascale generate --run single --prompts prompts.txt --checkpoint results/checkpoints/single > texts.jsonl
    """
    if (prompt is None) == (prompts is None):
        raise ConfigError("give one of --prompt TEXT and --prompts FILE")
    if prompt is not None and not prompt.strip():
        raise ConfigError("--prompt is empty: give the words to continue")
    texts = [prompt] if prompts is None else _lines(prompts)
    require_finished(project, name, "language_model")

    import torch

    from parascale.checkpoint.load import load_run
    from parascale.data.text import Tokens
    from parascale.evaluation.generate import continue_tokens

    run, model = load_run(project.paths.run(name), which, checkpoint)
    model.to(device or project.site.device)
    data, window = run.workload.data, run.workload.training.window
    tokens = Tokens(project.paths.data(data.dataset, data.format))
    begun = [tokens.encode(text).tolist() for text in texts]
    for number, (text, tokens_T) in enumerate(zip(texts, begun, strict=True), 1):
        if not tokens_T:
            raise ConfigError(f"prompt {number} ({text!r}) has no token to begin with")
    unknown, started = tokens.tokenizer.unknown, time.perf_counter()
    forbidden = [] if allow_unknown or unknown is None else [unknown]
    for first in range(0, len(begun), batch):
        some = begun[first : first + batch]
        generators = [torch.Generator().manual_seed(seed) for _ in some]
        added = continue_tokens(model, some, count, window, temperature, generators, forbidden)
        for text, head, tail in zip(texts[first:], some, added):  # noqa: B905 (the texts go on)
            whole = tokens.decode([*head, *tail])
            line = {"prompt": text, "text": whole}
            print(whole if prompts is None else json.dumps(line, ensure_ascii=False), flush=True)
    if prompts is not None:
        rate = count * len(texts) / (time.perf_counter() - started)
        print(f"{len(texts):,} texts, {rate:,.0f} tokens/s in batches of {batch}", file=sys.stderr)


def _lines(path):
    """The non-empty lines of a file of prompts."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
    except UnicodeDecodeError:
        raise ConfigError(f"--prompts {path} is not UTF-8: save it as UTF-8 text, one prompt a line") from None
    if not lines:
        raise ConfigError(f"--prompts {path} holds no text: write one prompt a line")
    return lines


@click.command(hidden=True)
@run_option("A finished run of a summariser.", required=True)
@DEVICE
@with_project
def summarise(project, name, device):
    """Summarise the test split with the model of a finished run, and score the summaries (ROUGE).

    Each visible GPU writes a share of the summaries; one process then scores them, and the lead words of each document, against the
    references. Writes results/summaries/NAME.json.

    \b
    Example: parascale summarise --run summary-single
    """
    require_finished(project, name, "summarisation")
    from parascale.evaluation.summaries import judge
    from parascale.evaluation.task import open_task

    finished, settings = project.paths.run(name), project.config.summaries
    run = run_from_dict(read_json(RunFolder(finished).record)["settings"])
    folder = project.paths.data(run.workload.data.dataset, run.workload.data.format)
    import torch

    device = device or project.site.device  # all visible GPUs, or the CPU as one device
    count = torch.cuda.device_count() if device == "cuda" else 0
    devices = [f"cuda:{number}" for number in range(count)] or [device]
    work = functools.partial(write_summaries, finished, folder, settings, devices)
    if len(devices) == 1:
        batches = work(0)
    else:
        with ProcessPoolExecutor(len(devices), get_context("spawn"), die_with_parent) as pool:
            batches = [batch for part in _all_or_none(pool, work, len(devices)) for batch in part]
    result = judge(open_task(run.workload, folder).splits["test"], batches, settings)
    facts = {"schema_version": 1, "run": run.run, "split": "test", **result}
    write_json(project.paths.summaries(name), facts)
    for way in ("beam", "greedy", "lead"):
        figures = ", ".join(f"{key} {value:.4f}" for key, value in result[way].items())
        print(f"{run.run}: {way}: {figures} over {result['documents']:,} documents")


def _all_or_none(pool, work, count):
    """Results of `work(0)` to `work(count - 1)`. If one fails, ends the others at once, so that they do not waste GPUs."""
    parts = [pool.submit(work, part) for part in range(count)]
    try:
        for part in as_completed(parts):
            part.result()
    except BaseException:
        for child in active_children():
            child.terminate()
        raise
    return [part.result() for part in parts]


def write_summaries(finished, folder, settings, devices, part):
    """Write one process's part of the summaries of a finished run, see `evaluation.summaries.write`. devices: of all parts. folder: of the
    data."""
    import torch

    from parascale.checkpoint.load import load_run
    from parascale.data.text import Tokens
    from parascale.evaluation.summaries import write
    from parascale.evaluation.task import open_task

    run, model = load_run(finished)
    test, device = open_task(run.workload, folder).splits["test"], devices[part]
    torch.set_num_threads(max(1, torch.get_num_threads() // len(devices)))
    return write(model.to(device), test, Tokens(folder).decode, settings, BATCH, device, part, len(devices))


@click.command()
@click.argument("single", type=OutputFolder())
@click.argument("parallel", type=OutputFolder())
@click.option("--across-precisions", is_flag=True, help="Compare them even if they computed in different precisions.")
def prove(single, parallel, across_precisions):
    """Check that your script computes on several processes the same as on one; if not, find the first step, pass and module that differ.
    Both arguments are folders of `parascale.prove.recording` (docs/proof.md). Writes proof.json and proof.txt into the second. Exits with 1
    if they differ, and with 3 if they are not comparable because their precisions differ.

    \b
    Example: parascale prove proof/single proof/ddp
    """
    from parascale.proof import write_card

    return write_card(single, parallel, across_precisions=across_precisions)


@click.command()
@click.argument("probes", nargs=-1, metavar="[PROBE]...")
@click.option("--machine", is_flag=True, help="Instead: measure the processors of this machine, in 10 to 30 seconds.")
@with_project
def calibrate(project, probes, machine):
    """Collect the measurements of finished probes in a file that later plans use.

    Probes are short trainings; the Snakemake target `calibrate` runs them and then this command. Without names, it uses
    all probes of the run table. Writes results/calibration/SITE.json.

    A workflow on CPUs of this machine calls it with --machine before its first training, so that the first plan
    knows how fast they are. Writes results/calibration/SITE-machine.json.

    \b
    Example: parascale calibrate
    """
    if machine and probes:
        raise click.UsageError(f"--machine takes no probes: leave out {' '.join(probes)}")
    if machine:
        from parascale.train.processors import measure

        figures = measure()
        write_json(project.paths.machine(project.site.name), figures)
        print(", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in figures.items()))
        return
    planner = Planner(project)
    folders = [project.paths.probe(name) for name in probes or planner.probes]
    for name in probes:
        planner.run(name, "probe")  # raises for an unknown name, with the nearest match
    for folder in folders:
        if not RunFolder(folder).summary.is_file():
            raise ConfigError(f"{folder} holds no finished run (summary.json); the target `calibrate` runs the probes")
    sites = {prices.site_name(folder) for folder in folders}
    if sites - {project.site.name}:
        raise ConfigError(f"not all of these probes are of site {project.site.name}: {', '.join(sorted(sites))}")
    observations = tuple(filter(None, map(prices.observe_probe, folders)))
    if less := len(folders) - len(observations):
        print(f"{less} of {len(folders)} probes have no measurements: their script records no steps")
    prices.save(prices.Calibration(project.site.name, observations), project.paths.calibration(project.site.name))
    for observation in observations:
        phases = ", ".join(f"{phase} {1000 * seconds:.1f}" for phase, seconds in observation.phases.items() if seconds)
        print(f"{observation.run}: {1000 * observation.step_seconds:.1f} ms a step ({phases})")


def require_finished(project, name, task):
    """Raise ParascaleError unless a run, which may no longer be in the table, has finished and trained a model for `task`."""
    described = RunFolder(project.paths.run(name)).record
    if described.is_file():
        trained = read_json(described)["settings"]["workload"]["task"]
    else:
        trained = named_run(project, name).workload.task
    if trained != task:
        fitting = [each for each, run in project.right.items() if run.workload.task == task]
        others = ", ".join(fitting) or "none"
        raise ConfigError(f"run `{name}` trains {trained}, not {task}; runs of {task}: {others}")
    if not described.is_file():
        raise DataError(f"{described.parent}: no finished run there; train it first: `parascale launch --run {name}`")
