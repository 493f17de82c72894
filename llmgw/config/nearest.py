"""What a key that does not exist was most likely meant to be."""

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is this one but for a slip or two of the pen."""
    best: tuple[int, str] | None = None
    for candidate in known:
        distance = _distance(_folded(word), _folded(candidate))
        if distance <= max(1, len(candidate) // 4) and (
            best is None or (distance, candidate) < best
        ):
            best = (distance, candidate)
    return best[1] if best else None


def _folded(word: str) -> str:
    """cert-file, certFile and certfile are cert_file to whoever writes them."""
    return word.replace("_", "").replace("-", "").lower()


def _distance(one: str, other: str) -> int:
    """Letters to add, drop, change or swap."""
    if abs(len(one) - len(other)) > 4:
        return 99
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        older, before, row = before, row, [i]
        for j, wanted in enumerate(other, 1):
            cost = min(
                before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted)
            )
            if i > 1 and j > 1 and (letter, one[i - 2]) == (other[j - 2], wanted):
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
    return row[-1]
