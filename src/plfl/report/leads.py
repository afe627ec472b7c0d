"""What the page of a run says where a model has several leads, intervals, or tuning at home.

Errors by lead, what the intervals cover, how much each client kept of its own tuning, and where an
earlier load is repeated in the model's place. A run that has none of these gets no words about
them.
"""

from collections.abc import Mapping, Sequence
from html import escape
from math import log2
from typing import Any

import numpy as np

from plfl.report.charts import MAX_NAMED_ROWS, Mark, Row, line_chart, share_rows
from plfl.report.compare import Difference, compare
from plfl.report.files import read_template
from plfl.report.tables import Cell, behind, listed, ratio, table

REPEATED = "repeated_leads"
_BANDS = {"short": "up to 1 hour", "long": "beyond 1 hour", "all": "all"}
_SCORED_MINUTES = 60
_MAX_ROWS = 200
_TOP = 2.0
"""What errs more is off the picture of leads."""
_FAR = 0.05
"""A coverage that misses its target by more is pointed out."""
_MAX_NAMED = 5
_SIGNS = ("○", "●", "◆", "◇")
_NAMES = {
    "fl": "plain FL",
    "plfl": "PL-FL",
    "local": "local training",
    "central": "one model on pooled data",
}
_NAMES |= {
    "fl_finetuned": "fine-tuned FL",
    "lightgbm": "LightGBM",
    "last_week": "repeating last week",
}
_NAMES |= {"yesterday": "repeating yesterday"}
_TRAINED = ("lightgbm", "local", "fl", "fl_finetuned")
"""Those that `--baselines all` adds and that everyone asks about."""


def read_minutes(lead: str) -> float:
    """A lead's name as minutes.

    >>> read_minutes("15min"), read_minutes("24h"), read_minutes("90s")
    (15, 1440, 1.5)
    """
    if lead.endswith("s"):
        return int(lead.removesuffix("s")) / 60
    return (
        int(lead.removesuffix("min")) if lead.endswith("min") else 60 * int(lead.removesuffix("h"))
    )


def find_scored(leads: Sequence[str], interval: float) -> str:
    """The lead by which a model of several is scored: an hour, or what is nearest to it.

    >>> find_scored(["15min", "1h", "24h"], 15), find_scored(["2h", "24h"], 120)
    ('1h', '2h')
    """
    up_to = [lead for lead in leads if read_minutes(lead) <= max(_SCORED_MINUTES, interval)]
    return up_to[-1] if up_to else leads[0]


def name_rival(name: str) -> str:
    """A baseline in words.

    >>> name_rival("fl"), name_rival("ridge")
    ('plain FL', 'ridge')
    """
    return _NAMES.get(name, name)


def judge(clients: Sequence[Mapping[str, Any]], name: str) -> Difference:
    """A run against one of its baselines, by client."""
    pairs = [(client["mase"], client["baseline_mase"].get(name)) for client in clients]
    ours, theirs = np.array(pairs, np.float64).reshape(len(pairs), 2).T[:, None, :]
    return compare(ours, theirs)


