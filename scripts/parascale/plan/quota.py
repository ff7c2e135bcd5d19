"""What an account may still spend: as the configuration gives it, or as the site's own command says."""

import json
import math
import shlex
import subprocess
from dataclasses import dataclass

from parascale.errors import RequirementError

GLANCE_SECONDS = 10  # a plan is only better for it


@dataclass(frozen=True)
class Quota:
    """core_hours: None where they are unknown. words: what they are, or why they are unknown."""

    core_hours: float | None
    words: str

    def allows(self, core_hours):
        """Whether so many core-hours are within it; True if it is unknown."""
        return self.core_hours is None or core_hours <= self.core_hours

    def share(self, expected, worst):
        """What part of it so many core-hours are, expected and at worst, as a sentence."""
        if not self.core_hours:  # unknown, or used up
            return f"Quota: {self.words}"
        parts = f"{expected / self.core_hours:.2%} expected, {worst / self.core_hours:.2%} at worst"
        return f"Share of {self.words}: {parts}"


def quota_of(project):
    """The Quota of a project: what the configuration gives, else what the site's command answers; None where neither is there."""
    given, asked, account = project.config.budget.quota, project.site.quota, project.config.account
    if given is not None:
        return Quota(given, f"the quota of {given:,g} core-h")
    if not asked.command:
        return None
    if account is None and "{account}" in asked.command:
        return Quota(None, "unknown without an account (--config account=<project>)")
    try:
        left = left_of(_answer(asked.command, account), asked)
    except RequirementError as error:
        return Quota(None, f"unknown: {error}")
    return Quota(left, f"the {left:,.0f} core-h that {account or 'the account'} has left")


def left_of(answer, asked):
    """Core-hours that a site's answer says are left, at least 0: records with what was granted and what was used add up.

    answer: the text; asked: the site's `quota`. Raises RequirementError where the answer does not say.
    """
    try:
        told, left = json.loads(answer), 0.0
        for record in told if isinstance(told, list) and told else [told]:
            left += _number(record[asked.granted]) - _number(record[asked.used])
        if not math.isfinite(left):
            raise ValueError(f"{left} core-hours")
        return max(0.0, left)
    except KeyError as error:
        names = ", ".join(record) or "nothing"
        raise RequirementError(
            f"no {error} in the answer of `{asked.command}`; it names {names}: set `quota` of the site file"
        ) from None
    except (TypeError, ValueError):
        raise RequirementError(f"`{asked.command}` did not answer with JSON that has core-hours") from None


def _number(value):
    return float(str(value).replace(",", ""))


def _answer(command, account):
    """What a site's command prints; RequirementError where it is not there, fails or takes too long."""
    try:
        words = [word.replace("{account}", account or "") for word in shlex.split(command)]
        if not words:
            raise ValueError("it is empty")
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=GLANCE_SECONDS)
    except ValueError as error:
        raise RequirementError(f"`{command}` is not a command: {error}; set `quota.command` of the site file") from None
    except FileNotFoundError:
        raise RequirementError(f"`{words[0]}` is not installed here") from None
    except OSError as error:
        raise RequirementError(f"`{words[0]}` does not start: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise RequirementError(f"`{shlex.join(words)}` did not answer within {GLANCE_SECONDS} s") from None
    if done.returncode:
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise RequirementError(f"`{shlex.join(words)}` failed: {reason}")
    return done.stdout
