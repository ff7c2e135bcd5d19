"""The quota that an account has left, from the configuration or from the site's own command."""

import json
import math
import shlex
import subprocess
from dataclasses import dataclass
from typing import Any

from parascale.errors import RequirementError
from parascale.settings.project import Project

GLANCE_SECONDS = 10  # a plan is only better for the answer


@dataclass(frozen=True)
class Quota:
    """The quota that an account has left. core_hours: None where they are unknown. words: what they are, or why they are unknown."""

    core_hours: float | None
    words: str

    def allows(self, core_hours: float) -> bool:
        """Whether so many core-hours are within it; True if it is unknown."""
        return self.core_hours is None or core_hours <= self.core_hours


def quota_of(project: Project) -> Quota | None:
    """The Quota of a project: what the configuration gives, else what the site's command answers; None where neither is there."""
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
    """Core-hours that are left, at least 0, by the JSON that a site's command prints: records with what was granted and used add up.

    Raises RequirementError, with the reason in one line, where the command does not say.
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