def say_rivals(clients: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Whether a run is better than what it was compared with, in a sentence or two.

    Better and worse are said where the interval of the mean difference over clients excludes 0.
    """
    said: dict[str, list[str]] = {"beats": [], "loses to": [], "unclear": []}
    for name in names:
        found = judge(clients, name)
        if name != "persistence" and found.mean is not None:
            pairs = [(client["mase"], client["baseline_mase"].get(name)) for client in clients]
            better = sum(
                ours < theirs for ours, theirs in pairs if ours is not None and theirs is not None
            )
            said[found.outcome].append(
                f"{name_rival(name)} ({better} of {found.num_clients} clients)"
            )
    words = {
        "beats": "It is better than",
        "loses to": "It is worse than",
        "unclear": "There is no clear difference from",
    }
    sentences = [
        f"{words[outcome]} {listed(rivals)}." for outcome, rivals in said.items() if rivals
    ]
    if not set(_TRAINED) & set(names):
        missing = listed([_NAMES[name] for name in _TRAINED])
        sentences.append(f"It was not compared with {missing}; --baselines all does that.")
    return " ".join(sentences)


def draw_leads(
    result: Mapping[str, Any],
    rows: Sequence[tuple[int, Mapping[str, Any]]],
    repeats: Mapping[str, Sequence[float | None]],
) -> str:
    """The sections on leads, intervals and tuning, as far as a run has them.

    Rows are clients with their places in the result; repeats are the errors of repetitions by lead.
    """
    clients = [client for _, client in rows]
    parts = {
        "leads": _by_lead(
            result.get("mase_by_lead") or {}, rows, result["interval_minutes"], repeats
        ),
        "coverage": _coverage(result.get("coverage") or {}, clients),
        "tuning": _tuning([client["personal"] for client in clients if client.get("personal")]),
        "repeated": _repeated([client for client in clients if client.get("personal")]),
    }
    return "".join(
        read_template(f"run_{name}.html").substitute(part) for name, part in parts.items() if part
    )


def _by_lead(
    means: Mapping[str, float | None],
    rows: Sequence[tuple[int, Mapping[str, Any]]],
    interval: float,
    repeats: Mapping[str, Sequence[float | None]],
) -> dict[str, str]:
    """The curve over the leads, with the middle half of the clients, and the table by client."""
    if len(means) < 2:
        return {}
    known = {
        lead: [c["mase_by_lead"][lead] for _, c in rows if c.get("mase_by_lead")] for lead in means
    }
    cells: list[list[str | Cell]] = [
        ["mean", *(Cell(ratio(mean), f"mase_by_lead.{lead}") for lead, mean in means.items())]
    ]
    cells += [[name, *(ratio(score) for score in scores)] for name, scores in repeats.items()]
    cells += [
        [
            c["id"],
            *(
                Cell(ratio(c["mase_by_lead"][lead]), f"clients[{k}].mase_by_lead.{lead}")
                for lead in means
            ),
        ]
        for k, c in rows
        if c.get("mase_by_lead")
    ]
    return {
        "words": _say_leads(means, known, find_scored(list(means), interval)),
        "chart": _draw_leads(means, known, repeats),
        "table": behind(
            table(["client", *means], cells, most=_MAX_ROWS, label="of MASE by client and lead")
        ),
    }


def _draw_leads(
    means: Mapping[str, float | None],
    known: Mapping[str, Sequence[float | None]],
    repeats: Mapping[str, Sequence[float | None]],
) -> str:
    """The curve of the means over the logarithm of the lead, with the repetitions as far as they
    are on the scale.
    """
    places = {lead: log2(read_minutes(lead)) for lead in means}
    curves = {
        f"curve {kind}": [
            (at, y if y is not None and y <= _TOP else None)
            for at, y in zip(places.values(), ys, strict=True)
        ]
        for kind, ys in zip(("l0", "l2"), repeats.values(), strict=False)
    }
    curves["curve l1"] = [(places[lead], mean) for lead, mean in means.items()]
    band = [(places[lead], _middle_half(scores)) for lead, scores in known.items()]
    ends = ", ".join(
        f"{ratio(means[lead])} at {lead}" for lead in (next(iter(means)), list(means)[-1])
    )
    ticks = {at: lead for lead, at in places.items()}
    label = f"Test MASE by lead, mean over clients: {ends}."
    return line_chart(curves, ticks, label=label, reference=1, has_zero=True, band=band)


def _middle_half(scores: Sequence[float | None]) -> tuple[float, float] | None:
    known = [score for score in scores if score is not None]
    return (float(np.quantile(known, 0.25)), float(np.quantile(known, 0.75))) if known else None


def _say_leads(
    means: Mapping[str, float | None], known: Mapping[str, Sequence[float | None]], scored: str
) -> str:
    """At which leads it loses on average, and where most clients lose."""
    losing = [lead for lead, mean in means.items() if mean is not None and mean >= 1]
    parts = [f"Errors elsewhere on this page are those {scored} ahead."]
    parts.append(
        f"On average it does not beat persistence at {listed(losing)}."
        if losing
        else "On average it beats persistence at every lead."
    )
    losers = {
        lead: sum(score is not None and score > 1 for score in scores)
        for lead, scores in known.items()
    }
    most = max(losers, key=lambda lead: losers[lead])
    if losers[most]:
        parts.append(
            f"It loses most often at {most}: for {losers[most]:,} of {len(known[most]):,} clients."
        )
    else:
        parts.append("No client loses at any of them.")
    return " ".join(parts)


def _coverage(
    means: Mapping[str, float | None], clients: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Which share of the loads lies in the intervals, by client, the farthest from its target
    first.
    """
    levels = [level for level, mean in means.items() if mean is not None]
    covered = [
        c
        for c in clients
        if c.get("coverage") and None not in [c["coverage"][level] for level in levels]
    ]
    if not levels or not covered:
        return {}

    def miss(client: Mapping[str, Any]) -> float:
        """How far the intervals of a client are off, at worst; below 0 if they are too narrow
        there.
        """
        misses = [client["coverage"][level] - int(level) / 100 for level in levels]
        return float(max(misses, key=abs))

    ordered = sorted(covered, key=lambda client: (-abs(miss(client)), client["id"]))
    shown = [_coverage_row(client, levels, miss(client)) for client in ordered[:MAX_NAMED_ROWS]]
    label = (
        f"Share of test loads within the intervals, by client; {len(shown)} clients, the farthest "
        "off first."
    )
    targets = [int(level) / 100 for level in levels]
    hint = (
        f"These are the {len(shown)} farthest off of {len(covered):,}."
        if len(covered) > len(shown)
        else ""
    )
    keys = [
        f"{sign} of the {level} % interval" for level, sign in zip(levels, _SIGNS, strict=False)
    ]
    rows = [[c["id"], *(f"{100 * c['coverage'][level]:.1f}" for level in levels)] for c in ordered]
    return {
        "words": escape(
            _say_coverage({level: means[level] or 0 for level in levels}, ordered, miss)
        ),
        "key": ", ".join(keys),
        "chart": share_rows(shown, targets, label=label),
        "hint": hint,
        "table": behind(
            table(
                ["client", *(f"% in the {level} % interval" for level in levels)],
                rows,
                most=_MAX_ROWS,
            )
        ),
    }


def _coverage_row(client: Mapping[str, Any], levels: Sequence[str], miss: float) -> Row:
    marks = [
        Mark(
            client["coverage"][level],
            "bad" if miss < -_FAR else "good",
            sign,
            f"{100 * client['coverage'][level]:.1f} %",
        )
        for level, sign in zip(levels, _SIGNS, strict=False)
    ]
    remark = "too narrow" if miss < -_FAR else "wide" if miss > _FAR else ""
    return Row(client["id"], marks, remark, "bad" if miss < -_FAR else "")


def _say_coverage(
    means: Mapping[str, float], ordered: Sequence[Mapping[str, Any]], miss: Any
) -> str:
    """The means, and who is off by more than five points."""
    found = [f"the {level} % interval covers {100 * mean:.1f} %" for level, mean in means.items()]
    words = f"On average {listed(found)} of the test loads, over all leads."
    narrow = [client["id"] for client in ordered if miss(client) < -_FAR]
    wide = [client["id"] for client in ordered if miss(client) > _FAR]
    for word, off in (("too narrow", narrow), ("wider than needed", wide)):
        if off:
            words += f" They are {word} by more than {100 * _FAR:.0f} points for {_name_some(off)}."
    return (
        words
        if narrow or wide
        else f"{words} No client is off by more than {100 * _FAR:.0f} points."
    )


def _name_some(names: Sequence[str]) -> str:
    """The first of them, and how many more."""
    num_more = len(names) - _MAX_NAMED
    return listed([*names[:_MAX_NAMED], *([f"{num_more:,} more"] if num_more > 0 else [])])


def _tuning(choices: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """How many clients kept the shared model, and how much the others kept of their own, by band of
    leads.
    """
    bands = [band for band in (choices[0] if choices else ()) if band != REPEATED]
    if not bands:
        return {}
    rows: list[list[str | Cell]] = []
    for band in bands:
        own = [choice[band] for choice in choices]
        shares = [choice["share"] if choice["rounds"] else 0.0 for choice in own]
        counts = [sum(share == 0 for share in shares), sum(0 < share < 1 for share in shares)]
        before, after = (
            float(np.mean([choice[name] for choice in own])) for name in ("shared_error", "error")
        )
        sources = [f"clients[*].personal.{band}.{name}" for name in ("shared_error", "error")]
        numbers = [f"{number:,}" for number in (*counts, len(own) - sum(counts))]
        rows.append(
            [
                _BANDS.get(band, band),
                *numbers,
                Cell(ratio(before), sources[0]),
                Cell(ratio(after), sources[1]),
            ]
        )
    head = ["leads", "shared model", "half way", "all its own", "error, shared", "error, kept"]
    return {"table": table(head, rows), "num_clients": f"{len(choices):,}"}


def _repeated(clients: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """At which leads an earlier load is published in the model's place, and for whom."""
    if not any(REPEATED in client["personal"] for client in clients):
        return {}
    owners: dict[str, list[str]] = {}
    for client in clients:
        for lead in client["personal"].get(REPEATED, ()):
            owners.setdefault(lead, []).append(client["id"])
    if not owners:
        return {"words": "Here the model is published for every client at every lead.", "table": ""}
    rows = []
    for lead in sorted(owners, key=read_minutes):
        own = owners[lead]
        rows.append([lead, f"{len(own):,} of {len(clients):,}", _name_some(own)])
    everyone = len({name for own in owners.values() for name in own})
    words = f"Here that is so for {everyone:,} of {len(clients):,} clients, at one lead or more."
    return {"words": words, "table": table(["lead", "clients", "which"], rows, kind="words")}
