"""The files of a configuration: each error names its file, its line and the remedy."""

from pathlib import Path

import click
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from snakemake.cli import parse_config

from parascale.cli import Override
from parascale.errors import ConfigError
from parascale.plan.probes import probes
from parascale.settings import Layout, Model, Site, identity, load_project, load_workload, make
from parascale.settings.options import LAYOUT, RECIPE
from parascale.settings.project import typed
from parascale.settings.runtable import read_rows
from tests.made_up.project import write_files

WORKLOAD = {"training": {"window": 16, "global_batch": 8, "steps": 10}, "model": {"dim": 16, "heads": 4, "layers": 4}}
IMAGES = {"task": "classification", "model": {"kind": "xresnet", "norm": "batch"}, "training": {"steps": 10}}


quick = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def project(tmp_path):
    """A function that writes a configuration of workloads, sites and a run table, and loads it."""

    def make(table, workloads=None, site=None, **config):
        texts = {f"workloads/{name}.yaml": values for name, values in (workloads or {"small": WORKLOAD}).items()}
        texts = {name: yaml.safe_dump(values) for name, values in {**texts, "sites/here.yaml": site or {}}.items()}
        table = table.replace(" ", "\t") if isinstance(table, str) else "\n".join(table)
        write_files(tmp_path, texts | {"runs.tsv": table})
        return found_in(tmp_path, whole=True, **config)

    return make


def found_in(folder, whole=False, **config):
    """The project in a folder; whole: without any wrong row."""
    places = {name.partition(".")[0]: str(folder / name) for name in ("workloads", "sites", "runs.tsv")}
    return load_project({"site": "here", **places, **config}, whole=whole)


HEADER = "run workload gpus_per_node dp baseline init_from\n"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("run workload nodez\na small 1\n", "unknown column `nodez`; did you mean `nodes`"),
        ("run workload global_batch\na small 8\n", "unknown column `global_batch`: set `training.global_batch` in"),
        (f"run workload\n{'a' * 101} small\n", "must be at most 100 letters"),
        ("run workload dp dp\na small 1 1\n", "column `dp` appears twice"),
        ("run workload\na small 1\n", "line 2: 3 cells, but the header has 2"),
        ("run workload\n\n# note\na small\na small\n", "line 5: run `a` appears twice"),
        ("run workload\nDdp small\nddp small\n", "line 3, column 1: `run` = `ddp`, but there is `Ddp`: filesystems"),
        ("run workload\n../b small\n", r"line 2, column \d+: `run` = `../b` must be at most 100 letters"),
        ("run workload\n- small\n", "line 2: `run` is missing"),
        ("run workload\na -\n", "line 2: `workload` is missing"),
        ("run workload\na smal\n", r"smal.yaml: no such workload; did you mean `small`"),
        ("run workload compile\na small maybe\n", r"line 2, column \d+: `compile` must be true or false, not `maybe`"),
        (
            "run workload activation_checkpointing\na small selectiv\n",
            "did you mean `selective`.* Allowed: false, selective, true",
        ),
        ("run workload precision\na small float16\n", "`precision` = `float16` is not known; did you mean `fp16`"),
        (
            "run workload dp\na small 2\n",
            "line 2: run `a`: dp × fsdp × tp × pp × cp = 2, but nodes × gpus_per_node = 1",
        ),
        ('run workload baseline\na small "b\nb small -\n', 'run `a`: baseline `"b` is not in the table'),
        ("run workload\n", "the run table has no rows"),
        ("", "the run table has no rows"),
        (HEADER + "a small 1 1 bb -\nb small 1 1 - -\n", "baseline `bb` is not in the table; did you mean `b`"),
        (HEADER + "a small 1 1 b -\nb other 1 1 - -\n", "baseline `b` trains `other`, not `small`"),
        (HEADER + "a small 1 1 - c\n", "run `a`: init_from `c` is not in the table"),
        (HEADER + "a small 1 1 - a\n", "init_from is circular: a → a"),
        (HEADER + "a small 1 1 - b\nb small 1 1 - a\n", "init_from is circular: a → b → a"),
        (HEADER + "a small 4 4 - -\n", "gpus_per_node = 4, but a node of here has 2"),
        ("run workload nodes dp\na small 5 5\n", "nodes = 5, but the largest partition of here takes 4"),
    ],
)
def test_a_wrong_run_table_names_the_line_and_the_remedy(project, table, message):
    site = {"gpus_per_node": 2, "partitions": [{"name": "small", "max_nodes": 1}, {"name": "large", "max_nodes": 4}]}
    with pytest.raises(ConfigError, match=message):
        project(table, {"small": WORKLOAD, "other": {**WORKLOAD, "title": "another"}}, site)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_table_as_a_spreadsheet_saves_it_is_read(project, tmp_path, encoding):
    """In UTF-16 as "Unicode text", with quotes around some cells, and tabs after the last one."""
    project("run workload\na small\n")
    (tmp_path / "runs.tsv").write_bytes('run\t"workload"\tdp\t\t\r\n"a"\tsmall\t1\t\t\r\n'.encode(encoding))
    runs = found_in(tmp_path).runs
    assert [(run.run, run.workload.name, run.layout.dp) for run in runs.values()] == [("a", "small", 1)]


