"""What an error may show of an address."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import without_password


@given(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=4).filter(lambda text: "***" not in text))
def test_a_password_is_never_shown(password: str) -> None:
    """Neither in the address nor where a driver repeats it, as it was written or as it was meant."""
    for address in (
        f"https://me:{quote(password, safe='')}@secure.org/a",
        f"db://secure.org/a?password={quote(password, safe='')}",
    ):
        told = without_password(f"cannot open {address}: {password!s} refused", address)
        assert f": {password} refused" not in told
        assert f":{quote(password, safe='')}@" not in told
        assert "secure.org/a" in told or password in "secure.org/a"


@pytest.mark.parametrize(
    "text", ["http://127.0.0.1:5000/#/experiments/1", "sqlite:////home/a:b.db", "postgresql://me@h/db"]
)
def test_an_address_without_one_stays(text: str) -> None:
    assert without_password(text, text) == text


def test_a_password_with_a_sign_that_ends_one() -> None:
    assert without_password("http://me:a@b@host/x") == "http://me:***@host/x"
