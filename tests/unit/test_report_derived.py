"""Speed-up only between runs that do the same work; figures that invent nothing."""

import dataclasses
from types import SimpleNamespace

import pytest

from parascale.plan.predict import DataFacts, predict
from parascale.report import numbers
from parascale.report.figures import spent
from parascale.report.summary import model_flops_utilisation, perplexity
from parascale.report.verdict import verdicts
from parascale.train.counting import keep_count
from tests.made_up.project import changed
from tests.made_up.results import BASE, CLUSTER, ddp, fake, report_of, workload


def test_speedup_is_the_ratio_of_times_and_efficiency_counts_the_gpus_held(tmp_path):
    waste = fake("waste", gpus_per_node=4, idle_gpus=3)
    report = report_of(tmp_path, fake("single", **BASE), ddp(step_seconds=0.06), waste)
    seconds = {record.name: record.summary.seconds for record in report.records}
    compared = report.comparisons
    assert compared["single"].speedup == compared["single"].efficiency == 1
    assert compared["ddp"].speedup == pytest.approx(seconds["single"] / seconds["ddp"])
    assert compared["ddp"].efficiency == pytest.approx(seconds["single"] / seconds["ddp"] / 2)
    assert compared["waste"].efficiency == pytest.approx(seconds["single"] / seconds["waste"] / 4)


OTHERS = {
    "other workload": ddp(train=workload(window=32)),
    "other work": ddp(steps=30),
    "another machine": ddp(site=dataclasses.replace(CLUSTER, device="cpu")),
    "profiled": ddp(profile="5-7"),
    "local SGD": ddp(average_every=4),
    "compression": ddp(compression="powersgd"),
    "default of earlier results": ddp(train=workload(model={"layers": 4, "dropout_masks": "per-rank"})),
    "baseline unknown": ddp(baseline="gone"),
    "baseline unfinished": ddp(baseline="stuck"),
    "unfinished": ddp(status="failed", steps=3),
}


@pytest.mark.parametrize("case", OTHERS)
def test_runs_that_differ_in_their_work_are_never_in_one_figure(tmp_path, case, golden):
    stuck = fake("stuck", status="failed", steps=2)
    report = report_of(tmp_path, fake("single", **BASE), ddp("twin"), stuck, OTHERS[case])
    compared = report.comparisons["ddp"]
    golden(compared.reason)
    assert compared.speedup is None
    assert compared.efficiency is None
    members = [member for experiment in report.experiments for member in experiment.members]
    drawn = {record.name for member in members for record in member.records}
    assert drawn == {"single", "twin"}


OTHERWISE = {
    "conduct": (ddp(train=workload(checkpoint_every=5)), "0123456789abcdef" * 4),
    "code": (ddp(), "fedcba98" * 8),
    "both": (ddp(train=workload(checkpoint_async=True)), "fedcba98" * 8),
}


@pytest.mark.parametrize("case", OTHERWISE)
def test_runs_that_were_measured_otherwise_are_compared_and_marked(tmp_path, case, golden):
    """They did the same training, so there is a speed-up; its reader is told what else its time depends on."""
    other, code = OTHERWISE[case]
    report = report_of(tmp_path, fake("single", **BASE), ddp("twin"), other, runs={"ddp": {"code_digest": code}})
    compared = report.comparisons
    golden(compared["ddp"].measured)
    assert compared["ddp"].speedup > 0
    assert not compared["ddp"].reason
    assert compared["twin"].measured == compared["single"].measured == ""
    marked = [notes for notes in verdicts(report)[0].table.frame["notes"] if "measured differently" in notes]
    assert len(marked) == 1
    assert compared["ddp"].measured in marked[0]


