"""llmgw: one small agent per machine turns bare metal into one LLM serving fleet."""

from importlib import metadata


def version() -> str:
    """The version of the installed package; `pyproject.toml` is where it is written."""
    try:
        return metadata.version("llmgw")
    except metadata.PackageNotFoundError:  # run from a copied tree
        return "0+uninstalled"
