"""The keys of weights: where they are fetched from, and how."""

from typing import Annotated

from llmgw.config.describe import Secret, Section, Size, key


class Mirror(Section, frozen=True, kw_only=True):
    """A place that is asked for weights before the public one."""

    url: Annotated[
        str,
        key("Where it answers.", example="https://mirror.example/weights", kind="url"),
    ]
    ca_file: Annotated[
        Secret | None,
        key(
            "Trusted instead of the system's.",
            example="/etc/llmgw/mirror/ca.crt",
            kind="path",
        ),
    ] = None
    cert_file: Annotated[
        Secret | None,
        key(
            "Certificate shown to the mirror.",
            example="/etc/llmgw/mirror/node.crt",
            kind="path",
        ),
    ] = None
    key_file: Annotated[
        Secret | None,
        key("Its private key.", example="/etc/llmgw/mirror/node.key", kind="path"),
    ] = None


class Weights(Section, frozen=True, kw_only=True):
    """How weights are fetched."""

    connections: Annotated[
        int, key("Connections of one fetch, over all its files.", low=1, high=64)
    ] = 8
    rate_limit: Annotated[
        Size | None,
        key("Most bytes a second, over all fetches.", example="500MB", low=1024),
    ] = None
    quiet_hours: Annotated[
        str | None,
        key(
            "Local time of day in which nothing is fetched.",
            example="08:00-18:00",
            pattern="[0-2][0-9]:[0-5][0-9]-[0-2][0-9]:[0-5][0-9]",
            kind="quiet_hours",
        ),
    ] = None
    cache_limit: Annotated[
        Size | None,
        key(
            "Above this size, weights not used for longest leave weights_cache. Unset: "
            "nothing is ever removed.",
            example="2TiB",
            low=1024 * 1024,
        ),
    ] = None
    mirrors: Annotated[
        tuple[Mirror, ...],
        key(
            "Places asked before the public one, in order.",
            example=[{"url": "https://mirror.example/weights"}],
        ),
    ] = ()
    hf_token_file: Annotated[
        Secret | None,
        key(
            "A file with a Hugging Face token, for gated models.",
            example="/etc/llmgw/hf-token",
            kind="path",
        ),
    ] = None
    hf_endpoint: Annotated[
        str | None,
        key(
            "Another host that answers as huggingface.co does.",
            example="https://hf-mirror.example",
            kind="url",
        ),
    ] = None
