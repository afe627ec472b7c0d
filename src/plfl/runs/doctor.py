"""The data doctor: what is wrong with data, where, and what to do about it, before anything is
trained.

It reads sources exactly as a run does, so a run sees what the doctor says it will see.
"""

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from plfl.config import Config
from plfl.data.panel import Panel
from plfl.data.readings import Understood
from plfl.data.rules import LEVELS, Fault, Finding, Place
from plfl.data.sources import load_frame, load_sources
from plfl.errors import BadInput
from plfl.forecast.windows import find_refusals
from plfl.runs.understanding import complete_command, list_clients, to_dict


@dataclass(frozen=True)
class Group:
    """All findings of one rule."""

    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        """The first of them."""
        return self.findings[0]

    @property
    def count(self) -> int:
        """How often the rule is broken in all."""
        return sum(finding.count for finding in self.findings)

    @property
    def num_clients(self) -> int:
        """How many clients break it."""
        return len({finding.client for finding in self.findings if finding.client is not None})


@dataclass(frozen=True)
class Diagnosis:
    """What the doctor found."""

    sources: tuple[str, ...]
    panel: Panel | None  # all clients that could be read
    findings: tuple[Finding, ...]
    understood: tuple[Understood, ...] = ()  # how each table was read
    command: str | None = None  # reads the sources right

    @property
    def refused(self) -> tuple[str, ...]:
        """Clients that a run would leave out."""
        return tuple(sorted({str(f.client) for f in self.findings if f.rule.level == "refused"}))

    @property
    def is_usable(self) -> bool:
        """Whether every client could take part in a run."""
        return all(finding.rule.level not in ("error", "refused") for finding in self.findings)

    def groups(self) -> list[Group]:
        """The findings by rule, the gravest first."""
        ordered = sorted(self.findings, key=lambda f: (LEVELS.index(f.rule.level), f.code))
        return [Group(tuple(own)) for _, own in groupby(ordered, key=lambda f: f.code)]

    @property
    def ids(self) -> tuple[str, ...]:
        """Clients that can take part."""
        known = self.panel.ids if self.panel else ()
        return tuple(client for client in known if client not in set(self.refused))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        panel = self.panel
        return {
            "sources": list(self.sources),
            "is_usable": self.is_usable,
            "num_clients": len(self.ids),
            "num_refused": len(self.refused),
            "num_rows": panel.num_times if panel else 0,
            "interval": f"{panel.interval / np.timedelta64(1, 'm'):g}min" if panel else None,
            "start": f"{panel.start}Z" if panel else None,
            "end": f"{panel.start + panel.num_times * panel.interval}Z" if panel else None,
            "covariates": list(panel.covariate_names) if panel else [],
            "statics": list(panel.static_names) if panel else [],
            "findings": [finding.to_dict() for finding in self.findings],
            "clients": list_clients(panel),
            "understood": to_dict(self.understood, panel),
            "command": self.command,
        }


def examine(data: Any, config: Config) -> Diagnosis:
    """Check sources (a text, or several), a frame or a panel; a file that cannot be read is a
    finding too.

    >>> examine("generated:2?days=14", Config()).findings
    ()
    """
    sources = (
        (data,) if isinstance(data, str) else tuple(data) if isinstance(data, list | tuple) else ()
    )
    try:
        loaded = load_sources(sources, config) if sources else load_frame(data, config)
    except Fault as error:
        command = complete_command(sources, config, [error.finding]) if sources else None
        return Diagnosis(sources, None, (error.finding,), command=command)
    try:
        more = find_refusals(loaded.panel, config) if loaded.panel else []
    except BadInput as error:  # durations that do not fit the data's interval
        more = [Finding("PLF114", 1, Place(), error.what)]
    findings = (*loaded.findings, *more)
    command = complete_command(sources, config, findings) if sources else None
    return Diagnosis(sources, loaded.panel, findings, loaded.understood, command)
