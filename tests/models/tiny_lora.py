"""An adapter for the tiny model: it changes what the model says.

python -m tests.models.tiny_lora lora.gguf
"""

import sys
from pathlib import Path

import gguf
import numpy as np

WIDTH, RANK, SEED = 64, 4, 11


def write(path: Path) -> None:
    """A few kilobytes: the output projection of the first layer, in two factors."""
    dice = np.random.default_rng(SEED)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(RANK))
    for part in ("attn_output", "attn_v"):
        for side, shape in (("a", (RANK, WIDTH)), ("b", (WIDTH, RANK))):
            drawn = dice.standard_normal(shape, dtype=np.float32)
            writer.add_tensor(f"blk.0.{part}.weight.lora_{side}", drawn)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
