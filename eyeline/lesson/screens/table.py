"""The first screen: step, input, output, purpose, with this text's shapes and numbers."""

from __future__ import annotations

from eyeline.lesson.data import Block, Code, Screen, Table
from eyeline.lesson.stage import Stage, strongest
from eyeline.lesson.writing import numbers, shape


def table(stage: Stage) -> Screen:
    """B15's table, the formula, and what the changed options did."""
    write, ledger = stage.write, stage.ledger
    pick, term = write.pick, write.term
    blocks: list[Block] = [
        write.says(
            "{n} {unit}: {words}. Every word can look at all of them, itself included, and decides"
            " how much to take from each; all words do so at once. Words, rows and columns are"
            " counted from 0.",
            "{n} 个{unit}：{words}。每个词都可以看所有的词（也包括自己），并决定从每个词取多少；"
            "所有位置同时计算。词、行、列都从 0 数起。",
            "A12",
            "B1",
            n=ledger.n,
            unit="token" + pick("s", "") if stage.real else pick("words", "词"),
            words=" ".join(ledger.words),
        ),
        Code(("# Attention(Q, K, V) = softmax(Q·Kᵀ / √d_k) · V",), ("A10", "B14")),
        write.says(
            "Q·Kᵀ is step {score}, / √d_k step {scale}, softmax step {softmax}, · V step {sum}: to"
            " score, scale, normalise, and take the weighted sum. Row {i} (“{word}”) is followed:",
            "Q·Kᵀ 是第 {score} 步，/ √d_k 是第 {scale} 步，softmax 是第 {softmax} 步，· V 是第"
            " {sum} 步："
            "打分、缩放、归一化、加权求和。下面跟着第 {i} 行（“{word}”）走：",
            "A9",
            score=stage.step("score"),
            scale=stage.step("scale"),
            softmax=stage.step("softmax"),
            sum=stage.step("sum"),
            i=stage.token,
            word=stage.word,
        ),
    ]
    head = (
        pick("step", "步骤"),
        pick("input", "输入"),
        pick("output", "输出"),
        pick("purpose", "目的"),
    )
    factor = f"× {ledger.scale:.4g}"
    Q, K, V, scores = (shape(ledger[name]) for name in ("Q", "K", "V", "scores"))
    sizes = f"Q K V {Q}" if Q == K == V else f"Q {Q}, K {K}, V {V}"
    masked = f" + {term('mask')}" if ledger.causal else ""
    X = shape(ledger["X"])
    rows = (
        (
            pick("projection", "投影"),
            f"X {X}" + (f", W {shape(ledger['W_Q'])}" if "W_Q" in ledger else ""),
            f"{sizes} {numbers(stage.row('Q'), 2)}",
            pick("ask, be found, deliver", "提问、被匹配、交付"),
        ),
        (
            pick("dot product", "点积"),
            f"Q {Q}·Kᵀ {shape(ledger['K'].mT)}",
            f"{scores} {numbers(stage.row('scores'), 3)}",
            pick("how well each pair matches", "每一对有多匹配"),
        ),
        (
            term("scale") + masked,
            f"{scores} {factor}",
            f"{scores} {numbers(stage.row('scaled'), 3)}",
            pick("keep softmax mild", "让 softmax 保持温和"),
        ),
        (
            "softmax",
            scores,
            f"{scores} {numbers(stage.row('weights'), 3)}",
            pick("shares that sum to 1", "变成和为 1 的份额"),
        ),
        (
            term("weighted sum"),
            f"{scores}·V {V}",
            f"{shape(ledger.head_output)} {numbers(ledger.head_output[stage.token], 3)}",
            pick("take from each by its share", "按份额取走内容"),
        ),
    )
    blocks.append(Table(head, rows, ("B15",)))
    blocks.append(
        write.says(
            "So “{word}” looks most at {most}.",
            "所以“{word}”看得最多的是：{most}。",
            word=stage.word,
            most=strongest(ledger.words, stage.row("weights")),
        )
    )
    blocks += _changed(stage)
    return stage.screen("table", pick("The table", "一张总表"), blocks)


def _changed(stage: Stage) -> list[Block]:
    """What differs from the lesson without the changed options."""
    write, now, base = stage.write, stage.ledger, stage.base
    if now is base:
        if stage.real:
            return [
                write.change(
                    "What would change if? Try --no-scale, --scale {more:.4g}, {mask}, another"
                    " --layer or --head: each changes one thing, and here stands what follows.",
                    "如果改一改会怎样？试试 --no-scale、--scale {more:.4g}、{mask}、别的 --layer"
                    " 或 --head："
                    "每个只改一处，后果写在这里。",
                    more=2 * now.scale,
                    mask="--no-mask" if now.causal else "--causal",
                )
            ]
        return [
            write.change(
                "What would change if? Try --scale 4, --no-scale, --causal, --seed 1, --d 64 or"
                " --heads 2: each changes one thing, and here stands what follows.",
                "如果改一改会怎样？试试 --scale 4、--no-scale、--causal、--seed 1、--d 64 或"
                " --heads 2：每个只改一处，后果写在这里。",
            )
        ]
    pick = write.pick
    compared = (("weights", pick("weights", "注意力权重")), ("output", pick("output", "输出")))
    rows = [
        (
            f"{label}, {pick('row', '行')} {stage.token}",
            numbers(base[name][stage.token]),
            numbers(now[name][stage.token]),
        )
        for name, label in compared
    ]
    rows.append(
        (
            pick("largest weight, mean over rows", "每行最大权重的平均"),
            f"{base['weights'].amax(-1).mean().item():.4f}",
            f"{now['weights'].amax(-1).mean().item():.4f}",
        )
    )
    head = (pick("what follows", "后果"), pick("unchanged", "不改"), pick("changed", "改后"))
    return [
        write.change(
            "Changed: {changes}. What follows:",
            "改动：{changes}。后果：",
            changes=changes(stage),
        ),
        Table(head, tuple(rows)),
    ]


def changes(stage: Stage) -> str:
    """The changed options, each as it was and is."""
    now, base, settings = stage.ledger, stage.base, stage.settings
    found = []
    if base.scale != now.scale:
        found.append(f"scale {base.scale:.4g} → {now.scale:.4g}")
    if base.causal != now.causal:
        names = {True: "causal", False: stage.write.pick("none", "无")}
        found.append(f"mask {names[base.causal]} → {names[now.causal]}")
    if not stage.real:
        plain = type(settings)()
        for name in ("d", "seed", "heads"):
            if getattr(settings, name) != getattr(plain, name):
                found.append(f"{name} {getattr(plain, name)} → {getattr(settings, name)}")
    return ", ".join(found)
