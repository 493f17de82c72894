"""llmgw: one small agent per machine turns bare metal into one LLM serving fleet."""


def version() -> str:
    """The version of the installed package; `pyproject.toml` is where it is written."""
    # Takes longer to import than a probe's whole child process runs (40 ms).
    from importlib import metadata

    try:
        return metadata.version("llmgw")
    except metadata.PackageNotFoundError:  # run from a copied tree
        return "0+uninstalled"
