"""What the doctor says of servers in memory, and of things that are no such server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from lingbot_client import WorldClient
from lingbot_client.doctor import Finding, Level, examine
from lingbot_client.errors import ServerUnavailable
from lingbot_client.transport import Model, Request

from tests.unit.client.fake_server import (
    PARTS,
    READY,
    FakeServer,
    FakeStream,
    Reaction,
    complain,
    hang_up,
    ignore,
    outputs,
    refuse,
)
from tests.unit.orchestrator import virtual_time

STAGES = ("prompt", "condition", "denoise", "decode")
MODELS = ("orchestrator", *STAGES)


@pytest.fixture(autouse=True)
def _all_models(server: FakeServer) -> None:
    models = tuple(Model(name, "1", ready=True) for name in MODELS)
    server.info = replace(server.info, version="2.51.0", models=models, stages=STAGES)


async def look(client: WorldClient, **options: Any) -> list[Finding]:
    return [finding async for finding in examine(client, "127.0.0.1:1", **options)]


def wrong(findings: list[Finding]) -> str:
    """The one thing that is wrong, which is the last that is said."""
    assert [f.level is Level.WRONG for f in findings] == [False] * (len(findings) - 1) + [True]
    return findings[-1].text


def notes(findings: list[Finding]) -> list[str]:
    return [finding.text for finding in findings if finding.level is Level.NOTE]


async def test_a_good_server_is_good(server: FakeServer, client: WorldClient) -> None:
    findings = await look(client)
    assert {finding.level for finding in findings} <= {Level.GOOD, Level.NOTE}
    assert [f.what for f in findings if f.level is Level.GOOD] == [
        *("server", "models", "session", "chunk 0", "chunk 1", "session")
    ]
    assert server.chunk_indices == [0, 1]


async def test_a_simulated_server_is_called_so(client: WorldClient) -> None:
    assert "simulated" in notes(await look(client))[0]


async def test_an_old_server_is_noted(server: FakeServer, client: WorldClient) -> None:
    server.info = replace(server.info, version="2.40.0")
    assert "tested with 2.51 and newer, not 2.40.0" in notes(await look(client))


async def test_a_slow_first_chunk_is_noted(server: FakeServer, client: WorldClient) -> None:
    server.reactions[0] = timed(5000.0)
    assert any("the first chunk took 5.000 s" in note for note in notes(await look(client)))


async def test_a_slow_second_chunk_is_noted(server: FakeServer, client: WorldClient) -> None:
    server.reactions[1] = timed(900.0, condition_wait=300.0)
    said = notes(await look(client))
    assert "slower than it plays: 0.75 s of video take 0.900 s" in said
    assert "the second control waited 0.300 s for its condition" in said


def timed(milliseconds: float, condition_wait: float = 0.0) -> Reaction:
    """Answerer a control as always, but with other times."""

    def react(stream: FakeStream, request: Request) -> None:
        server: FakeServer = stream._server
        respond = stream.respond

        def slower(request: Request, tensors: Any) -> None:
            index = int(tensors["chunk_index"][0])
            part = int(tensors["frames"][0, 0, 0, 0]) - 30 * index
            info = {
                "part": part,
                "parts": PARTS,
                "ms": {"since_acceptance": milliseconds, "condition_wait": condition_wait},
            }
            respond(request, tensors | {"info": outputs("FRAMES", info=info)["info"]})

        stream.respond = slower  # type: ignore[method-assign]
        try:
            server._control(stream, request, int(request.inputs["chunk_index"][0]))
        finally:
            stream.respond = respond  # type: ignore[method-assign]
        stream.end(request)

    return react


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ((), "no model 'orchestrator': this Triton server serves nothing"),
        (("resnet",), "no model 'orchestrator': this Triton server serves resnet"),
        (("orchestrator", "prompt", "decode"), "condition and denoise not loaded"),
    ],
)
async def test_models_that_are_not_there_are_named(
    server: FakeServer, client: WorldClient, names: tuple[str, ...], sentence: str
) -> None:
    models = tuple(Model(name, "1", ready=True) for name in names)
    server.info = replace(server.info, models=models)
    assert wrong(await look(client)).startswith(sentence)


async def test_a_model_that_is_not_ready_is_named(server: FakeServer, client: WorldClient) -> None:
    models = tuple(Model(name, "1", ready=name != "decode") for name in MODELS)
    server.info = replace(server.info, models=models)
    assert wrong(await look(client)).startswith("decode not ready")


async def test_a_stage_that_this_client_never_heard_of_is_looked_for(
    server: FakeServer, client: WorldClient
) -> None:
    server.info = replace(server.info, stages=(*STAGES, "upscale"))
    assert wrong(await look(client)).startswith("upscale not loaded")


async def test_a_server_that_is_not_live_is_named(server: FakeServer, client: WorldClient) -> None:
    server.info = replace(server.info, live=False)
    assert "says that it is not live" in wrong(await look(client))


@pytest.mark.parametrize(
    ("when", "reaction", "sentence"),
    [
        ("start", refuse("SESSION_LIMIT", "8 are open"), "the server is full: 8 are open"),
        ("start", refuse("SHUTTING_DOWN", "stopping"), "the server is about to stop: stopping"),
        ("start", refuse("BAD_REQUEST", "what?"), "do client and server fit together? what?"),
        ("start", complain("unknown input 'x'"), "fit together? unknown input 'x'"),
        (0, refuse("STAGE_FAILED", "denoise failed"), "does not work: denoise failed"),
        (0, refuse("STAGE_TIMEOUT", "decode is late"), "does not work: decode is late"),
        (1, refuse("SESSION_FAILED", "broken"), "does not work: broken"),
        (1, hang_up, "the connection broke in the middle of a session"),
    ],
)
async def test_a_session_that_goes_wrong_is_explained(
    server: FakeServer,
    client: WorldClient,
    when: str | int,
    reaction: Reaction,
    sentence: str,
) -> None:
    server.reactions[when] = reaction
    assert sentence in wrong(await look(client))


@pytest.mark.parametrize(
    ("when", "sentence"),
    [
        ("start", "the opening of a session is not answered within 9 s"),
        (1, "chunk 1 is not answered within 9 s"),
    ],
)
def test_a_stage_that_hangs_is_named(server: FakeServer, when: str | int, sentence: str) -> None:
    server.reactions[when] = ignore
    findings = virtual_time.run(look(WorldClient(transport=server), patience=9))
    assert sentence in wrong(findings)


async def test_an_end_without_a_response_is_wrong(server: FakeServer, client: WorldClient) -> None:
    server.reactions["end"] = refuse("NO_SESSION")
    assert wrong(await look(client)) == "the session's END was not answered"


async def test_frames_of_one_colour_are_wrong_unless_simulated(
    server: FakeServer, client: WorldClient
) -> None:
    def start(stream: FakeStream, request: Request) -> None:
        server._next[request.sequence_id] = server._frames[request.sequence_id] = 0
        stream.respond(request, outputs("READY", info=READY | {"simulated": False}))
        stream.end(request)

    def grey(stream: FakeStream, request: Request) -> None:
        info = {"part": 0, "parts": 1}
        frames = np.full((9, 16, 24, 3), 128, np.uint8)
        tensors = outputs("FRAMES", chunk_index=0, frame_index=0, frames=frames, info=info)
        stream.respond(request, tensors)
        stream.end(request)

    server.reactions |= {"start": start, 0: grey}
    assert "of one colour" in wrong(await look(client))


async def test_a_chunk_with_frames_missing_is_wrong(
    server: FakeServer, client: WorldClient
) -> None:
    def short(stream: FakeStream, request: Request) -> None:
        server._part(stream, request, 0, PARTS - 1)
        stream.end(request)

    server.reactions[0] = short
    assert "chunk 0 came with 4 frames instead of chunk 0 with 9" in wrong(await look(client))


async def test_how_many_frames_a_chunk_has_is_the_servers_word(
    server: FakeServer, client: WorldClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(READY, "chunk_latent_frames", 4)
    assert "9 frames instead of chunk 0 with 13" in wrong(await look(client))


async def test_a_server_that_does_not_answer_is_looked_into(
    server: FakeServer, client: WorldClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable() -> Any:
        raise ServerUnavailable("no")

    monkeypatch.setattr(server, "describe", unavailable)
    assert wrong(await look(client)).startswith("nothing listens at 127.0.0.1:1")
