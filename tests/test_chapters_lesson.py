"""Every line of the two chapters has its place in the lesson, in both languages, with its number.

For each line stands what the blocks that carry it must hold: in English, in Chinese (the same
where only one is given). Numbers are those of the chapters' example, or right where they slip.
"""

from __future__ import annotations

import json
import re

import pytest
import torch

from eyeline.lesson import Lesson, lesson

LINES = [*(f"A{i}" for i in range(1, 36)), *(f"B{i}" for i in range(1, 25))]

# line: (screen, English pattern, Chinese pattern)
HOLDS: dict[str, tuple[str, str, str]] = {
    "A1": ("lookup", "differentiable", "可微的软检索"),
    "A2": ("lookup", r"KeyError: 'kitten'.*kitten|cat.*dog.*car.*bus", "精确检索.*KeyError"),
    "A3": ("lookup", r"× 1\b.*× 4\b.*× 16\b.*× ∞.*1\.0000.*0\.0000", r"× ∞.*1\.0000"),
    "A4": ("lookup", r"from 0\.0900 to 0\.1\d\d\d", r"从 0\.0900 变成 0\.1\d\d\d"),
    "A5": ("roles", "What do I want to know.*What am I.*taken away", "我想知道什么.*拿走什么"),
    "A6": ("vectors", r"X \[n, d_model\].*W_Q \[4, 4\].*W_K.*W_V", r"W_Q \[4, 4\]"),
    "A7": ("vectors", r"X @ W_Q.*d_k = 6, Q is \[3, 6\]", r"d_k = 6.*\[3, 6\]"),
    "A8": ("roles", "three matrices", "三个矩阵"),
    "A9": (
        "table",
        "score, scale, normalise, and take the weighted sum",
        "打分、缩放、归一化、加权求和",
    ),
    "A10": ("table", r"softmax\(Q·Kᵀ / √d_k\) · V", r"softmax\(Q·Kᵀ / √d_k\) · V"),
    "A11": ("sum", r"0\.163 0\.362 0\.180 0\.296", r"0\.163 0\.362 0\.180 0\.296"),
    "A12": ("table", "at once", "同时计算"),
    "A13": (
        "scale",
        r"1024 ÷√d.*gradient at W_Q|at W_Q the gradient is larger",
        "W_Q 处.*梯度反而更大",
    ),
    "A14": ("roles", r"Cross-attention.*\[2, 3\]", r"交叉注意力.*\[2, 3\]"),
    "A15": ("sum", r"scaled_dot_product_attention\(Q, K, V, mask=None\)", r"\(output, weights\)"),
    "A16": ("sum", r"\[\.\.\., n, n\]", r"\[\.\.\., n, n\]"),
    "A17": ("mask", r"-inf is nan nan nan.*0\.0000 0\.0000 0\.0000", "nan nan nan"),
    "A18": ("mask", "any dtype", "任意 dtype"),
    "A19": ("softmax", r"0\.1845.*0\.7254.*0\.0900", r"0\.1845.*0\.7254"),
    "A20": ("sum", r"print\(attn\).*sums to 1", r"print\(attn\).*和为 1"),
    "A21": ("score", r"attn\[i\]\[j\]|O\(n²\)", r"attn\[i\]\[j\]"),
    "A22": ("mask", "read the answer", "偷看了答案"),
    "A23": ("mask", r'"causal".*\[1\.0, 0\.0, 0\.0\]', r"\[1\.0, 1\.0, 0\.0\]"),
    "A24": ("mask", r"torch\.tril\(torch\.ones\(3, 3\)\)", r"torch\.tril\(torch\.ones\(3, 3\)\)"),
    "A25": ("mask", r"mask \[4, 4\].*Tq = 3, Tk = 3.*0\.0259 0\.9741 0\.0000", r"n = 3.*0\.0259"),
    "A26": ("mask", "upper triangle adds up to 0,", "上三角之和为 0，"),
    "A27": ("mask", "encoder, BERT.*decoder, GPT", "编码器（BERT）.*解码器（GPT）"),
    "A28": ("mask", '"BERT".*"GPT"', "分道"),
    "A29": ("flow", r"X.*Q = X·W_Q.*score.*no mask.*softmax.*· V.*Z", r"打分.*无掩码.*softmax.*Z"),
    "A30": ("sum", r"V's size d_v.*\[3, 7\]", r"d_v.*\[3, 7\]"),
    "A31": ("sum", "linear in V.*FFN is not linear", "FFN 不是线性的"),
    "A32": ("softmax", r"raw / sum.*softmax.*1\.0000", r"打分 / 总和.*1\.0000"),
    "A33": ("flow", "In short", "小结"),
    "A34": (
        "mask",
        r"earlier outputs stay \(largest change 0\).*GPT",
        "前面的输出不变（最大变化 0）",
    ),
    "A35": ("vectors", "meaning and position", "含义和位置"),
    "B1": ("table", "decides how much to take", "决定从每个词取多少"),
    "B2": ("vectors", "3 words, 3 vectors of 4 numbers", "3 个词，3 个 4 维向量"),
    "B3": ("vectors", r"K = X @ W_K.*V = X @ W_V", r"K = X @ W_K"),
    "B4": ("roles", "W_Q and W_K must agree.*only W_V is free", "W_Q 与 W_K 必须一致"),
    "B5": ("roles", "same X and are of different nature", "同一个 X，性质却不同"),
    "B6": ("roles", r"not so in \d\d%.*in \d\d% where.*symmetric", r"\d\d% 不是这样.*对称"),
    "B7": ("score", "how well the query of word i matches", "有多匹配"),
    "B8": (
        "score",
        r"\[3, 4\] · \[4, 3\] gives \[3, 3\].*Row 0, column 1.*= 3\.3095",
        r"= 3\.3095",
    ),
    "B9": ("scale", r"deviation is 22\.\d.*4,000,000.*about 51\d", r"标准差是 22\.\d.*约为 51\d"),
    "B10": ("scale", r"variance is 1\.00.*short training", r"方差是 1\.00.*短训练"),
    "B11": ("softmax", r"every row sums to 1 \(here 1\.0000 1\.0000 1\.0000\)", r"1\.0000 1\.0000"),
    "B12": (
        "softmax",
        r"1000 1001 1002.*nan.*0\.0900 0\.2447 0\.6652.*attn\.lse",
        r"attn\.lse",
    ),
    "B13": ("sum", "a weighted mean", "加权平均"),
    "B14": ("table", r"softmax\(Q·Kᵀ / √d_k\) · V", r"softmax\(Q·Kᵀ / √d_k\) · V"),
    "B15": (
        "table",
        r"step.*input.*output.*purpose.*\[3, 3\] 0\.1845 0\.7254 0\.0900",
        "步骤.*输入.*输出.*目的.*投影.*点积.*缩放.*softmax.*加权求和",
    ),
    "B16": ("beyond", r"SelfAttention\(embed_dim\) holds W_Q\.weight W_Q\.bias", r"W_V\.bias"),
    "B17": ("scale", "√embed_dim; with several it is √head_dim", "多头时是 √head_dim"),
    "B18": ("beyond", "dropout and residual", "dropout 和残差"),
    "B19": ("flow", "soft look-up", "软检索"),
    "B20": ("roles", r"q has D=4 and k has D=3\..*both must have the same D", "q has D=4"),
    "B21": ("beyond", r"Why eight heads.*entropy \d\.\d\d of a head.*averaged", "为什么要八个头"),
    "B22": ("beyond", r"Shuffle the words.*positions", "把词打乱"),
    "B23": ("beyond", r"nn\.TransformerEncoderLayer.*swap", "残差加 LayerNorm"),
    "B24": ("beyond", "stays the same in encoders, decoders", "里都不变"),
}


