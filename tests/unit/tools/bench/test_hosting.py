from __future__ import annotations

import pytest

from lingbot_tools.bench.hosting import Stages, Target
from lingbot_triton.settings import Settings

LOG = 'I1129 17:51:29 1 a] "fine"\nE1129 17:51:29 1 a] "denoise failed"\nsomething else\n'


def test_an_error_is_explained_in_the_servers_own_words() -> None:
    target = Target("127.0.0.1:1", output=lambda: LOG)
    assert target.explain(["broken"]) == ["broken", 'server: E1129 17:51:29 1 a] "denoise failed"']


def test_where_nothing_failed_the_servers_log_is_left_alone() -> None:
    assert Target("127.0.0.1:1", output=lambda: LOG).explain([]) == []


def test_a_simulated_server_has_the_profile_and_its_scale() -> None:
    settings = Settings.load(environ=Stages("seed-4xh100", 0.5).environment(max_sessions=3))
    assert settings.simulated == "seed-4xh100"
    assert (settings.simulated_scale, settings.max_sessions) == (0.5, 3)


@pytest.mark.parametrize(("name", "embedded"), [("tiny", True), ("/some/weights", False)])
def test_a_computing_server_is_never_simulated(name: str, embedded: bool) -> None:
    environment = Stages(checkpoint=name).environment()
    settings = Settings.load(environ={"LINGBOT_SIMULATED": "seed-4xh100"} | environment)
    assert settings.simulated == ""
    assert settings.embedded is embedded
