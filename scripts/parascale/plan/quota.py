"""The remaining quota of an account, from the configuration or from the site's command."""

import json
import math
import shlex
import subprocess
from dataclasses import dataclass
from typing import Any

from parascale.errors import RequirementError
from parascale.settings.project import Project

GLANCE_SECONDS = 10  # short timeout, because a plan also works without the answer


@dataclass(frozen=True)
class Quota:
    """The remaining quota of an account. core_hours: None if unknown. words: the quota, or why it is unknown, for messages."""

    core_hours: float | None
    words: str

    def allows(self, core_hours: float) -> bool:
        """True if `core_hours` are within the quota, or it is unknown."""
        return self.core_hours is None or core_hours <= self.core_hours


def quota_of(project: Project) -> Quota | None:
    """The Quota of a project: from the configuration, else from the site's command; None without either."""
    given, asked, account = project.config.budget.quota, project.site.quota, project.config.account
    if given is not None:
        return Quota(given, f"the quota of {given:,g} core-h")
    if not asked.command:
        return None
    if account is None and "{account}" in asked.command:
        return Quota(None, "unknown without an account (--config account=<project>)")
    try:
        left = _left(asked, account)
    except RequirementError as error:
        return Quota(None, f"unknown: {error}")
    return Quota(left, f"the {left:,.0f} core-h that {account or 'the account'} has left")


def _left(asked: Any, account: str | None) -> float:
    """Remaining core-hours, at least 0, from the JSON that a site's command prints: the sum over records of granted minus used.

    Raises RequirementError, with the reason in one line, if the command does not give them.
    """
    command, record, left = asked.command.replace("{account}", account or ""), {}, 0.0
    try:
        words = shlex.split(command) or [command]
        run = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=GLANCE_SECONDS)
        said = run.stderr.strip().splitlines() or [f"exit code {run.returncode}"]
        failed = said[-1] if run.returncode else ""
    except FileNotFoundError:
        raise RequirementError(f"`{command}` is not installed here") from None
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        failed = str(error)
    if failed:
        raise RequirementError(f"`{command}` failed: {failed}; see `quota.command` of the site file")
    try:
        answer = json.loads(run.stdout)
        for record in answer if isinstance(answer, list) and answer else [answer]:
            granted, used = (float(str(record[name]).replace(",", "")) for name in (asked.granted, asked.used))
            left += granted - used
    except KeyError as error:
        names = ", ".join(record) or "nothing"
        raise RequirementError(
            f"no {error} in the answer of `{command}`; it names {names}: set `quota` of the site file"
        ) from None
    except (TypeError, ValueError):
        left = math.nan
    if not math.isfinite(left):
        raise RequirementError(f"`{command}` did not answer with JSON that has core-hours")
    return max(0.0, left)
