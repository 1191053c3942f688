"""Masks: who may be seen, and why a language model must not see what comes later."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import eyeline
from eyeline.errors import EyelineError
from eyeline.lesson import measured
from eyeline.lesson.data import Block, Code, Screen
from eyeline.lesson.stage import Stage, causal_mask
from eyeline.lesson.writing import matrix, numbers


def mask(stage: Stage) -> Screen:
    """A17, A18, A22 to A28, A34."""
    write, ledger = stage.write, stage.ledger
    n, words = ledger.n, ledger.words
    allowed = causal_mask(n)
    scaled = ledger["scores"] * ledger.scale
    hidden = scaled.masked_fill(allowed == 0, -math.inf)
    bert, gpt = scaled.softmax(-1), hidden.softmax(-1)
    above = gpt[allowed == 0].abs().sum().item()
    code = (
        f"causal = torch.tril(torch.ones({n}, {n}))",
        f'hidden = (scores * {ledger.scale!r}).masked_fill(causal == 0, float("-inf"))',
        "causal_weights = torch.softmax(hidden, dim=-1)",
    )
    blocks: list[Block] = [
        write.says(
            "A language model must not see later words: at inference there are none. {state}",
            "语言模型不能看到后面的词：推理时后面还没有词。{state}",
            "A22",
            state=_state(stage),
        ),
        *stage.code("mask", lines=("A24",)),
        Code(code, ("A24", "A17")),
        matrix("causal", allowed, words, words, "mask", ("A23", "A24")),
        write.says(
            "Where the mask is 0 the score becomes -inf and the weight exactly 0: the upper"
            " triangle"
            " adds up to {above:g}, each position gathers from itself and the past. The mask may be"
            " of 0 and 1 of any dtype.",
            "掩码为 0 处，打分变成 -inf，权重恰好是 0：上三角之和为 {above:g}，每个位置只从自己和"
            "过去"
            "收集。掩码可以是任意 dtype 的 0/1。",
            "A17",
            "A18",
            "A26",
            above=above,
        ),
        write.says(
            "Same text, same weights, both masks: without it (encoder, BERT) and with it (decoder,"
            " GPT). This is where BERT and GPT part.",
            "同一段文字、同一组权重，两种掩码：编码器（BERT）不用因果掩码，解码器（GPT）用。BERT"
            " 与 GPT"
            " 就在这里分道。",
            "A27",
            "A28",
        ),
        matrix("BERT", bert, words, words, "weight", ("A28",)),
        matrix("GPT", gpt, words, words, "weight", ("A25", "A28")),
        _too_large(stage),
        _empty_row(stage),
        _language_model(stage),
        _prefix(stage, scaled),
    ]
    return stage.screen("mask", write.term("causal mask"), blocks)


def _state(stage: Stage) -> str:
    if stage.ledger.causal and not stage.real:
        return stage.write.pick("This lesson is masked (--causal).", "本次带因果掩码（--causal）。")
    if stage.ledger.causal:
        return stage.write.pick(
            "This lesson is masked; --no-mask takes it away.", "本次带因果掩码；--no-mask 去掉它。"
        )
    return stage.write.pick(
        "This lesson has no mask; --causal puts it on.", "本次没有掩码；--causal 加上它。"
    )


def _too_large(stage: Stage) -> Block:
    """A25: the example with a mask of one row and column too many."""
    ledger, n = stage.ledger, stage.ledger.n
    try:
        eyeline.attention(ledger["Q"], ledger["K"], ledger["V"], causal_mask(n + 1))
        said = ""
    except EyelineError as error:
        said = " ".join(str(error).split())
    hidden = (ledger["scores"] * ledger.scale).masked_fill(causal_mask(n) == 0, -math.inf)
    last = min(1, n - 1)
    return stage.write.slip(
        "One reads an example whose mask has one row more than there are words. Put right: as"
        " printed it raises; eyeline says: {said} With n = {n} row {i} is {row}.",
        "书上的例子里掩码比词多一行。更正：照抄会报错；eyeline 会说：{said} 取 n = {n}，第 {i} 行"
        "是 {row}。",
        "A25",
        said=said,
        n=n,
        i=last,
        row=numbers(hidden.softmax(-1)[last]),
    )


def _empty_row(stage: Stage) -> Block:
    """A17: a row that sees nothing."""
    ledger = stage.ledger
    nothing = torch.ones(ledger.n, ledger.n)
    nothing[0] = 0
    scaled = ledger["scores"].masked_fill(nothing == 0, -math.inf)
    _, weights = eyeline.attention(ledger["Q"], ledger["K"], ledger["V"], nothing)
    return stage.write.says(
        "A row that may see nothing: softmax of only -inf is {naive}; in eyeline its weights are"
        " {right}.",
        "一行什么都看不到时：全是 -inf 的 softmax 得到 {naive}；eyeline 给出 {right}。",
        "A17",
        naive=numbers(scaled[0].softmax(-1)),
        right=numbers(weights[0]),
    )


def _language_model(stage: Stage) -> Block:
    """A22: the same small model trained with and without the mask."""
    seed = stage.settings.seed
    masked, unmasked = (measured.next_letter(m, seed) for m in (True, False))
    return stage.write.says(
        "Two small language models, trained on letters of which {knowable:.2f} nats each cannot be"
        " known: with the mask the loss ends at {a:.2f} and is {b:.2f} when it writes on by itself;"
        " without it the loss falls to {c:.2f} (it has read the answer) and is {e:.2f} when there"
        " is"
        " none to read.",
        "两个小语言模型，每个字母有 {knowable:.2f} 奈特是不可能知道的：带掩码，训练损失 {a:.2f}，"
        "自己往下写时 {b:.2f}；不带掩码，训练损失降到 {c:.2f}（偷看了答案），没有答案可看时是"
        " {e:.2f}。",
        "A22",
        knowable=measured.knowable(),
        a=masked[0],
        b=masked[1],
        c=unmasked[0],
        e=unmasked[1],
    )


def _prefix(stage: Stage, scaled: Tensor) -> Block:
    """A34: with the mask, what was computed stays when a word is added."""
    V, n = stage.ledger["V"], stage.ledger.n
    few = max(1, n - 1)

    def output(size: int, causal: bool) -> Tensor:
        part = scaled[:size, :size]
        if causal:
            part = part.masked_fill(causal_mask(size) == 0, -math.inf)
        return part.softmax(-1) @ V[:size]

    kept, moved = (
        (output(n, causal)[:few] - output(few, causal)).abs().max().item()
        for causal in (True, False)
    )
    return stage.write.change(
        "What would change if one more word came (“{word}” after the first {few})? With the mask"
        " the"
        " earlier outputs stay (largest change {kept:.2g}): this lets GPT generate word by word."
        " Without it they move by up to {moved:.2f}.",
        "如果再来一个词（前 {few} 个词之后来了“{word}”）呢？有掩码，前面的输出不变（最大变化"
        " {kept:.2g}）："
        "GPT 因此能一个词一个词地生成。没有掩码，前面的输出最多会动 {moved:.2f}。",
        "A34",
        word=stage.ledger.words[-1],
        few=few,
        kept=kept,
        moved=moved,
    )
