"""A study's outcome in words: the headline, each comparison, and how they were made.

“Beats” and “loses to” are said only where the interval excludes 0 (see compare.py); everything else
is no clear difference, whichever way the mean points.
"""

from collections import Counter
from collections.abc import Mapping

from plfl.report.grid import Contender, Duel, StoredStudy
from plfl.report.words import counted, listed

_VERBS = {
    "beats": "beats",
    "loses to": "loses to",
    "unclear": "shows no clear difference from",
    "undefined": "cannot be compared with",
}
_REMARKS = {"loses to": "loses", "unclear": "no clear difference", "undefined": "undefined"}


def say_verdict(study: StoredStudy) -> str:
    """The answer in one sentence."""
    focus = {source.focus.words for source in study.sources if source.focus}
    if not focus:
        return "Nothing can be compared: validation MASE is undefined in every run"
    if not study.has_levels or len(focus) > 1:  # no PL-FL: the focus is each source's best
        return "; ".join(_say_winner(study, k) for k, one in enumerate(study.sources) if one.focus)
    said: dict[tuple[str, str], list[str]] = {}
    for rival in dict.fromkeys(duel.rival.words for duel in study.duels):
        said.setdefault(_say_rival(study, rival), []).append(rival)
    does = [f"{verb} {listed(rivals)}{where}" for (verb, where), rivals in said.items()]
    return f"{focus.pop()} {listed(does) or 'has no rival in this study'}"


def _say_winner(study: StoredStudy, index: int) -> str:
    """Which point has the lowest validation MASE on a source, and whether it leads clearly in the
    test.
    """
    source = study.sources[index]
    assert source.focus is not None
    outcomes = {duel.found.outcome for duel in study.duels if duel.source is source}
    lead = ", without a clear lead" if outcomes - {"beats"} else ""
    lead = ", but not on the test part" if "loses to" in outcomes else lead
    where = f" on {source.label}" if len(study.sources) > 1 else ""
    return f"{source.focus.words} wins{where}{lead}"


def _say_rival(study: StoredStudy, rival: str) -> tuple[str, str]:
    """What we do to one rival, and where: beats, on CA and NY (no clear difference on IL)."""
    labels: dict[str, list[str]] = {}
    for duel in study.duels:
        if duel.rival.words == rival:
            labels.setdefault(duel.found.outcome, []).append(duel.source.label)
    where = {outcome: f" on {listed(names)}" for outcome, names in labels.items()}
    if [len(names) for names in labels.values()] == [len(study.sources)]:
        everywhere = f" on all {len(study.sources)} sources" if len(study.sources) > 1 else ""
        where = dict.fromkeys(labels, everywhere)
    return _say_outcomes(where)


def _say_outcomes(where: Mapping[str, str]) -> tuple[str, str]:
    """The first outcome as a verb, and where it and the others are so."""
    first, *others = (outcome for outcome in _VERBS if where.get(outcome) is not None)
    remarks = "; ".join(f"{_REMARKS[outcome]}{where[outcome]}" for outcome in others)
    return _VERBS[first], where[first] + (f" ({remarks})" if remarks else "")


def say_folds(study: StoredStudy) -> str:
    """How often who wins in other parts of the time."""
    tests = [source for fold in study.folds for source in fold.sources]
    folds = counted(len(study.folds), "fold")
    what = f"{counted(len(tests), 'test')} ({folds}, {counted(len(study.sources), 'source')})"
    names = {source.focus.words for source in tests if source.focus}
    if not study.has_levels or len(names) != 1:
        same = sum(_is_same(study.sources[source.index].focus, source.focus) for source in tests)
        return (
            f"In {same:,} of {what}, what is chosen on validation data is what the single split "
            "chooses."
        )
    found: dict[str, Counter[str]] = {}
    for fold in study.folds:
        for duel in fold.duels:
            found.setdefault(duel.rival.words, Counter())[duel.found.outcome] += 1
    said = []
    for rival, outcomes in found.items():
        verb, where = _say_outcomes({name: f" in {num:,}" for name, num in outcomes.items()})
        said.append(f"{verb} {rival}{where}")
    return f"Of {what}, {names.pop()} {'; it '.join(said) or 'has no rival'}."


def _is_same(one: Contender | None, other: Contender | None) -> bool:
    return one is not None and other is not None and one.point.values == other.point.values


def say_difference(duel: Duel) -> tuple[str, str]:
    """What we do to a rival and by how much, and its interval: Beats plain FL by 0.041 (4.8 %),
    95 % interval 0.020 to 0.063.
    """
    found = duel.found
    rival = duel.rival.words
    if found.mean is None:
        return f"Cannot be compared with {rival}: no client has both errors", ""
    share = "" if found.share is None else f" ({100 * abs(found.share):.1f}\N{NO-BREAK SPACE}%)"
    by = f"{abs(found.mean):.3f}{share}"
    interval = "no interval: one client, one seed"
    if found.interval:  # in the direction of the words: what we lose by is above 0
        low, high = found.interval if found.mean >= 0 else (-found.interval[1], -found.interval[0])
        interval = f"95\N{NO-BREAK SPACE}% interval {say_interval((low, high))}"
    if found.outcome == "unclear":
        side = "lower" if found.mean > 0 else "higher"
        return f"No clear difference from {rival}: {by} {side}", interval
    return f"{found.outcome.capitalize()} {rival} by {by}", interval


def say_interval(interval: tuple[float, float]) -> str:
    """0.020 to 0.063"""
    return f"{interval[0]:.3f} to {interval[1]:.3f}".replace("-", "−")


def find_missing(study: StoredStudy) -> list[str]:
    """Levels that nothing stands for on a source, as validation MASE is undefined."""
    return [
        f"{words} on {source.label}"
        for source in study.sources
        for short, words in study.levels.items()
        if short not in {contender.short for contender in source.contenders}
    ]