def test_strong_and_weak_scaling_are_apart(tmp_path):
    report = report_of(tmp_path, fake("single", **BASE), ddp(), ddp("weak", scaling="weak", step_seconds=0.125))
    found = {item.kind: [member.first.name for member in item.members] for item in report.experiments}
    assert found == {"strong": ["single", "ddp"], "weak": ["single", "weak"]}
    weak, rates = report.comparisons["weak"], {record.name: record.summary.rate for record in report.records}
    assert weak.speedup is None
    assert weak.efficiency == pytest.approx(rates["weak"] / rates["single"] / 2)


def test_seeds_of_one_configuration_are_one_member_with_a_spread(tmp_path):
    seeds = (ddp(f"ddp-{seed}", seed=seed, step_seconds=0.05 + 0.01 * seed) for seed in (1, 2, 3))
    report = report_of(tmp_path, fake("single", **BASE), *seeds)
    member = report.experiments[0].members[1]
    spread = member.spread(lambda record: record.summary.seconds)
    assert member.label == "ddp-1 (3 seeds)" and len(member.records) == 3
    assert spread.low < spread.mean < spread.high
    base, time = report.experiments[0].members[0].time.mean, member.time
    expected = base / time.mean, base / time.high, base / time.low
    assert report.experiments[0].gain(member) == pytest.approx(expected), "where ranges of seconds are apart, these are"


PAIRS = workload(task="summarisation")


def summarisers(root, changed):
    """A Report of a summariser alone and with DDP under three seeds; changed: other values of the summary of each."""
    seeds = (ddp(f"ddp-{seed}", seed=seed, train=PAIRS, step_seconds=0.06) for seed in (1, 2, 3))
    return report_of(root, fake("single", train=PAIRS, **BASE), *seeds, summaries=changed)


def test_seeds_of_a_summariser_are_compared_though_each_draws_other_tokens(tmp_path):
    """A seed decides which pairs are drawn, and so how many target tokens; so many pairs are the same work."""
    report = summarisers(tmp_path, {"ddp-2": {"work": 122_000}, "ddp-3": {"work": 123_456}})
    (experiment,) = report.experiments
    assert experiment.title == "lm-small, 1,920 pairs"
    assert [member.label for member in experiment.members] == ["single", "ddp-1 (3 seeds)"]
    speedup = experiment.members[1].spread(lambda record: report.comparisons[record.name].speedup)
    assert len(experiment.members[1].records) == 3 and speedup.low > 1


@pytest.mark.parametrize(
    ("run", "changed"),
    [
        ("ddp-2", {"steps": 59}),
        ("ddp-2", {"evaluated_tokens": {"validation": 20_000, "test": 22_001}}),
        ("ddp-1", {"work": 122_000}),
    ],
)
def test_summarisers_of_other_work_are_not_compared(run, changed, tmp_path):
    """Fewer steps, other data to judge by, or other tokens of one and the same seed."""
    report = summarisers(tmp_path, {run: changed})
    assert report.comparisons[run].speedup is None and "other work than" in report.comparisons[run].reason
    (experiment,) = report.experiments
    assert run not in {record.name for member in experiment.members for record in member.records}


def test_a_repetition_that_cannot_be_compared_is_not_averaged_with_those_that_can(tmp_path):
    odd = [ddp("astray", baseline="gone"), ddp("wrong", verdict="different", step_seconds=0.01)]
    report = report_of(tmp_path, fake("single", **BASE), ddp(), ddp("again"), *odd)
    names = sorted(tuple(sorted(record.name for record in member.records)) for member in report.members)
    assert names == [("again", "ddp"), ("astray",), ("single",), ("wrong",)]
    assert {member.label for member in report.members} >= {"again (2 runs)", "astray"}


def test_perplexity_is_of_tokens_alone(tmp_path):
    images = fake("images", "images", train=workload("images", "classification"))
    texts, pictures = report_of(tmp_path, fake("single", **BASE), images).records[::-1]
    assert perplexity(texts, 2.0) == pytest.approx(7.389, abs=1e-3) and perplexity(pictures, 2.0) is None


