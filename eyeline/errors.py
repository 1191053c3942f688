"""The errors of eyeline: each says what was asked, what was found and what to do."""

from __future__ import annotations


class EyelineError(Exception):
    """What every error of eyeline is."""


class ShapeError(EyelineError, ValueError):
    """Shapes that do not fit together; the text shows them side by side."""


class MaskError(EyelineError, ValueError):
    """A mask that cannot mean what was asked."""


class DtypeError(EyelineError, TypeError):
    """A dtype, device or argument type that attention has no meaning for."""


class ArgumentError(EyelineError, ValueError):
    """A number or name that is outside of what the argument can mean."""


class BackendError(EyelineError, RuntimeError):
    """A backend was named that cannot run this problem; the text lists every reason."""


class DenseError(EyelineError, MemoryError):
    """The whole matrix was asked for and is larger than the limit.

    The text says how many bytes it would take and which question answers without them.

    >>> import torch, eyeline
    >>> weights = eyeline.weights(torch.randn(9000, 8), torch.randn(9000, 8))
    >>> try:
    ...     weights * 2
    ... except eyeline.errors.DenseError as error:
    ...     print(str(error).splitlines()[0])
    mul needs the whole matrix [9000, 9000] float32: 309 MiB, and eyeline.dense_limit is 64 MiB.
    """


class StaleError(EyelineError, RuntimeError):
    """Something was changed in place after the weights were made from it."""


class ModelError(EyelineError, RuntimeError):
    """A model that cannot be had, or cannot do what was asked of it."""


class RecordingError(EyelineError, ValueError):
    """A recording that cannot be written or read: damaged, cut off, or no recording at all."""
