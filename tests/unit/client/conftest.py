"""Runs `async def` tests, and gives each a server in memory."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from lingbot_client import WorldClient

from tests.unit.client.fake_server import FakeServer

DEADLINE = 60.0
"""Seconds after which a test that waits for ever fails."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(test(**arguments), DEADLINE))
    return True


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def client(server: FakeServer) -> WorldClient:
    return WorldClient(transport=server)
