from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from lingbot_triton.settings import EMBEDDED_CHECKPOINT, Settings
from lingbot_triton.triton import serve
from lingbot_triton.triton.server import ServerConfig, ServerError, ServerProcess

FREE = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ServerConfig, Settings]]:
    """What `serve` would have started."""
    starts: list[tuple[ServerConfig, Settings]] = []
    monkeypatch.setattr(serve, "serve", lambda *given: starts.append(given))
    return starts


def _refusal(*arguments: str) -> str:
    result = CliRunner().invoke(serve.main, [*FREE, *arguments])
    assert result.exit_code == 1
    return result.stderr


def test_options_become_the_variables_of_the_settings(
    started: list[tuple[ServerConfig, Settings]], tmp_path: Path
) -> None:
    options = ["--device=cuda:1", "--dtype=bfloat16", "--max-sessions=3", "--prefetch-depth=1"]
    simulated = ["--simulated=seed-4xh100", "--scale=0.5", f"--checkpoint={tmp_path}"]
    result = CliRunner().invoke(serve.main, [*FREE, *options, *simulated])
    assert result.exit_code == 0, result.output
    [(config, settings)] = started
    assert settings == Settings.load(environ=config.environment)
    assert settings == Settings(
        checkpoint=str(tmp_path),
        device="cuda:1",
        dtype="bfloat16",
        max_sessions=3,
        prefetch_depth=1,
        simulated="seed-4xh100",
        simulated_scale=0.5,
    )


def test_without_options_nothing_is_decided_here(
    started: list[tuple[ServerConfig, Settings]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LINGBOT_DEVICE")
    monkeypatch.setenv("LINGBOT_MAX_SESSIONS", "5")
    CliRunner().invoke(serve.main, FREE)
    [(config, settings)] = started
    assert config.environment == {}
    assert config.host == "127.0.0.1"
    assert settings == Settings(max_sessions=5)


def test_tritons_own_options_are_passed_on(
    started: list[tuple[ServerConfig, Settings]],
) -> None:
    CliRunner().invoke(serve.main, [*FREE, "-v", "--", "--rate-limit=off"])
    [(config, _)] = started
    assert config.arguments == ("--rate-limit=off",)
    assert config.echo


def test_a_relative_checkpoint_is_made_absolute(
    started: list[tuple[ServerConfig, Settings]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EMBEDDED_CHECKPOINT.parent)
    CliRunner().invoke(serve.main, [*FREE, f"--checkpoint={EMBEDDED_CHECKPOINT.name}"])
    [(_, settings)] = started
    assert settings.embedded


def test_a_missing_checkpoint_is_refused() -> None:
    assert _refusal("--checkpoint=/nowhere") == "Error: checkpoint /nowhere is not a folder\n"


def test_a_setting_out_of_range_is_refused() -> None:
    assert "max_sessions is 99; it must be 1 to 64" in _refusal("--max-sessions=99")


def test_a_taken_port_is_refused_with_the_option_to_change() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert _refusal(f"--grpc-port={port}") == (
            f"Error: port {port} of 127.0.0.1 cannot be listened on; "
            "choose another with --grpc-port\n"
        )


def test_a_server_that_does_not_start_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ServerError(
            "tritonserver stopped, since it could not load\nmodel denoise: no weights"
        )

    monkeypatch.setattr(serve, "serve", refuse)
    assert _refusal() == (
        "Error: tritonserver stopped, since it could not load\nmodel denoise: no weights\n"
    )


def test_the_ready_line_tells_what_is_served() -> None:
    server = ServerProcess(ServerConfig(http_port=1, grpc_port=2, metrics_port=3))
    addresses = "ready: grpc 127.0.0.1:2 http 127.0.0.1:1 metrics 127.0.0.1:3"
    simulated = Settings(simulated="seed-4xh100", simulated_scale=0.25)
    assert serve.ready_line(server, Settings()) == f"{addresses} checkpoint embedded"
    assert serve.ready_line(server, Settings(checkpoint="/w")) == f"{addresses} checkpoint /w"
    assert serve.ready_line(server, simulated) == f"{addresses} simulated seed-4xh100 × 0.25"
