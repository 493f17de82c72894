"""Where fetched weights land: as written, else the first folder that takes them.

The first of model_dirs is often a Lustre or NFS tree that this node may only read
(T80). It stays a place to find weights in; what is fetched lands in the next.
"""

from llmgw.config.load import Loaded
from llmgw.discovery.node import Machine
from llmgw.errors import Fault

_FIX = "set weights_cache to a folder on a local disk"


def landing(found: Loaded, machine: Machine) -> str | Fault:
    """The folder; a fault if every one is known to take nothing.

    One that is not there, or does not answer, may be mounted later: it is taken where
    no other takes files, and whoever fetches says what is wrong with it.
    """
    config = found.config
    assert config.weights_cache, "normalising has set it"
    if "weights_cache" in found.places or "model_dirs" not in found.places:
        return config.weights_cache
    silent: list[str] = []
    for path in config.model_dirs:
        try:
            if machine.takes_files(path):
                return path
        except OSError:
            silent.append(path)
    if silent:
        return silent[0]
    what = "none of model_dirs can be written to, and so nothing can be fetched"
    return Fault(
        file=found.file,
        line=found.places.get("model_dirs"),
        key="weights_cache",
        what=what,
        fix=_FIX,
    )
