"""A study's outcome in words: the headline, each comparison, and how they were made.

“Beats” and “loses to” are said only where the interval excludes 0 (see compare.py); everything else
is no clear difference, whichever way the mean points.
"""

from plfl.report.compare import NUM_DRAWS, Difference
from plfl.report.grid import Contender, Source, StoredStudy, name_level
from plfl.report.tables import listed

Duels = list[tuple[Source, Contender, Difference]]
"""Every source's focus against each of its rivals."""


def say_verdict(study: StoredStudy, duels: Duels) -> str:
    """The answer in one sentence."""
    if not any(source.focus for source in study.sources):
        return "Nothing can be compared: validation MASE is undefined in every run"
    if not study.has_levels:
        return _say_winners(study, duels)
    focus = {source.focus.words for source in study.sources if source.focus}
    if len(focus) > 1:  # no PL-FL in the grid: the focus is each source's best
        return _say_winners(study, duels)
    rivals = list(dict.fromkeys(rival.words for _, rival, _ in duels))
    if not rivals:
        return f"{focus.pop()} has no rival in this study"
    said: dict[tuple[str, str], list[str]] = {}
    for rival in rivals:
        said.setdefault(_say_rival(study, rival, duels), []).append(rival)
    return (
        f"{focus.pop()} "
        f"{listed([f'{does} {listed(names)}{where}' for (does, where), names in said.items()])}"
    )


def _say_winners(study: StoredStudy, duels: Duels) -> str:
    """Which point has the lowest validation MASE on which source, and whether it leads clearly in
    the test.
    """
    said = []
    for source in study.sources:
        if source.focus:
            outcomes = [found.outcome for where, _, found in duels if where is source]
            lead = (
                "" if all(outcome == "beats" for outcome in outcomes) else ", without a clear lead"
            )
            lead = ", but not on the test part" if "loses to" in outcomes else lead
            where = f" on {source.label}" if len(study.sources) > 1 else ""
            said.append(f"{source.focus.words} wins{where}{lead}")
    return "; ".join(said)


def _say_rival(study: StoredStudy, rival: str, duels: Duels) -> tuple[str, str]:
    """What we do to one rival, and where: beats, on CA and NY (no clear difference on IL)."""
    by_outcome: dict[str, list[str]] = {}
    for source, other, difference in duels:
        if other.words == rival:
            by_outcome.setdefault(difference.outcome, []).append(source.label)
    first, *others = (
        outcome
        for outcome in ("beats", "loses to", "unclear", "undefined")
        if outcome in by_outcome
    )
    num_sources = len(study.sources)
    where = f" on {listed(by_outcome[first])}" if len(by_outcome[first]) < num_sources else ""
    where = f" on all {num_sources} sources" if not where and num_sources > 1 else where
    words = {"unclear": "shows no clear difference from", "undefined": "cannot be compared with"}
    rest = {"loses to": "loses", "unclear": "no clear difference", "undefined": "undefined"}
    remarks = "; ".join(f"{rest[outcome]} on {listed(by_outcome[outcome])}" for outcome in others)
    return words.get(first, first), where + (f" ({remarks})" if remarks else "")


def say_difference(rival: Contender, found: Difference) -> str:
    """Beats plain FL by 0.041 (4.8 %); 95 % interval 0.020 to 0.063"""
    if found.mean is None:
        return f"Cannot be compared with {rival.words}: no client has both errors"
    share = "" if found.share is None else f" ({100 * abs(found.share):.1f}\N{NO-BREAK SPACE}%)"
    interval = "no interval: one client, one seed"
    if found.interval:  # in the direction of the words: what we lose by is above 0
        low, high = found.interval if found.mean >= 0 else (-found.interval[1], -found.interval[0])
        interval = f"95\N{NO-BREAK SPACE}% interval {say_interval((low, high))}"
    if found.outcome == "unclear":
        side = "lower" if found.mean > 0 else "higher"
        return (
            f"No clear difference from {rival.words}: {abs(found.mean):.3f}{share} {side}; "
            f"{interval}"
        )
    return f"{found.outcome.capitalize()} {rival.words} by {abs(found.mean):.3f}{share}; {interval}"


def say_interval(interval: tuple[float, float]) -> str:
    """0.020 to 0.063"""
    return f"{interval[0]:.3f} to {interval[1]:.3f}".replace("-", "−")


def say_method(study: StoredStudy, duels: Duels) -> str:
    """How the comparisons were made."""
    what = (
        (
            "For each source and personalization level, the optimizer pair with the lowest "
            "validation MASE (mean over seeds) is chosen."
        )
        if study.has_levels
        else (
            "For each source, the points of the grid are ranked by validation MASE (mean over "
            "seeds)."
        )
    )
    drawn = next((found.drawn for _, _, found in duels if found.interval), "")
    seeds = (
        ""
        if len(study.seeds) > 1
        else (
            " There is one seed, so the interval is over clients only: it does not show what "
            "another seed would do."
        )
    )
    how = (
        (
            " Their test MASE is compared client by client; the interval is a bootstrap over "
            f"{drawn} ({NUM_DRAWS:,} draws, numpy’s default_rng(0)).{seeds} “Beats” is said only "
            "where the interval excludes 0."
        )
        if drawn
        else (
            " Their test MASE is compared client by client; there are too few clients and seeds "
            "for an interval."
        )
    )
    left_out = sum(found.num_left_out for _, _, found in duels)
    rest = (
        " Clients without a defined MASE on both sides are left out and counted in the table."
        if left_out
        else ""
    )
    return what + (how if duels else "") + rest + _say_missing(study)


def _say_missing(study: StoredStudy) -> str:
    """Levels that no contender stands for."""
    if not study.has_levels:
        return ""
    levels = dict(name_level(value) for value in study.grid["personal"])
    missing = [
        f"{words} on {source.label}"
        for source in study.sources
        for short, words in levels.items()
        if short not in {contender.short for contender in source.contenders}
    ]
    return (
        f" Not compared, because validation MASE is undefined: {listed(missing)}."
        if missing
        else ""
    )


def name_rivals(study: StoredStudy) -> str:
    """What P1, P2, P3 or A, B, C stand for."""
    if study.has_levels:
        names = {c.short: c.words for source in study.sources for c in source.contenders}
        return (
            "; ".join(f"{short} is {words}" for short, words in names.items() if short != words)
            + "."
        )
    parts = [
        f"{source.label}: " + "; ".join(f"{c.short} is {c.words}" for c in source.contenders)
        for source in study.sources
    ]
    return ". ".join(parts) + "."
