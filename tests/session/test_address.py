"""What is made of an address to ask the server that it names."""

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmgw.config.address import Address, parse
from llmgw.session.address import authority, credentials, path


@given(st.text(max_size=12), st.text(max_size=12), st.text(max_size=12))
@example("", "", "gpu/ü")
@example("ä:ö", "bücher.example", "")
@example("%ff", "h", "\u2028%C3%BC")
def test_an_address_that_is_accepted_can_be_asked(
    userinfo: str, host: str, tail: str
) -> None:
    """A control plane names servers too: one that cannot be asked is no end of ours."""
    address = parse(f"http://{userinfo}{'@' * bool(userinfo)}{host or 'h'}/{tail}")
    if isinstance(address, Address):
        h11.Connection(h11.CLIENT).send(
            h11.Request(
                method="GET",
                target=path(address) + "/v1/leader",
                headers=[("host", authority(address)), *credentials(address)],
            )
        )


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("", ""),
        ("/", ""),
        ("/gpu/", "/gpu"),
        ("/gpu/ü", "/gpu/%C3%BC"),
        ("/gpu/%C3%BC", "/gpu/%C3%BC"),
        ("/a~b;c=d,e@f:g!&'()*+", "/a~b;c=d,e@f:g!&'()*+"),
    ],
)
def test_a_path_is_asked_for_as_it_is_written(written: str, asked: str) -> None:
    address = parse(f"http://h{written}")
    assert isinstance(address, Address)
    assert path(address) == asked
