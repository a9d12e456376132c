"""The proleptic Gregorian calendar over the whole range of all types, for dates in days and timestamps in nanoseconds since 1970."""

from __future__ import annotations

from differential.expressions import Failure, Node
from differential.kinds import DAY_NS, NANOSECONDS

DATE_PARTS = ("year", "quarter", "month", "week", "day", "doy", "dow", "isodow")
TIME_PARTS = ("hour", "minute", "second", "millisecond", "microsecond")
PARTS = (*DATE_PARTS, *TIME_PARTS)
GRANULARITIES = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
SECONDS = {"day": 86_400, "hour": 3600, "minute": 60, "second": 1}
MOST_DAYS = 262_000 * 365
# Days of 400 years, and days from 0000-03-01 to 1970-01-01.
DAYS_OF_ERA, EPOCH = 146_097, 719_468


def civil(days: int) -> tuple[int, int, int]:
    """Returns year, month and day."""
    era, day = divmod(days + EPOCH, DAYS_OF_ERA)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    rest = day - (365 * year + year // 4 - year // 100)
    month = (5 * rest + 2) // 153
    number = month + 3 if month < 10 else month - 9
    return year + era * 400 + (number <= 2), number, rest - (153 * month + 2) // 5 + 1


def day_number(year: int, month: int, day: int) -> int:
    """Returns the days since 1970."""
    year -= month <= 2
    era, rest = divmod(year, 400)
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * DAYS_OF_ERA + rest * 365 + rest // 4 - rest // 100 + of_year - EPOCH


def days_and_rest(family: str, value: int) -> tuple[int, int]:
    """Returns the days since 1970 and the nanoseconds of the day."""
    return (value, 0) if family == "date" else divmod(value, DAY_NS)


def has_usual_years(family: str, values: list) -> bool:
    """Returns false for values beyond the years ±262,000.

    `date_part` and casts to DATE and TIME are errors for them, and TRY_CAST is null. DuckDB has dates there.
    """
    days = (days_and_rest(family, value)[0] for value in values if value is not None)
    return family == "time" or all(abs(each) < MOST_DAYS for each in days)


def part(name: str, family: str, value: int) -> int:
    days, rest = days_and_rest(family, value)
    if name in TIME_PARTS:
        seconds, fraction = divmod(rest, 10**9)
        of_minute = seconds % 60 * 10**9 + fraction
        parts = (seconds // 3600, (seconds // 60) % 60, of_minute // 10**9, of_minute // 10**6, of_minute // 10**3)
        return parts[TIME_PARTS.index(name)]
    year, month, day = civil(days)
    weekday = (days + 3) % 7
    return {
        "year": year,
        "quarter": (month + 2) // 3,
        "month": month,
        "week": iso_week(days),
        "day": day,
        "doy": days - day_number(year, 1, 1) + 1,
        "dow": (weekday + 1) % 7,
        "isodow": weekday + 1,
    }[name]


def iso_week(days: int) -> int:
    """Returns the number of the week, whose year is that of its Thursday."""
    thursday = days - (days + 3) % 7 + 3
    return (thursday - day_number(civil(thursday)[0], 1, 1)) // 7 + 1


def truncated(granularity: str, family: str, value: int) -> int:
    """Returns nanoseconds since 1970."""
    days, rest = days_and_rest(family, value)
    if granularity in SECONDS:
        return binned(SECONDS[granularity], family, value)
    year, month, _ = civil(days)
    if granularity == "week":
        return (days - (days + 3) % 7) * DAY_NS
    first = {"year": 1, "quarter": (month - 1) // 3 * 3 + 1, "month": month}[granularity]
    return day_number(year, first, 1) * DAY_NS


def binned(width: int, family: str, value: int) -> int:
    """Returns the nanoseconds of the last multiple of `width` seconds since 1970."""
    days, rest = days_and_rest(family, value)
    each = width * 10**9
    return (days * DAY_NS + rest) // each * each


def unit_of(node: Node) -> tuple[str, str]:
    """Returns the unit of a timestamp that is made of a date or a timestamp, and the name of its type."""
    if node.family == "date":
        return "us", "timestamp_us"
    return node.what.split("_")[1], node.what


def in_range(value: int, unit: str) -> int:
    """Returns a timestamp, which must be one of 64 bits in its unit."""
    if not -(2**63) <= value // NANOSECONDS[unit] < 2**63:
        raise Failure(f"{value} ns is beyond the range of a timestamp in {unit}")
    return value
