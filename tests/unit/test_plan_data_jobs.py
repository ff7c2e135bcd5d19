"""What jobs cost that train nothing: those that make data, write checkpoints in other forms, or summaries."""

import pytest

from parascale.families import model_sizes
from parascale.families.counted import count_found, counts_of
from parascale.files import write_json
from parascale.plan.hours import Job
from parascale.plan.planner import Planner
from parascale.plan.price import limit_minutes, price
from parascale.plan.time import forward_seconds
from parascale.plan.work import step_work
from parascale.settings import Layout, load_project_file, load_workload
from tests.made_up.project import changed
from tests.unit.pretrained_folders import T5_SMALL, describe


def other(stage, **wildcards):
    """A job of the stage whose benchmarks lie in that folder, under a name that another workflow may have given it."""
    return Job(1, f"theirs_{stage}", wildcards, benchmark=f"results/benchmarks/{stage}/x.tsv")


@pytest.mark.parametrize(
    ("stage", "wildcards"),
    [
        ("prepare", {"dataset": "wikitext2"}),
        ("index", {"dataset": "imagewoof"}),
        ("convert", {"dataset": "imagewoof", "format": "hdf5"}),
        ("verify", {"dataset": "wikitext103-50k", "format": "arrow"}),
        ("loaders", {"dataset": "imagewoof"}),
        ("convert_checkpoint", {"run": "fsdp-4"}),
        ("verify_checkpoint", {"run": "fsdp-4"}),
        ("summarise", {"run": "xsum-course-1"}),
    ],
)
def test_jobs_that_train_nothing_have_a_price(jureca, stage, wildcards):
    """Between its start and an hour, by formula; the ledger's own experience stands above that."""
    job = other(stage, **wildcards)
    priced = price(job, jureca, {})
    assert jureca.site.assumed.startup_seconds / 3600 < priced.expected < 1 and priced.basis == "formula"
    assert priced.core_hours == pytest.approx(128 * priced.expected)
    assert price(job, jureca, {job.rule: 0.25}).expected == 0.25


@pytest.mark.parametrize(
    ("stage", "wildcards", "minutes"),
    [
        ("prepare", {"dataset": "wikitext2"}, 15),
        ("verify", {"dataset": "imagewoof", "format": "hdf5"}, 15),
        ("summarise", {"run": "xsum-course-1"}, 15),
        ("encode", {"dataset": "wikitext2"}, 15),
    ],
)
def test_a_job_that_trains_nothing_has_a_time_limit_by_its_price(jureca, stage, wildcards, minutes):
    """Four times its price in quarters of an hour, longer at each attempt, within the partition."""
    hours = price(other(stage, **wildcards), jureca, {}).expected
    limits = [limit_minutes(stage, wildcards, jureca, attempt, "dc-gpu") for attempt in (1, 2, 1000)]
    assert limits[0] >= minutes and limits == [limits[0], 2 * limits[0], 24 * 60]
    assert 4 * hours <= limits[0] / 60 < 4 * hours + 0.25


def test_summaries_are_written_by_all_gpus_that_the_job_has(jureca):
    """What each process does once, such as to start and to read the weights, stays."""
    job = changed(other("summarise", run="xsum-single"), gpus=1)
    alone, four, many = (price(changed(job, gpus=gpus), jureca, {}).expected for gpus in (1, 4, 10**9))
    assert alone - four == pytest.approx(3 / 4 * (alone - many)) and alone > 3 * four > 3 * many
    assert many * 3600 >= jureca.site.assumed.startup_seconds


