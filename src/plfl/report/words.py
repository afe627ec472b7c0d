"""Numbers and lists as people write them; what is undefined is a dash."""

from collections.abc import Sequence

DASH = "–"


def ratio(value: float | None, missing: str = DASH) -> str:
    """Three decimals, and more where three would hide on which side of 1 the value is."""
    if value is None:
        return missing
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.2e}"
    text = f"{value:,.3f}"
    return f"{value:.6f}" if text == "1.000" and value != 1 else text


def number(value: float | None, missing: str = DASH) -> str:
    """Four digits."""
    if value is None:
        return missing
    if abs(value) < 1000:
        return f"{value:#.4g}"
    return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3e}"


def count(value: float | None, missing: str = DASH) -> str:
    """A mean of counts, with a decimal only where it needs one."""
    return missing if value is None else f"{value:,.1f}".removesuffix(".0")


def counted(num: int, word: str) -> str:
    """A number of things.

    >>> counted(1, "fold")
    '1 fold'
    """
    return f"{num:,} {word}" if num == 1 else f"{num:,} {word}s"


def amount(num_bytes: float) -> str:
    """Bytes in the unit that suits them; a kB is 1,000 bytes.

    >>> amount(482_208)
    '482 kB'
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes:,.0f} bytes"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def listed(words: Sequence[str]) -> str:
    """Words with commas and an and.

    >>> listed(["CA", "IL", "NY"])
    'CA, IL and NY'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def sentence(words: str) -> str:
    """Words that begin in small letters, as a sentence.

    >>> sentence("waiting for clients")
    'Waiting for clients.'
    """
    return f"{words[0].upper()}{words[1:]}."
