"""Folders may be called what they like: no rule puts a path into a command without quoting it."""

import html

from .small_project import SmallProject


def test_folders_with_blanks_quotes_and_umlauts_work(tmp_path):
    folder = tmp_path / "Anna's Übung 1"
    folder.mkdir()
    project = SmallProject(folder)
    project.edit("config/tiny.tsv", "ddp\ttiny\t2\t2\n", "")
    project.snakemake("--config", "root=it's all & more'", 'title=A "title" {of} mine')
    (page,) = folder.glob("*/results/report/index.html")
    assert page.parents[2].name == "it's all & more"
    assert 'A "title" {of} mine' in html.unescape(page.read_text())
    assert (page.parent / "jobs/single.pdf").exists()
