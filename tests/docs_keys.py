"""Find the keys of a summary that the documents do not explain."""

import re
from collections.abc import Iterable

FAMILY = re.compile(r"(mean_|median_|std_|p50_|p99_)((?:ttft|tpot|itl|e2el)_ms)")


def undocumented(keys: Iterable[str], docs: str) -> list[str]:
    """Return the keys without an explanation; the generated table does not count as one."""
    explained = re.sub(r"^## Units and directions$.*?(?=^#|\Z)", "", docs, flags=re.M | re.S)
    known = set(re.findall(r"`([a-z0-9_]+)`", explained))
    wanted = set()
    for key in keys:
        family = FAMILY.fullmatch(key)
        wanted |= set(family.groups()) if family else {key}
    return sorted(wanted - known)
