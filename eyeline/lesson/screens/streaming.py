"""Online softmax: the same output from three tiles, nothing of n × n stored."""

from __future__ import annotations

import math

from eyeline.lesson.data import Block, Code, Screen, Table
from eyeline.lesson.stage import Stage
from eyeline.lesson.tiles import merge, of_tile, tiles
from eyeline.lesson.writing import numbers

_LONG = 100_000  # words of a long text, for the count of what is not stored


def stream(stage: Stage) -> Screen:
    """The row that is followed, read tile by tile."""
    write, ledger = stage.write, stage.ledger
    pick = write.pick
    scores, V = stage.row("scaled"), ledger["V"]
    parts = tiles(ledger.n)
    kept, rows = None, []
    for start, stop in parts:
        tile = of_tile(scores[start:stop], V[start:stop])
        merged = tile if kept is None else merge(kept, tile)
        words = " ".join(ledger.words[start:stop][:3])
        if stop - start > 3:
            words += " …"
        rows.append((pick("tile", "块") + f" {words}", *_state(tile)))
        if kept is not None:
            m = merged.m
            factors = [f"×{math.exp(s.m - m) if s.m > -math.inf else 0:.4f}" for s in (kept, tile)]
            rows.append((pick("merged", "合并") + f" {factors[0]}, {factors[1]}", *_state(merged)))
        kept = merged
    assert kept is not None
    whole = ledger.head_output[stage.token]
    difference = (kept.out / kept.l - whole).abs().max().item()
    head = (pick("row {i}", "第 {i} 行", i=stage.token), "m", "l = Σ exp(s - m)", "Σ exp(s - m)·V")
    blocks: list[Block] = [
        write.says(
            "How does eyeline avoid the n × n matrix? A row of scores is read in tiles; kept are"
            " only"
            " the largest score m so far, the sum l, and the weighted sum of the values, both"
            " relative to m. Two such states merge: the one with the smaller m is brought to the"
            " larger, × exp(m_old - m_new), then they add.",
            "eyeline 怎样避开 n × n 矩阵？一行打分分块读取；只留三样：目前最大的打分 m、总和 l、值"
            "的"
            "加权和（都相对于 m）。两份状态可以合并：m 小的那份先乘 exp(m_旧 - m_新) 换到大的 m，"
            "再相加。",
            "A21",
        ),
        Table(head, tuple(rows), ("A21",)),
        Code(_code(stage, parts), ("A21",)),
        write.says(
            "Divided at the end: {out}. From the whole row: {whole}. Largest difference"
            " {difference:.1g}.",
            "最后相除：{out}。整行一次算：{whole}。最大差 {difference:.1g}。",
            "A21",
            out=numbers(kept.out / kept.l),
            whole=numbers(whole),
            difference=difference,
        ),
        write.change(
            "What would change if the text had {n:,} words? The weights of one head would take"
            " {dense:.0f} GB in float32; the states of all rows take {kept:.1f} MB (m and l), and"
            " the"
            " output is there anyway.",
            "如果文字有 {n:,} 个词呢？一个头的权重要 {dense:.0f} GB（float32）；所有行的状态（m 和"
            " l）只要"
            " {kept:.1f} MB，输出本来就要有。",
            n=_LONG,
            dense=4 * _LONG**2 / 1e9,
            kept=2 * 4 * _LONG / 1e6,
        ),
    ]
    title = pick("Without the n × n matrix", "不存 n × n 矩阵")
    return stage.screen("stream", title, blocks)


def _state(state: object) -> tuple[str, str, str]:
    m, total, out = vars(state)["m"], vars(state)["l"], vars(state)["out"]
    return f"{m:.4f}", f"{total:.4f}", numbers(out)


def _code(stage: Stage, parts: list[tuple[int, int]]) -> tuple[str, ...]:
    """The same as code: one row, tile by tile."""
    head = f"[{stage.ledger.head}]" if stage.ledger.heads > 1 else ""
    return (
        f"row, values = scaled{head}[{stage.token}], V{head}",
        'm, l, total = float("-inf"), 0.0, 0.0',
        f"for start, stop in {parts}:",
        "    new = max(m, row[start:stop].max().item())",
        "    old, share = math.exp(m - new), torch.exp(row[start:stop] - new)",
        "    l, total = l * old + share.sum(), total * old + share @ values[start:stop]",
        "    m = new",
        "streamed = total / l",
    )
