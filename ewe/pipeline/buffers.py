"""Arrow's strings as NumPy arrays, for kernels to read without a copy of the text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def text_buffers(texts: pa.StringArray | pa.LargeStringArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """UTF-8 of all texts up to the last one's end, and where each starts and the last one ends (N+1,).

    A null has no bytes, so it reads as ''.
    """
    width = np.int32 if pa.types.is_string(texts.type) else np.int64
    _, offsets, data = texts.buffers()
    places = np.frombuffer(offsets or bytes(8), width)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data or b"", np.uint8)[: places[-1]], places.astype(np.int64, copy=False)