def test_a_column_of_words_takes_truths_as_well(project):
    table = "run workload activation_checkpointing\na small true\nb small selective\nc small no\nd small -\n"
    loaded = [run.layout.activation_checkpointing for run in project(table).runs.values()]
    assert loaded == [True, "selective", False, False]


def test_a_table_keeps_its_order_skips_comments_and_leaves_defaults_in_empty_cells(project):
    head = "run\tworkload\tdp\tgpus_per_node\tseed"
    loaded = project(["# mine", head, "b\tsmall\t2\t2\t-", "", "a\tsmall", "#c\tsmall"])
    assert list(loaded.runs) == ["b", "a"]
    assert (loaded.runs["b"].layout.dp, loaded.runs["b"].seed, loaded.runs["a"].layout) == (2, 1, Layout(compile=False))


@quick
@given(st.text(alphabet=st.sampled_from("ab\t\n\"'#-0 é\r"), max_size=40))
def test_no_table_causes_anything_but_rows_or_a_clear_error(tmp_path, text):
    table = tmp_path / "runs.tsv"
    table.write_text(f"run\tworkload\tseed\n{text}", newline="")
    try:
        assert all(values["run"] and values["workload"] for values in (row.settings() for row in read_rows(table)))
    except ConfigError as error:
        assert str(table) in str(error)


def test_a_row_may_cut_its_share_of_a_step_otherwise_than_its_workload(project):
    """It is compared with others all the same, but where batch norm sees each part by itself, and finds what was trained so before."""
    cut = {**WORKLOAD, "training": {**WORKLOAD["training"], "accumulate": 2}}
    table = "run workload gpus_per_node dp accumulate\na small 1 1 4\nb small 2 2 -\nc small 1 1 2\n"
    runs = project(table, {"small": cut}).runs
    assert {name: run.workload.training.accumulate for name, run in runs.items()} == {"a": 4, "b": 2, "c": 2}
    assert {run.baseline for run in runs.values()} == {"a"} and {run.accumulate for run in runs.values()} == {None}
    backwards = dict(reversed(runs.items()))
    assert probes(runs, Site("here")) == probes(backwards, Site("here")), "whichever row stands first"
    plain = project("run workload\nc small\n", {"small": cut}).runs["c"]
    assert identity.settings(runs["c"], RECIPE, LAYOUT) == identity.settings(plain, RECIPE, LAYOUT)
    with pytest.raises(ConfigError, match="baseline `a` has another `accumulate`, which changes batch norm"):
        project(table, {"small": IMAGES})
    with pytest.raises(ConfigError, match=r"runs.tsv, line 2, column .*accumulate.*0"):
        project("run workload accumulate\na small 0\n")


