"""Pictures as DINOv2 reads them: squares of 14 × 14 pixels, one token each, and a class token."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from eyeline.errors import ModelError
from eyeline.models.loaded import check_complete
from eyeline.tokens import Tokens, assemble

if TYPE_CHECKING:
    from PIL import Image

PATCH = 14  # pixels
CLASS = "CLS"  # the token in front, which stands for the whole picture
_LONGEST = 32  # patches along the longer side, unless asked for another number
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as it was trained


@dataclass(frozen=True, repr=False)
class Picture:
    """A picture cut into rows × columns patches; `image` is what the model sees, RGB.

    `size` is (width, height) in pixels as it was in the file.
    """

    image: Image.Image
    rows: int
    columns: int
    size: tuple[int, int]

    def __repr__(self) -> str:
        width, height = self.size
        return f"Picture({width} × {height} pixels, {self.rows} × {self.columns} patches)"

    def inputs(self) -> dict[str, torch.Tensor]:
        """What `model(**inputs)` takes: pixel_values, float32 [1, 3, 14 rows, 14 columns]."""
        pixels = torch.from_numpy(np.array(self.image, dtype=np.float32)) / 255
        values = (pixels - torch.tensor(_MEAN)) / torch.tensor(_STD)
        return {"pixel_values": values.permute(2, 0, 1)[None].contiguous()}

    def tokens(self) -> Tokens:
        """One token per patch, named by row and column from the top left, after the class token.

        >>> from PIL import Image
        >>> read_picture(Image.new("RGB", (200, 100)), longest=4).tokens().pieces
        ('CLS', 'r0c0', 'r0c1', 'r0c2', 'r0c3', 'r1c0', 'r1c1', 'r1c2', 'r1c3')
        """
        names = patch_names(self.rows, self.columns)
        ends = np.cumsum([len(name) + 1 for name in names]).tolist()
        places = [(end - 1 - len(name), end - 1) for name, end in zip(names, ends, strict=True)]
        return assemble(
            " ".join(names),
            ids=range(len(names) + 1),
            raw=(CLASS, *names),
            offsets=((0, 0), *places),
            special=(True, *(False for _ in names)),
        )


def patch_names(rows: int, columns: int) -> list[str]:
    """The patches by row and column from the top left, row after row.

    >>> patch_names(2, 2)
    ['r0c0', 'r0c1', 'r1c0', 'r1c1']
    """
    return [f"r{row}c{column}" for row in range(rows) for column in range(columns)]


def read_picture(
    source: str | os.PathLike[str] | Image.Image, *, longest: int = _LONGEST
) -> Picture:
    """A picture from a file (or from pillow), whole, with `longest` patches on its longer side.

    It is scaled so that both sides are whole numbers of patches, which changes its proportions by
    less than one patch. Raises ModelError where the `pillow` package is missing, or the file is
    not there or no picture.

    >>> from PIL import Image
    >>> read_picture(Image.new("RGB", (640, 480)))
    Picture(640 × 480 pixels, 24 × 32 patches)
    """
    if longest < 1:
        raise ModelError(f"longest={longest} leaves no patch: give 1 or more.")
    image = _opened(source)
    width, height = image.size
    columns, rows = (max(1, round(longest * side / max(width, height))) for side in image.size)
    scaled = _opaque(image).resize((columns * PATCH, rows * PATCH), _bicubic())
    return Picture(scaled, rows, columns, (width, height))


def build(path: Path) -> torch.nn.Module:
    """DINOv2 (small) with the weights of an ONNX file."""
    from transformers import Dinov2Config
    from transformers.models.dinov2.modeling_dinov2 import Dinov2Model

    from eyeline.integrations import onnx_weights

    weights = onnx_weights.dinov2(path)
    layers = len({name.split(".")[2] for name in weights if name.startswith("encoder.layer.")})
    width, _, patch, _ = weights["embeddings.patch_embeddings.projection.weight"].shape
    side = round((weights["embeddings.position_embeddings"].shape[1] - 1) ** 0.5)
    config = Dinov2Config(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        image_size=side * patch,
        patch_size=patch,
        use_mask_token=False,
    )
    model: torch.nn.Module
    model, report = Dinov2Model.from_pretrained(
        None,
        config=config,
        state_dict={name: torch.from_numpy(np.array(w)) for name, w in weights.items()},
        output_loading_info=True,
    )
    check_complete(path, report)
    return model


def _opened(source: str | os.PathLike[str] | Image.Image) -> Image.Image:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ModelError(
            "Pictures are read by the pillow package, which is not installed.\nRun: pip install"
            " pillow"
        ) from error
    if isinstance(source, Image.Image):
        return source
    try:
        with Image.open(source) as opened:
            return ImageOps.exif_transpose(opened)  # upright, as the camera was held
    except FileNotFoundError as error:
        raise ModelError(f"There is no picture {os.fspath(source)}.") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ModelError(
            f"{os.fspath(source)} is no picture that can be read: {error}.\nSave it as PNG or JPEG."
        ) from error


def _opaque(image: Image.Image) -> Image.Image:
    """In three colours; what can be seen through lies on white."""
    from PIL import Image

    if not image.has_transparency_data:
        return image.convert("RGB")
    ground = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(ground, image.convert("RGBA")).convert("RGB")


def _bicubic() -> Any:
    from PIL import Image

    return Image.Resampling.BICUBIC
