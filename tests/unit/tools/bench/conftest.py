from __future__ import annotations

import pytest

from tests.unit.client.fake_server import FakeServer


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()
