from torch import Tensor

from eyeline.backends.arguments import Asking
from eyeline.backends.questions import Asked

def tables() -> list[str]: ...
def caches() -> tuple[int, int, int]: ...
def multiply_adds(table: str, rounds: int) -> float: ...
def read_floats(table: str, data: int, count: int, streams: int) -> float: ...
def poison(on: bool) -> None: ...
def backward(
    table: str,
    threads: int,
    problem: Asking,
    values: tuple[Tensor, Tensor | None, Tensor | None],
    rows: tuple[int, int, int],
    wanted: tuple[int, int, int, int],
    dropout: tuple[int, int, float] | None,
) -> None: ...
def forward(
    table: str,
    threads: int,
    problem: Asking,
    v: Tensor,
    out: Tensor,
    rows: Tensor,
    dropout: tuple[int, int, float] | None,
) -> None: ...
def reduce(
    table: str,
    threads: int,
    problem: Asking,
    state: tuple[int, ...],
    questions: list[Asked],
) -> None: ...
