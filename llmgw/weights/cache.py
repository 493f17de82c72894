"""The folder that weights are fetched into, and what lies complete in it."""

import os
from collections.abc import Sequence
from pathlib import Path

from llmgw.errors import WeightsError

DEFAULT = Path("/var/lib/llmgw-weights")


def choose(weights_cache: Path | None, model_dirs: Sequence[Path]) -> Path:
    """Where fetched weights land: as written, else the first folder that takes them.

    The first is often a Lustre or NFS tree that this node may only read (T80). It
    stays a place to find weights in; what is fetched lands in the next.
    """
    if weights_cache is not None:
        return weights_cache
    for folder in model_dirs:
        if _takes_files(folder):
            return folder
    if model_dirs:
        raise WeightsError(
            "none of them can be written to, and so nothing can be fetched",
            where=f"model_dirs: {', '.join(map(str, model_dirs))}",
            fix="set weights_cache to a folder on a local disk",
        )
    return DEFAULT


def _takes_files(folder: Path) -> bool:
    """Whether a file can be made in *folder*, or the folder itself be made."""
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    # As root, access(2) says yes to whatever mode; a read-only mount it does notice.
    return os.access(nearest, os.W_OK | os.X_OK)
