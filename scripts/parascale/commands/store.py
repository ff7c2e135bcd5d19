"""`parascale store`: lists and removes stored trainings."""

from contextlib import suppress

import click

from parascale.cli import with_project
from parascale.errors import ConfigError
from parascale.paths import RunFolder
from parascale.plan.planner import Planner
from parascale.report.numbers import aligned
from parascale.store.keys import data_known, key_of_run
from parascale.store.trainings import SHORT, Store, shown_places, unfinished

GB = 1e9
FEWEST = 4  # characters of a key on the command line


@click.group()
def store():
    """List or free finished and unfinished trainings."""


@store.command(name="list")
@with_project
def list_(project):
    """List all finished trainings: key, name, time of the end, core-hours, size, and where results show them.

    Then come unfinished trainings and leftovers of killed jobs, damaged files and earlier versions. A training whose settings changed is
    parked; it continues if they are changed back.

    \b
    Example: parascale store list
    """
    found, shown = Store(project.paths.trainings), shown_places(project.paths.results)
    trainings, begun = found.all(), unfinished(project.paths.under_way)
    rows = [[*_words(kept), ", ".join(shown.get(kept.key, ["-"]))] for kept in trainings]
    rows += [[*_words(each), "parked" if each.parked else "unfinished"] for each in begun]
    rows += [[*_words(left), "left over"] for left in found.leftovers()]
    if rows:
        print(*aligned([("key", "training", "finished", "core-h", "GB", "shown as"), *rows]), sep="\n")
    unused = sum(kept.bytes for kept in trainings if kept.key not in shown)
    bound = project.config.store.gigabytes
    print(
        f"{len(trainings)} finished trainings, {sum(kept.core_hours for kept in trainings):,.2f} core-h. No result shows "
        f"{unused / GB:,.3g} GB of them" + ("" if bound is None else f"; the limit is store.gigabytes = {bound:,g}")
    )


@store.command()
@click.argument("keys", nargs=-1, metavar="[KEY ...]")
@click.option("--unused", is_flag=True, help="All that no result shows and no row requests, and parked trainings.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_project
def free(project, keys, unused, yes):
    """Remove trainings from the store. Results that show them stay, but training them again costs core-hours again.

    KEY is the beginning of a key, at least 4 characters, or the name of an unfinished training, as shown by `parascale store list`.

    \b
    Example: parascale store free 3f9ac0d1
    Example: parascale store free --unused --yes
    """
    if not (keys or unused):
        raise click.UsageError("name what to free: a key, or --unused")
    found, begun = Store(project.paths.trainings), unfinished(project.paths.under_way)
    chosen = [_named(key, [*found.all(), *found.leftovers(), *begun]) for key in keys]
    if unused:
        chosen += [*_surplus(found, project, 0), *(each for each in begun if each.parked)]
    chosen = list(dict.fromkeys(chosen))
    if not chosen:
        print("nothing to free")
        return
    print(*aligned([("key", "training", "finished", "core-h", "GB"), *map(_words, chosen)]), sep="\n")
    hours = sum(each.core_hours or 0.0 for each in chosen)
    if not yes:
        click.confirm(f"Free these {len(chosen)}, which took {hours:,.2f} core-h?", abort=True)
    for each in chosen:
        each.remove()
    print(f"freed {sum(each.bytes for each in chosen) / GB:,.3g} GB")


def trim(project):
    """Free the least recently used trainings until those that neither results show nor the run table requests are within `store.gigabytes`."""
    found, bound = Store(project.paths.trainings), project.config.store.gigabytes
    with suppress(OSError):  # another job may be freeing the same
        if bound is not None and sum(each.bytes for each in (*found.all(), *found.leftovers())) > bound * GB:
            for each in _surplus(found, project, bound):
                print(f"store: frees {each.place}, which no result shows", flush=True)
                each.remove()


def _surplus(found, project, gigabytes):
    """Trainings to free, least recently used first, so that those that no result shows take at most `gigabytes` GB.

    Keeps trainings that the run table requests: a queued job may be about to show them.
    """
    needed = shown_places(project.paths.results).keys() | _wanted(project, found)
    unused = [*found.leftovers(), *(kept for kept in found.all() if kept.key not in needed)]
    excess = sum(each.bytes for each in unused) - gigabytes * GB
    surplus = []
    for each in sorted(unused, key=lambda each: each.used):
        if excess > 0:
            surplus.append(each)
            excess -= each.bytes
    return surplus


def _wanted(project, found):
    """Keys of the trainings that the run table requests, if their data exists; for scripts in an own environment, with any versions."""
    planner, paths, keys = Planner(project), project.paths, set()
    asked = {(each, "parity") for name in project.trained for each in project.compared(name)}
    asked |= {(name, "run") for name in project.runs}
    versions = [[RunFolder(kept.folder).read_record().get("versions")] for kept in found.all()]
    for run in [planner.run(*each) for each in asked]:
        with suppress(FileNotFoundError):
            own = run.workload.in_own_environment
            answers = versions if own else [data_known(paths.data_of(run), paths.start_of(run))]
            keys.update(key_of_run(run, project.site, known) for known in answers)
    return keys


def _named(word, known):
    """The training that a command-line argument names. Raises ConfigError unless it is exactly one."""
    keys = [each for each in known if len(word) >= FEWEST and each.key.startswith(word)]
    chosen = keys or [each for each in known if word in (each.place, each.folder.name)]
    if len(chosen) != 1:
        raise ConfigError(f"`{word}` names {len(chosen)} trainings, not one; `parascale store list` shows them")
    return chosen[0]


def _words(each):
    """Table cells of a finished or unfinished training."""
    hours = "?" if each.core_hours is None else f"{each.core_hours:,.2f}"
    return [each.key[:SHORT], each.place, each.finished, hours, f"{each.bytes / GB:,.3g}"]
