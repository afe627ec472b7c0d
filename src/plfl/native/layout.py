"""What Python and the kernels must agree on, said once: `header` writes it down for C.

These are facts of the forecaster that looks at past days (`plfl.forecast.past_days`): the order in
which the kernel of one band takes its arguments, the facts by which a past day is compared with
today, and constants of the formulas.
"""

from enum import IntEnum

NUM_LAYERS = 3  # the first layer of a band's body, and two residual ones
POOLED = 4  # numbers that each head says of past days: mean and spread of two changes
UNKNOWN = -1e9  # score of a day that was not read
LEAST_VARIANCE = 1e-6  # added to the variance of what past days did next, before its root is taken
FRIDAY = 4.5 / 7  # weekdays, as shares of a week from Monday on, above which a day is off
SAME_DAY = 1e-3  # shares of a week that differ by less are the same weekday


class Fact(IntEnum):
    """What is compared of a past day, after the path of its load and before the weather."""

    LEVEL = 0
    WEEKDAY = 1
    OFF_THEN = 2
    OFF_NOW = 3
    RECENCY = 4
    YESTERDAY = 5
    LEAD = 6


# Params of the layer that weighs past days.
DAYS = ("days.0.weight", "days.0.bias", "days.1.weight", "days.distance")
# Params of a band, in the order of the layers.
BAND = (
    *DAYS,
    *(f"body.{k}.{what}" for k in range(NUM_LAYERS) for what in ("weight", "bias")),
    *("head.weight", "head.bias", "skip.weight"),
)
# What the kernel of a band takes after its params.
BAND_DATA = (
    *("features", "likeness", "changes", "is_known"),
    *("targets", "shares", "levels", "worths"),
)


def header() -> str:
    """The same for C: an enum for each list, and the constants."""
    names = [f"BAND_{name.replace('.', '_').upper()}" for name in (*BAND, *BAND_DATA)]
    lists = [names, [f"FACT_{fact.name}" for fact in Fact] + ["NUM_FACTS"]]
    numbers = {
        "NUM_LAYERS": NUM_LAYERS,
        "UNKNOWN": f"{UNKNOWN}f",
        "LEAST_VARIANCE": f"{LEAST_VARIANCE}f",
        "FRIDAY": f"{FRIDAY!r}f",
        "SAME_DAY": f"{SAME_DAY}f",
        "LIKENESSES": f'"p+w+{len(Fact) - 3}"',
    }
    lines = [f"enum {{ {', '.join(each)} }};" for each in lists]
    return "\n".join([*lines, *(f"#define {name} {value}" for name, value in numbers.items()), ""])