def test_the_baseline_is_the_one_named_else_the_first_on_one_process_else_the_run_itself(project):
    rows = "wide small 2 2 - -\none small 1 1 - -\ntwo small 1 1 - -\nnamed small 2 2 two -\nalone other 2 2 - -\n"
    loaded = project(HEADER + rows, {"small": WORKLOAD, "other": {**WORKLOAD, "title": "another"}})
    found = {name: loaded.baseline(name).run for name in loaded.runs}
    assert found == {"wide": "one", "one": "one", "two": "one", "named": "two", "alone": "alone"}


def test_what_has_a_way_of_its_own_is_no_baseline_of_another_way(project):
    """Batch norm over all ranks, beside a named baseline whose ranks each have their own."""
    table = "run workload gpus_per_node dp sync_batch_norm baseline\nown small 2 2 false -\nsync small 2 2 - own\n"
    assert project(table, {"small": IMAGES}).incomparable.keys() == {"own", "sync"}


# --- workloads and files


@pytest.mark.parametrize(
    ("rows", "report", "converted"),
    [
        ("a 2 2 1\nb 2 1 2\nc 2 1 2\n", "one", ["b"]),
        ("a 1 1 1\nb 2 2 1\n", "one", ["a"]),
        ("a 1 1 1\nb 2 1 2\n", "all", ["a", "b"]),
        ("a 1 1 1\n", "none", []),
    ],
)
def test_the_report_has_the_checkpoint_of_a_run_that_is_spread(project, rows, report, converted):
    table = "run gpus_per_node dp fsdp workload\n" + rows.replace("\n", " small\n")
    assert project(table, checkpoints={"report": report}).converted == converted


def test_extends_puts_a_workload_on_top_of_another_key_by_key(project):
    source = {"kind": "files", "files": {"train": "a.txt"}}
    above = {"extends": "small", "training": {"epochs": 1.5}, "model": {"layers": 2}, "data": {"source": source}}
    source = {"kind": "builtin", "name": "documentation"}
    base = {**WORKLOAD, "title": "base", "data": {"dataset": "d", "source": source}}
    made = project("run workload\na above\n", {"small": base, "above": above}).runs["a"].workload
    assert (made.name, made.title, made.model.dim, made.model.layers) == ("above", "base", 16, 2)
    assert (made.training.steps, made.training.epochs, made.training.window) == (None, 1.5, 16)
    assert (made.data.source.kind, made.data.source.name) == ("files", None), "sources of two kinds do not mix"
    assert made.data.dataset == "d"


@pytest.mark.parametrize("location", [None, "there"])
def test_a_path_is_relative_to_its_file_but_files_to_their_location(project, tmp_path, location):
    source = {"kind": "files", "files": {"train": "a.txt"}, "location": location}
    loaded = project("run workload\na small\n", {"small": {**WORKLOAD, "data": {"source": source}}})
    found, folder = loaded.datasets["small"].source, tmp_path / "workloads"
    assert found.location == (location and str(folder / location))
    assert found.files == {"train": "a.txt" if location else str(folder / "a.txt")}


def test_a_pretrained_model_takes_nothing_of_the_one_it_replaces(project, tmp_path):
    """Its folder decides all sizes. Nor does a model of another kind; the same kind keeps the settings that it goes on top of."""
    data = {"text": {"tokenizer": "pretrained", "pretrained": "t5"}}
    workloads = {
        "small": WORKLOAD,
        "tuned": {"extends": "small", "task": "summarisation", "data": data, "model": {"kind": "pretrained"}},
        "other": {"extends": "small", "task": "summarisation", "model": {"kind": "encoder_decoder"}},
        "wider": {"extends": "small", "model": {"dim": 32}},
    }
    runs, counts = project("run workload\na tuned\nb other\nc wider\n", workloads).runs, f"{tmp_path}/workloads/counts"
    tuned = make(Model, kind="pretrained", pretrained=f"{tmp_path}/workloads/t5", counts=counts)
    assert runs["a"].workload.model == tuned
    assert runs["b"].workload.model == make(Model, kind="encoder_decoder", counts=counts)
    assert (runs["c"].workload.model.dim, runs["c"].workload.model.layers) == (32, WORKLOAD["model"]["layers"])


