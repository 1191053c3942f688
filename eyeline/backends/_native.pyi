from eyeline.backends.arguments import Numbers, Strides
from eyeline.backends.questions import Asked

def tables() -> list[str]: ...
def caches() -> tuple[int, int, int]: ...
def multiply_adds(table: str, rounds: int) -> float: ...
def read_floats(table: str, data: int, count: int, streams: int) -> float: ...
def poison(on: bool) -> None: ...
def backward(
    table: str,
    threads: int,
    problem: Numbers,
    Dv: int,
    values: tuple[Strides | None, Strides | None, Strides | None],
    rows: tuple[int, int, int],
    wanted: tuple[int, int, int, int],
    dropout: tuple[int, int, float] | None,
) -> None: ...
def forward(
    table: str,
    threads: int,
    problem: Numbers,
    Dv: int,
    v: Strides | None,
    out: Strides | None,
    rows: tuple[int, int, int],
    dropout: tuple[int, int, float] | None,
) -> None: ...
def reduce(
    table: str,
    threads: int,
    problem: Numbers,
    state: tuple[int, ...],
    questions: list[Asked],
) -> None: ...
