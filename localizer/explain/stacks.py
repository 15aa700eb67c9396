"""Stacks of a stuck job: who stands where."""

from __future__ import annotations

from collections import Counter

from eroica.localizer.explain.registry import Explanation, Item, register
from eroica.localizer.stacks import innermost, main_stack, told_stack
from eroica.schemas.ranks import format_ranks, parse_ranks, say_ranks


@register("differs from: *", "innermost frames of the main thread")
def stack(item: Item) -> Explanation:
    """All stacks by how many stand there."""
    stacks = {row.rank: main_stack(row) for row in item.frame.stacks if row.threads}
    told = {row.rank: told_stack(row) for row in item.frame.stacks if row.threads}
    usual, _ = min(Counter(stacks.values()).items(), key=lambda pair: (-pair[1], pair[0]))
    [rank] = parse_ranks(item.evidence.subject.partition(":")[0].removeprefix("rank ")).tolist()
    by_stack: dict[str, list[int]] = {}
    for who, text in stacks.items():
        by_stack.setdefault(text, []).append(who)
    rows: list[tuple[str, ...]] = [
        (f"{'→ ' if rank in ranks else ''}{say_ranks(format_ranks(ranks))}", str(len(ranks)), innermost(told[min(ranks)]))
        for _, ranks in sorted(by_stack.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    ]
    differs = float(stacks.get(rank, usual) != usual)
    return Explanation(
        "value and score: 1 where the main thread stands elsewhere than that of most workers (numbers and addresses aside)",
        ("", "workers", "innermost frames"),
        rows,
        differs,
        0.0,
        differs,
    )
