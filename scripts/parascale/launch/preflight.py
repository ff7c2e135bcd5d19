"""Questions to the live Slurm before a first job is submitted: account, partition and reservation.

A dry run asks none of them. Whether the jobs keep within the partition's limits is checked by the plan, which knows which of
them still have to run (`parascale.plan.limits`).
"""

from parascale import slurm
from parascale.errors import RequirementError
from parascale.settings.strict import nearest


def preflight(site, account=None, partition=None, reservation=None, data_partition=None):
    """Raise RequirementError where Slurm would refuse jobs, or would keep them waiting for ever."""
    _check_account(site, account)
    if reservation:
        _record("reservation", reservation, ", nor any other; leave --slurm-reservation out, or ask who made it")
    for name in filter(None, (site.partition_or_first(partition), data_partition)):
        if (state := _record("partition", name).get("State", "UP")) != "UP":
            raise RequirementError(f"partition {name} is {state}: it starts no jobs now; choose another or wait")


def _check_account(site, account):
    known = slurm.accounts()
    if not account:
        if site.needs_account:
            yours = f" Yours: {', '.join(known)}" if known else ""
            raise RequirementError(
                f"{site.name} takes no job without an account. Name the project it is charged to: "
                f"--config account=<project>, or `account:` in the configuration.{yours}"
            )
    elif known and account not in known:
        raise RequirementError(f"you have no account `{account}` here{nearest(account, known)}")


def _record(kind, name, without=""):
    """Slurm's record of a partition or reservation. without: what to do where there is none of its kind at all."""
    known = slurm.records(kind)
    if name not in known:
        raise RequirementError(f"there is no {kind} `{name}` here{nearest(name, known) if known else without}")
    return known[name]
