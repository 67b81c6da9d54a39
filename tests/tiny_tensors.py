"""A tensors/ folder built by numpy alone, small enough for a test and learnable."""

import json
from pathlib import Path

import numpy as np

from ewe.store import Store, sha256_json

NAMES = ["First-A01B", "First-G06Q", "First-H01L", "Later-A01B", "Later-G06Q", "Later-H01L"]


def write_tensors(
    folder: Path,
    rows: dict[str, int],
    u: int = 8,
    v: int = 4,
    seed: int = 0,
    names: list[str] = NAMES,
    tokenizer: str = "whitespace",
    made_up: bool = False,
) -> Path:
    """Random words; the second word tells the First label, each word further back a Later one."""
    random = np.random.default_rng(seed)
    subclasses = len(names) // 2
    with Store(folder, "tensors", {"seed": seed, "u": u, "v": v, "rows": rows, "names": names}) as out:
        for split, N in rows.items():
            ids = random.integers(50, 240, (N, u, v), dtype=np.uint8)
            topics = random.integers(0, subclasses, (N, 2))
            ids[:, 1] = 10 + 5 * topics[:, :1]
            ids[:, 2] = 100 + 5 * topics[:, 1:]
            ids[:, 0], ids[:, u - 1] = 0, 0
            ids[:, 0, 0], ids[:, u - 1, 0] = 1, 2
            ids[::3, u - 2 :] = 0  # a third of the texts is shorter
            labels = [sorted({int(a), subclasses + int(b)}) for a, b in topics]
            indptr = np.cumsum([0, *map(len, labels)])
            arrays = {
                "bytes": ids,
                "labels.indptr": indptr.astype(np.int64),
                "labels.indices": np.array([label for row in labels for label in row], np.uint16),
                "ids": np.array([f"US-{seed}{i:06d}-B2" for i in range(N)], "S16"),
            }
            for name, array in arrays.items():
                with out.write(f"{split}.{name}.npy", {"rows": N}) as path, path.open("wb") as file:
                    np.save(file, array)
        meta = {
            "u": u,
            "v": v,
            "tokenizer": tokenizer,
            "vocabulary": 256,
            "max_claims": None,
            "label_names": names,
            "labels_sha256": sha256_json(names),
            "splits": {split: {"rows": N} for split, N in rows.items()},
            "made_up": made_up,
        }
        out.write_text("meta.json", json.dumps(meta))
        out.finish()
    return folder
