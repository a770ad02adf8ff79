"""Which keys of a summary the documents explain."""

import re
from collections.abc import Iterable

FAMILY = re.compile(r"(mean_|median_|std_|p50_|p99_)((?:ttft|tpot|itl|e2el)_ms)")


def undocumented(keys: Iterable[str], docs: str) -> list[str]:
    """The keys without an explanation; the generated table, which has all of them, is none."""
    explained = re.sub(r"^## Units and directions$.*?(?=^#|\Z)", "", docs, flags=re.M | re.S)
    known = set(re.findall(r"`([a-z0-9_]+)`", explained))
    wanted = set()
    for key in keys:
        family = FAMILY.fullmatch(key)
        wanted |= set(family.groups()) if family else {key}
    return sorted(wanted - known)
