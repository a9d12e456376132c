"""Exact conversion of decimals to floating-point numbers of 16, 32 and 64 bits."""

from __future__ import annotations

import math
from decimal import Decimal


def rounded(value: Decimal | int, bits: int) -> float:
    """Returns the nearest floating-point number of the given width; ties go to the even one."""
    if bits == 64:
        try:
            return float(value)
        except OverflowError:
            return math.copysign(math.inf, value)
    digits, lowest, largest = {16: (11, -24, 65504), 32: (24, -149, (2**24 - 1) * 2**104)}[bits]
    exact = Decimal(value)
    if exact == 0:
        return float(exact)
    numerator, denominator = abs(exact).as_integer_ratio()
    exponent = max(numerator.bit_length() - denominator.bit_length() - digits - 1, lowest)
    while True:
        top, bottom = (numerator, denominator << exponent) if exponent >= 0 else (numerator << -exponent, denominator)
        quotient, rest = divmod(top, bottom)
        if quotient < 1 << digits:
            break
        exponent += 1
    quotient += 2 * rest > bottom or (2 * rest == bottom and quotient % 2)
    try:
        magnitude = math.ldexp(quotient, exponent)
    except OverflowError:
        magnitude = math.inf
    return math.copysign(magnitude if magnitude <= largest else math.inf, exact)