@pytest.fixture(scope="module", params=["en", "zh"])
def told(request) -> Lesson:
    return lesson(lang=request.param)


def test_the_list_is_whole():
    assert list(HOLDS) == LINES


@pytest.mark.parametrize("line", LINES)
def test_line(told, line):
    name, *patterns = HOLDS[line]
    pattern = patterns[told.lang == "zh"]
    data = json.loads(told.to_json())
    names = [screen["name"] for screen in data["screens"]]
    places = data["places"][line]
    assert names.index(name) in places
    carrying = [
        block
        for place in places
        for block in data["screens"][place]["blocks"]
        if line in block["lines"]
    ]
    text = "\n".join(json.dumps(block, ensure_ascii=False) for block in carrying)
    assert re.search(pattern, text, re.DOTALL), f"{line} ({told.lang}): {text}"


def words(told: Lesson, line: str) -> str:
    return "\n".join(
        block.text
        for screen in told.screens
        for block in screen.blocks
        if line in block.lines and hasattr(block, "text")
    )


def test_b6_the_shares(told):
    """31 % and 56 % of 1000 random inputs, within what a thousand draws vary by."""
    plain, shared = (int(x) for x in re.findall(r"(\d\d)%", words(told, "B6")))
    generator = torch.Generator().manual_seed(99)
    X = torch.randn(20_000, 3, 4, generator=generator)
    XW = X @ torch.randn(20_000, 4, 4, generator=generator)
    for share, Q in ((plain, X), (shared, XW)):
        scores = Q @ Q.transpose(-2, -1)
        beaten = (scores.argmax(-1) != torch.arange(3)).any(-1).double().mean().item()
        assert share / 100 == pytest.approx(beaten, abs=0.06)


def test_b9_how_large_dot_products_are(told):
    largest = re.search(
        r"(?:largest of 4,000,000 is|4,000,000 个里最大的是) (\d+)", words(told, "B9")
    )
    assert largest is not None
    assert 105 < int(largest[1]) < 140


def test_b10_a_short_training(told):
    losses = [float(x) for x in re.findall(r"\d\.\d{3}", words(told, "B10"))]
    before, after, plain_before, plain_after = losses
    assert after < before / 5
    assert plain_after > plain_before / 2


def test_a13_the_measured_table(told):
    scale = next(screen for screen in told.screens if screen.name == "scale")
    table = next(block for block in scale.blocks if block.kind == "table")
    rows = {row[0]: row[1:] for row in table.rows}
    assert list(rows)[::2] == ["4", "16", "64", "256", "1024"]
    assert float(rows["1024"][0]) == pytest.approx(1024, rel=0.1)
    assert float(rows["1024 ÷√d"][0]) == pytest.approx(1, rel=0.1)
    assert rows["1024 ÷√d"][1] == "0%"
    assert int(rows["1024"][1][:-1]) > 60
    assert float(rows["1024"][2]) < 0.3 < float(rows["1024 ÷√d"][2])
    assert float(rows["1024"][3]) < float(rows["1024 ÷√d"][3]) / 1000  # at the scores
    assert float(rows["1024"][4]) > float(rows["1024 ÷√d"][4])  # at W_Q


def test_a22_without_the_mask(told):
    text = words(told, "A22")
    knowable, masked, alone, unmasked, lost = (float(x) for x in re.findall(r"\d\.\d\d", text))
    assert abs(masked - knowable) < 0.2
    assert abs(alone - knowable) < 0.2
    assert unmasked < 0.3 * knowable
    assert lost > alone + 1