def test_a_pretrained_model_has_a_price_once_its_folder_is_there(tmp_path, monkeypatch):
    """Its trainings, and the job that writes its summaries, and it is counted; before, they say which file is missing, or the command."""
    monkeypatch.setenv("DATA", str(tmp_path))
    files = "config/config.yaml", "config/jureca-xsum-t5.yaml"
    project = load_project_file(*files, overrides={"root": str(tmp_path)})
    job = other("summarise", run="xsum-t5-single")
    missing = Planner(project).prediction("xsum-t5-single")
    assert f"{tmp_path}/t5-small/config.json: no such file" in missing.unknown and missing.memory is None
    assert price(job, Planner(project), {}).expected is None
    describe(tmp_path / "t5-small", T5_SMALL, 32100)
    unknown = Planner(project).prediction("xsum-t5-single").unknown
    assert "parascale check model config/workloads/xsum-t5.yaml" in unknown
    workload, shipped = project.runs["xsum-t5-single"].workload, load_workload("config/workloads", "xsum")
    place, digest = counts_of(workload.model, 32100, *workload.sizes)
    write_json(place, {digest: count_found(shipped.model, 32000, *shipped.sizes)})
    there = Planner(project)
    hours = {run: there.prediction(run).wall_seconds for run in project.runs}
    assert hours["xsum-t5-single"] > hours["xsum-t5-ddp-4"] > 0 and price(job, there, {}).expected > 0


def test_more_data_costs_more(jureca):
    jobs = (other("prepare", dataset=name) for name in ("wikitext2", "wikitext103-50k"))
    small, large = (price(job, jureca, {}).expected for job in jobs)
    assert large > 2 * small


def test_shards_of_a_text_are_encoded_at_the_price_of_one_job_and_a_start_each(jureca, monkeypatch):
    """Joining them is a copy, and costs far less than encoding; so are tokens of one's own, and tokens in another format."""

    def hours(stage):
        return price(other(stage, dataset="wikitext103-50k"), jureca, {}).expected - start

    start, datasets = jureca.site.assumed.startup_seconds / 3600, jureca.project.datasets
    one, text = hours("prepare"), datasets["wikitext103-50k"]
    monkeypatch.setitem(datasets, "wikitext103-50k", changed(text, shards=4))
    assert 4 * hours("encode") == pytest.approx(one)
    copied = hours("prepare")
    assert 0 < copied < one / 20 and hours("convert") == hours("verify") == copied
    flat = changed(text, source=changed(text.source, files={"train": ["tokens/*.bin"]}))
    monkeypatch.setitem(datasets, "wikitext103-50k", flat)
    assert hours("prepare") == copied


def test_shards_of_images_are_written_at_the_price_of_one_job_and_a_start_each(jureca):
    def seconds(shards, stage="convert", dataset="imagewoof"):
        planner = Planner(changed(jureca.project, config={"formats": {"shards": shards}}))
        return 3600 * price(other(stage, dataset=dataset), planner, {}).expected - start

    start = jureca.site.assumed.startup_seconds
    assert 8 * seconds(8) == pytest.approx(seconds(1))
    assert seconds(8, "verify") == seconds(1, "verify")
    assert seconds(8, dataset="wikitext2") == seconds(1, dataset="wikitext2")


def test_a_job_may_take_two_hours_where_the_size_of_its_data_is_unknown(jureca, monkeypatch):
    monkeypatch.setattr(jureca, "raw_bytes", lambda name: None)
    assert limit_minutes("encode", {"dataset": "wikitext2"}, jureca, 1, "dc-gpu") == 120


def test_a_stage_without_a_price_has_no_time_limit(jureca):
    with pytest.raises(ValueError, match="no price for the stage 60"):
        limit_minutes(60, {"dataset": "wikitext2"}, jureca, 1, "dc-gpu")


def test_a_checkpoint_is_verified_with_the_validation_and_the_test_split(jureca):
    """Both are evaluated, so that ten times as long a split takes ten times as long, loading apart."""
    run = jureca.run("fsdp-4")

    def seconds(tokens):
        longer = changed(run, workload={"data": {"expected": {"validation_tokens": tokens}}})
        planner = Planner(changed(jureca.project, runs={"fsdp-4": longer}))
        return 3600 * price(other("verify_checkpoint", run="fsdp-4"), planner, {}).expected

    none, once, tenfold = (seconds(count * run.workload.training.window) for count in (1, 10_001, 100_001))
    rates, _ = jureca.calibration.rates(jureca.site, run, 0.0)
    vocabulary = jureca.facts(run).vocabulary
    alone = changed(run, layout=Layout())
    work = step_work(alone, model_sizes(run.workload.model, vocabulary, *run.workload.sizes), jureca.site)
    batch = forward_seconds(work, rates, jureca.site)
    assert once - none == pytest.approx(2 * 10_000 / run.global_batch * batch)
    assert tenfold - none == pytest.approx(10 * (once - none))
