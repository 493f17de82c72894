"""Which GPUs an engine sees: those it was given, and no other."""

from llmgw.engines.place import Place
from llmgw.wire import Replica


def visible(replica: Replica, place: Place) -> dict[str, str]:
    """CUDA's variables; none at all are visible to a replica without GPUs.

    A program built for CUDA opens a context on every card it sees, hundreds of MiB
    each, even when it is told to compute on the CPU. By number where all are known,
    in the order that NVML counts them in: Python's engines parse the list themselves,
    and some of their versions take nothing but numbers.
    """
    gpus = [
        str(place.gpus[uuid]) if uuid in place.gpus else uuid for uuid in replica.gpus
    ]
    if not all(uuid in place.gpus for uuid in replica.gpus):
        gpus = list(replica.gpus)
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
    }
