# An address and four strides in elements; None where there is no tensor.
_Tensor = tuple[int, int, int, int, int] | None

def tables() -> list[str]: ...
def caches() -> tuple[int, int, int]: ...
def multiply_adds(table: str, rounds: int) -> float: ...
def poison(on: bool) -> None: ...
def forward(
    table: str,
    threads: int,
    number: int,
    sizes: tuple[int, int, int, int, int, int, int],
    main: tuple[_Tensor, _Tensor, _Tensor, _Tensor],
    lse: int,
    scale: float,
    softcap: float,
    more: tuple[_Tensor, _Tensor, _Tensor],
    places: tuple[int, int, int, int],
    visible: tuple[_Tensor, _Tensor, _Tensor, _Tensor, _Tensor, _Tensor],
    intervals: int,
    dropout: tuple[int, int, float] | None,
) -> None: ...