@pytest.mark.parametrize(
    ("workloads", "message"),
    [
        ({"a": {"extends": "b"}, "b": {"extends": "a"}}, "`extends` is circular: a → b → a"),
        ({"a": {"extends": "a"}}, "`extends` is circular: a → a"),
        ({"a": {"extends": "aa"}, "b": {}}, "aa.yaml: no such workload; did you mean `a`"),
        ({"a": {**WORKLOAD, "name": "other"}}, "leave out `name`"),
        ({"a": {**WORKLOAD, "data": {"dataset": "../raw"}}}, "`data.dataset` = `../raw` must be at most 100 letters"),
        ({"a": {**WORKLOAD, "data": None}}, "data. must be a mapping of keys, not None"),
        ({"a": ["steps"]}, "a.yaml: must be a mapping of keys"),
        ({"a": {"task": "clasification", "model": {"depths": [1]}}}, "`clasification` is not known; did you mean"),
    ],
)
def test_a_wrong_workload_names_its_file_and_the_remedy(project, workloads, message):
    with pytest.raises(ConfigError, match=message):
        project("run workload\nr a\n", workloads)


def test_a_dataset_is_named_after_its_workload_unless_it_says_otherwise(project):
    named = {**WORKLOAD, "data": {"dataset": "shared"}}
    table = "run workload\na small\nb one\nc two\n"
    loaded = project(table, {"small": WORKLOAD, "one": named, "two": {**named, "title": "another"}})
    assert list(loaded.datasets) == ["small", "shared"]


def test_workloads_that_share_a_dataset_agree_in_how_many_jobs_encode_it(project):
    text = {"tokenizer": "pretrained", "pretrained": "model"}
    jobs = {"one": 1, "two": 2}
    both = {name: {**WORKLOAD, "data": {"dataset": "a", "text": text, "shards": jobs[name]}} for name in jobs}
    with pytest.raises(ConfigError, match=r"`one` and `two` both call their dataset `a`, but its .* shards"):
        project("run workload\na one\nb two\n", both)


def test_rules_and_commands_read_a_shared_dataset_as_its_first_workload_says(project):
    both = {
        name: {**WORKLOAD, "data": {"dataset": "shared", "expected": {"vocabulary": size}}}
        for name, size in [("one", 7), ("two", 9)]
    }
    loaded = project("run workload\na one\nb two\n", both)
    assert loaded.users["shared"].name == "one" and loaded.datasets["shared"].expected.vocabulary == 7


@pytest.mark.parametrize(
    "other",
    [
        {**WORKLOAD, "data": {"text": {"lowercase": True}}},
        {**WORKLOAD, "data": {"source": {"name": "docstrings"}}},
        {**WORKLOAD, "data": {"source": {"location": "elsewhere"}}},
        IMAGES,
    ],
)
def test_one_dataset_cannot_mean_two_things(project, other):
    shared = {"dataset": "shared"}
    both = {"one": {**WORKLOAD, "data": shared}, "two": {**other, "data": {**other.get("data", {}), **shared}}}
    with pytest.raises(ConfigError, match="`one` and `two` both call their dataset `shared`"):
        project("run workload\na one\nb two\n", both)


