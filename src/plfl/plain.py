"""Text that came from elsewhere, made harmless: no control character of an id, a name or a reason reaches a terminal.

A terminal obeys some characters (it can be cleared, renamed, or made to type), and others turn a line around.
"""

import logging
from types import TracebackType


def plain(text: str) -> str:
    """The text in one line, with everything that is not printable written out as Python would.

    >>> plain("house 7")
    'house 7'
    >>> len("a" + chr(27)), len(plain("a" + chr(27)))
    (2, 5)
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def plain_lines(text: str) -> str:
    """The same for each of its lines."""
    return "\n".join(plain(line) for line in text.split("\n"))


class PlainFormatter(logging.Formatter):
    """Log records whose messages may hold anything; a message is one line."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        record.message = plain(record.message)
        return super().formatMessage(record)

    def formatException(
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        """The lines of its traceback."""
        return plain_lines(super().formatException(ei))
