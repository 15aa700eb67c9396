"""Numbers as people read them; every text for people writes them here, so that two texts on one number agree."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches

_HUGE = 1e15


def say_share(share: float) -> str:
    """A share of one in whole per cent, halves upwards; 100 % and 0 % only where nothing, or all, is left.

    >>> say_share(0.785), say_share(0.998), say_share(1.0), say_share(0.001)
    ('79%', 'over 99%', '100%', 'under 1%')
    """
    if not math.isfinite(share):
        return "unknown"
    percent = math.floor(round(share * 100, 6) + 0.5)
    if 0 < share < 1 and percent in (0, 100):
        return "under 1%" if percent == 0 else "over 99%"
    return f"{percent}%"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question that ends with a space, if one of *known* is spelled much like *word*; else nothing.

    >>> did_you_mean("ruels", ["rules", "deadline_ms"]), did_you_mean("x", ["rules"])
    ('did you mean rules? ', '')
    """
    near = get_close_matches(word[:60], list(known), n=1)
    return f"did you mean {near[0]}? " if near else ""


def say_count(count: int, noun: str, plural: str = "") -> str:
    """*count* things, with the noun in the right number.

    >>> say_count(1, "trace"), say_count(2_000, "trace"), say_count(0, "summary", "summaries")
    ('1 trace', '2000 traces', '0 summaries')
    """
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def say_steps(first: int, last: int) -> str:
    """The steps from *first* to *last*.

    >>> say_steps(10, 14), say_steps(10, 10)
    ('steps 10–14', 'step 10')
    """
    return f"steps {first}–{last}" if last != first else f"step {first}"


def say_number(value: float) -> str:
    """Three significant digits, and whole from a hundred on; powers of ten only for what no table can hold.

    >>> say_number(999.7), say_number(0.1234), say_number(1234567.0), say_number(0.00001234)
    ('1,000', '0.123', '1,234,567', '0.0000123')
    """
    if not math.isfinite(value):
        return "unknown"
    size = abs(value)
    if size >= _HUGE:
        return f"{value:.3g}"
    if size >= 99.95:
        return f"{value:,.0f}"
    if size < 1e-9:
        return "0"
    places = max(0, 2 - math.floor(math.log10(size)))
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def fitting_time(ms: float) -> tuple[float, str]:
    """The factor from ms to the unit in which a time of so many ms reads best, and the unit.

    >>> fitting_time(0.02), fitting_time(20.0), fitting_time(20_000.0)
    ((1000.0, 'µs'), (1.0, 'ms'), (0.001, 's'))
    """
    size = abs(ms)
    if size >= 1_000:
        return 1e-3, "s"
    return (1e3, "µs") if 0 < size < 1 else (1.0, "ms")


def say_time(ms: float) -> str:
    """A time of so many ms in three digits.

    >>> say_time(194.7321), say_time(0.0402), say_time(12_345.0), say_time(0)
    ('195 ms', '40.2 µs', '12.3 s', '0 ms')
    """
    factor, unit = fitting_time(ms)
    return f"{say_number(ms * factor)} {unit}"