def test_images_are_data_of_classifications_trained_or_only_measured(project):
    workloads = {"small": WORKLOAD, "trained": IMAGES, "measured": {**IMAGES, "data": {"dataset": "drawn"}}}
    loaded = project("run workload\na small\nb trained\n", workloads, loaders={"workloads": ["measured", "small"]})
    assert list(loaded.datasets) == ["small", "trained", "drawn"]
    assert list(loaded.image_datasets) == ["trained", "drawn"]
    assert list(loaded.untrained) == ["measured"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1", "w.yaml, line 1, column 6: not valid YAML"),
        (b"title: a\ntitle: b", "w.yaml, line 2, column 1: not valid YAML.*key `title` appears twice"),
        (b"model:\n  dim: 1\n  dim: 2", "key `dim` appears twice"),
        (b"title: \xff", "w.yaml: not UTF-8 text"),
        (b"files: {train: a.txt[:90%]}", r"line 1, column 21: .*; text that holds `\[` needs single quotes"),
        (b"training: {steps: 0100}", "line 1, column 19: not valid YAML: `0100` is octal for 64"),
        (b"title: -0_17", "`-0_17` is octal for -15: .*text in quotes"),
        (b"precision: fp64", "line 1, column 1: unknown key `precision`: it is a column of the run table"),
        (b"just text", "w.yaml: must be a mapping of keys"),
        (b"# nothing\n", "w.yaml: sets nothing"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, message):
    (tmp_path / "w.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        load_workload(tmp_path, "w")


def test_variables_in_the_root_are_filled_in(project, monkeypatch):
    monkeypatch.setenv("SOME_SCRATCH", "/scratch/me")
    assert project("run workload\na small\n", root="$SOME_SCRATCH/p").root == Path("/scratch/me/p")


@pytest.mark.parametrize(
    "text",
    [
        "{documents: 500}",
        "{workers: [0, 1], seconds: 0.5}",
        "{a: {b: true, c: none, d: 1e3}}",
        "[4, x, 'a: b', {c: 2}]",
    ],
)
def test_what_snakemake_leaves_as_text_is_what_yaml_reads(text, tmp_path):
    """Within mappings and lists; what a file has as text stays text."""
    (file := tmp_path / "config.yaml").write_text("key: {label: '12'}\n")
    given = parse_config([f"key={text}"])
    assert typed(given, [file]) == {"key": yaml.safe_load(text)}
    assert typed({"key": {"label": "12", "more": "12"}}, [file]) == {"key": {"label": "12", "more": 12}}


def test_a_number_with_leading_zeros_is_taken_as_written_or_refused(tmp_path, project):
    """YAML reads 0100 as 64. Snakemake's top level and a run table read 100."""
    (file := tmp_path / "config.yaml").write_text("")
    with pytest.raises(ConfigError, match="`0100` is octal for 64"):
        typed(parse_config(["key={steps: 0100}"]), [file])
    with pytest.raises(click.BadParameter, match="`0100` is octal for 64"):
        Override().convert("key={steps: 0100}", None, None)
    assert typed(parse_config(["key=0100"]), [file]) == {"key": 100}
    assert project("run workload seed\na small 0100\n").runs["a"].seed == 100
    assert Override().convert("key={a: 0x10, b: 0, c: 0.5, d: '007', e: 089}", None, None)[1] == {
        "a": 16, "b": 0, "c": 0.5, "d": "007", "e": "089",
    }  # fmt: skip


def test_a_wrong_row_is_an_error_for_those_who_ask_for_it_or_for_all(project, tmp_path):
    """Whoever wants the whole table hears of every wrong row at once; a right one has its baseline and number as they are without the others."""
    workloads = {"small": WORKLOAD, "other": {**WORKLOAD, "data": {"dataset": "small", "source": {"split": "b"}}}}
    rows = (
        "a small 1 1 - -,single small 1 1 - -,same small 1 1 - -,b small 1 2 - -,c none 1 1 - -,d small 2 2 gone -,- small 1 1,"
        "e small 4 4 b -,f small 1 1 - b,g other 1 1 - -,h small 1 1 1 1 1 1 1,i small 2 two - -,i small 1 1 - -"
    )
    wrong = ["b", "c", "d", "f", "g", "h", "i"]
    with pytest.raises(ConfigError) as all_of_them:
        project(HEADER + rows.replace(",", "\n") + "\n", workloads)
    said = str(all_of_them.value).splitlines()
    assert len(said) == 7 and all(f"line {number}" in "".join(said) for number in (5, 8, 12, 13)), said
    found = found_in(tmp_path)
    assert [*found.right] == ["a", "single", "same", "e"] and set(found.runs) > {*wrong, *found.right}
    assert [found.runs[name].repeat for name in found.right] == [1, 2, 3, 1]
    assert found.compared("single") == ("single", "a") and "e" not in found.incomparable
    for name in wrong:
        with pytest.raises(ConfigError):
            found.runs[name]
    for ask in (found.runs.items, found.runs.values, lambda: found.trained, lambda: found.compared("e")):
        with pytest.raises(ConfigError, match="line 5"):
            ask()


@pytest.mark.parametrize(
    ("wrong", "numbers"),
    [  # repeats that the rows `one`, `two` (another seed), `wide` (another layout) and `else` (another workload) are; None: nobody knows
        ("w small 1 x 1 - -", [None, 1, 1, 1]),
        ("w small 2 1 1 - -", [None, 1, None, 1]),
        ("w small 1 x y - -", [None, None, 1, 1]),
        ("w smal 2 2 1 - -", [1, 1, None, 1]),
        ("w broken 1 1 1 - -", [1, 1, 1, 1]),
        ("w other 1 x 1 - -", [1, 1, 1, None]),
        ("w small 1 1 1 gone -", [2, 1, 1, 1]),
        ("w small 1 1 2 - gone", [1, None, 1, 1]),
        ("w small 1 1 1 - - - -", [None, None, None, 1]),
        ("w,small,1,1", [None, None, None, None]),
        ("w small 1 1 1 - -\nw small 1 1 2 - -", [2, 2, 1, 1]),
        ("w small 1 1 9 - -\nw small 1 x 1 - -", [None, 1, 1, 1]),
    ],
)
def test_no_wrong_row_renumbers_its_repeats_unsaid(project, tmp_path, wrong, numbers):
    """The number is part of a run's key: with another one it would be taken for, or published as, another run's result."""
    names = ["one", "two", "wide", "else"]
    rows = ["one small 1 1 1", "two small 1 1 2", "wide small 2 2 1", "else other 1 1 1"]
    table = ["run workload gpus_per_node dp seed baseline init_from", *wrong.split("\n"), *rows]
    with pytest.raises(ConfigError):
        other = {**WORKLOAD, "data": {"dataset": "other"}}
        project("\n".join(table), {"small": WORKLOAD, "other": other, "broken": {"none": 1}})
    found = found_in(tmp_path)
    assert [found.right[name].repeat if name in found.right else None for name in names] == numbers
    for name in (name for name in names if name not in found.right):
        with pytest.raises(ConfigError, match=f"run `{name}`: .* repeat .*line [23]"):
            found.runs[name]


def test_a_workload_whose_only_row_is_wrong_is_still_one_whose_data_is_measured(project, tmp_path):
    """`loaders.workloads` names it."""
    with pytest.raises(ConfigError):
        files = {"small": WORKLOAD, "other": WORKLOAD, "broken": {"none": 1}}
        project(HEADER + "a other x 1 - -\nb small 1 1 - -\nc broken 1 1 - -\nd other 1 1 - -\n", files)
    found = found_in(tmp_path, loaders={"workloads": ["small", "other", "broken"]})
    assert [*found.workloads] == ["small", "other"]


def test_a_wrong_row_may_be_the_baseline_that_others_get_by_default(project, tmp_path):
    """They are then compared with none, not with the next row."""
    table = "run workload gpus_per_node dp seed\nfirst small 1 1 x\nsecond small 1 1 1\nwide small 2 2 1\n"
    with pytest.raises(ConfigError):
        project(table)
    found = found_in(tmp_path)
    assert {run.baseline for run in found.right.values()} == {"first"}
    with pytest.raises(ConfigError, match="line 2"):
        found.baseline("wide")
