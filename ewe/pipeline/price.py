"""Sizes and prices of scans: what a person types as a cap, and what they read before they pay."""

from __future__ import annotations

import re
from decimal import Decimal

from ewe.errors import CostError, UsageError

USD_PER_TIB = 6.25  # on demand, in the US; the first TiB of each month is free
MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40


def parse_bytes(text: str) -> int:
    """`"500GB"` -> 500_000_000_000, `"500GiB"` -> 536_870_912_000; a bare number is bytes.

    Raises:
        UsageError: not a size, or none that BigQuery takes as a cap.
    """
    found = re.fullmatch(r"(\d{1,19}(?:\.\d{1,9})?) ?(?:([KMGTP])(i?))?B?", text.strip(), re.ASCII | re.IGNORECASE)
    if found:
        power = " KMGTP".index((found[2] or " ").upper())
        size = int(Decimal(found[1]) * (1024 if found[3] else 1000) ** power)
        if 0 < size < 1 << 63:
            return size
    raise UsageError(f"--max-bytes {text!r} is not a size above zero; write it like 500GB or 500GiB.")


def show_bytes(size: int) -> str:
    """A size for a person, in binary units as the bill counts them."""
    return f"{size / GIB:,.1f} GiB" if size >= GIB else f"{size / MIB:,.1f} MiB"


def usd(scanned: int, free: int = 0) -> float:
    """What a scan of so many bytes costs, so many of them free."""
    return round(max(0, scanned - free) / TIB * USD_PER_TIB, 2)


def show_price(scanned: int) -> str:
    """The same in words, with the rate."""
    cost = usd(scanned)
    return f"{f'${cost:.2f}' if cost else 'under a cent'} at ${USD_PER_TIB} a TiB"


def needed_cap(estimate: int) -> int:
    """The cap under which a query of this estimate runs, in bytes.

    Billed bytes are rounded up for each table, to at least 10 MiB, and a live table grows between the
    dry run and the scan.
    """
    return -(-(estimate + estimate // 100 + 10 * MIB) // MIB) * MIB


def beyond_cap(needed: int) -> CostError:
    """The refusal of a query that needs a cap of so many bytes (0: the service did not say how many)."""
    unit, name = (10**9, "GB") if needed >= 10**9 else (10**6, "MB")
    if not needed:
        return CostError("The query would bill more than the cap; see what it needs with --dry-run.")
    return CostError(
        f"The scan needs a cap of {needed:,} bytes ({show_bytes(needed)}, {show_price(needed)}); "
        f"allow it with --max-bytes {-(-needed // unit)}{name}."
    )