def test_mfu_is_known_only_where_the_peak_is(tmp_path):
    on_gpus = fake("gpus", baseline="gpus", gpus_per_node=2, dp=2, site=CLUSTER)
    gpus, cpu = report_of(tmp_path, on_gpus, fake("single")).records
    expected = gpus.summary.rate * 7.4e6 / (2 * 19.5e12)
    assert model_flops_utilisation(gpus) == pytest.approx(expected)
    assert model_flops_utilisation(cpu) is None


def test_mfu_of_images_follows_from_the_operations_of_one(tmp_path):
    """By hand, multiplications of one image of 32 pixels a side, convolution by convolution of a small xresnet."""
    stem = 16 * 16 * 9 * (3 * 4 + 4 * 4 + 4 * 8)
    block = 8 * 8 * (8 * 8 + 9 * 8 * 8 + 8 * 32 + 8 * 32)
    operations = 3 * 2 * (stem + block + 10 * (32 + 1))  # forward and backward; 10 classes, each with a bias
    train = workload(task="classification", model={"dim": 8, "depths": [1], "norm": "batch"}, image_size=32)
    train = changed(train, model={"counts": str(tmp_path / "counts")})
    keep_count(train, 10)
    on_gpus = fake("gpus", baseline="gpus", gpus_per_node=2, dp=2, site=CLUSTER, train=train)
    (record,) = report_of(tmp_path, on_gpus).records
    prediction = predict(record.run, CLUSTER, facts=DataFacts(vocabulary=10)).as_dict()
    summary = dataclasses.replace(record.summary, work_unit="images", rate=5_000.0)
    record = dataclasses.replace(record, prediction=prediction, summary=summary)
    assert model_flops_utilisation(record) == pytest.approx(5_000 * operations / (2 * 19.5e12), rel=1e-4)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (numbers.significant(12345.6), "12,346"),
        (numbers.significant(0.0123456), "0.0123"),
        (numbers.significant(9.999), "10.0"),
        (numbers.significant(0), "0"),
        (numbers.duration(0.042), "42.0 ms"),
        (numbers.duration(0.15), "150 ms"),
        (numbers.duration(0.42), "420 ms"),
        (numbers.duration(252), "4 min 12 s"),
        (numbers.duration(5520), "1 h 32 min"),
        (numbers.core_hours(12.345), "12.3 core-h"),
        (numbers.core_hours(0.0123), "44 core-s"),
        (numbers.memory(340 << 20), "340 MiB"),
        (numbers.memory(40 << 30), "40.0 GiB"),
        (numbers.tiny(4.8e-7), "4.8 × 10⁻⁷"),
        (numbers.share(0.875), "87.5 %"),
        (numbers.plural(2, "process"), "2 processes"),
        (numbers.plural(1, "micro-batch"), "1 micro-batch"),
    ],
)
def test_numbers_are_written_for_people(written, expected):
    assert written == expected


@pytest.mark.parametrize(
    "write", [numbers.significant, numbers.whole, numbers.duration, numbers.memory, numbers.percent, numbers.tiny]
)
def test_the_unknown_is_written_as_nothing(write):
    assert write(None) == ""


@pytest.mark.parametrize("waited", [0.0, 0.31, 0.46])
def test_the_bubble_of_the_figure_is_that_of_the_table(waited):
    """Phases are those of rank 0, the table's figure is the mean of all ranks: the figure shows that one, and the step stays as long."""
    phases = {"forward": 2.0, "backward": 3.4, "bubble": 4.6}
    summary = SimpleNamespace(phases=phases, bubble_measured=waited, steps=10)
    record = SimpleNamespace(summary=summary, run=SimpleNamespace(layout=SimpleNamespace(world_size=2)))
    shown = spent(record)
    assert sum(shown.values()) == pytest.approx(1.0)
    assert shown["bubble"] == pytest.approx(waited) and shown["backward"] / shown["forward"] == pytest.approx(1.7)
