"""A model of random weights that a real llama-server loads and serves.

The `llama` architecture with a vocabulary of bytes, so that any text can be read, a
ChatML template, and seeded weights: the same size gives the same file. Only printable
pieces are ever answered and never an end, so that an answer has exactly as many tokens
as were asked for. (Random byte tokens are no valid UTF-8: llama-server answers 500.)

    python -m tests.models.tiny_gguf tiny.gguf
"""

import sys
from pathlib import Path

import gguf
import numpy as np

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
WORDS = ("the", "of", "and", "to")
HEADS = 4
SEED = 7


def vocabulary() -> list[tuple[str, float, gguf.TokenType]]:
    """Text, score and kind of every token; as many as a multiple of 32."""
    kinds = gguf.TokenType
    tokens = [(text, 0.0, kinds.CONTROL) for text in SPECIAL]
    tokens[0] = (SPECIAL[0], 0.0, kinds.UNKNOWN)
    tokens += [(f"<0x{byte:02X}>", 0.0, kinds.BYTE) for byte in range(256)]
    pieces = ["\u2581", *map(chr, range(33, 127)), *(f"\u2581{word}" for word in WORDS)]
    tokens += [(text, -1.0 - rank, kinds.NORMAL) for rank, text in enumerate(pieces)]
    spare = -len(tokens) % 32
    return tokens + [(f"<spare{n}>", -1e3, kinds.UNUSED) for n in range(spare)]


def write(path: Path, *, layers: int = 2, width: int = 64, context: int = 2048) -> None:
    """A quarter of a megabyte as it stands; 25 layers of 1024 are 500."""
    tokens = vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny-random")
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(width // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([text for text, _, _ in tokens])
    writer.add_token_scores([score for _, score, _ in tokens])
    writer.add_token_types([int(kind) for _, _, kind in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(4)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHATML)
    _add_tensors(writer, tokens, layers, width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tensors(
    writer: gguf.GGUFWriter,
    tokens: list[tuple[str, float, gguf.TokenType]],
    layers: int,
    width: int,
) -> None:
    dice = np.random.default_rng(SEED)

    def random(name: str, rows: int, columns: int) -> None:
        drawn = dice.standard_normal((rows, columns), dtype=np.float32) * 0.05
        writer.add_tensor(f"{name}.weight", drawn.astype(np.float16))

    def ones(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(width, dtype=np.float32))

    random("token_embd", len(tokens), width)
    for layer in range(layers):
        ones(f"blk.{layer}.attn_norm")
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            random(f"blk.{layer}.{part}", width, width)
        ones(f"blk.{layer}.ffn_norm")
        random(f"blk.{layer}.ffn_gate", 2 * width, width)
        random(f"blk.{layer}.ffn_up", 2 * width, width)
        random(f"blk.{layer}.ffn_down", width, 2 * width)
    ones("output_norm")
    # A row of zeros is a logit of 0; the rows of what may be said are wide, so that
    # the best of them is far above it.
    said = dice.standard_normal((len(tokens), width), dtype=np.float32)
    said[[kind != gguf.TokenType.NORMAL for _, _, kind in tokens]] = 0.0
    writer.add_tensor("output.weight", said.astype(np.float16))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
