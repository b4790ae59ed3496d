"""Units: integer bytes inside, GiB only in text; shares rounded up on purpose."""

from __future__ import annotations

MIB = 2**20
GIB = 2**30
GB = 10**9


def gib_text(size_bytes: float, *, digits: int = 1) -> str:
    """Bytes as `12.3 GiB`."""
    return f"{size_bytes / GIB:.{digits}f} GiB"


def ceil_div(amount: int, parts: int) -> int:
    """The share of the fullest of `parts`, rounded up."""
    return -(-amount // parts)


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def next_power_of_two(amount: int) -> int:
    """The smallest power of two that is not below `amount`; 0 stays 0."""
    return 1 << (amount - 1).bit_length() if amount > 0 else 0


def duration_text(seconds: float) -> str:
    """Seconds as `850 ms`, `12.3 s`, `4.5 h` or `12 days`, whichever reads best."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 600:
        return f"{seconds:.1f} s"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"
