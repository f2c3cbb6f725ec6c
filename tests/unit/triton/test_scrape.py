"""A page of metrics as Triton writes it, and what is read of it."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from lingbot_triton.triton.scrape import parse, scrape, total

PAGE = """\
# HELP lingbot_sessions_closed_total Sessions fully released
# TYPE lingbot_sessions_closed_total counter
lingbot_sessions_closed_total{reason="end"} 2
lingbot_sessions_closed_total{reason="a \\"b\\" \\\\ c} 5"} 3
# HELP lingbot_chunk_seconds Seconds per chunk
# TYPE lingbot_chunk_seconds histogram
lingbot_chunk_seconds_count 3
lingbot_chunk_seconds_sum 0.25
lingbot_chunk_seconds_bucket{le="0.5"} 2
lingbot_chunk_seconds_bucket{le="+Inf"} 3
# HELP nv_inference_count Number of inferences
# TYPE nv_inference_count counter
nv_inference_count{model="decode",version="1"} 7
"""


def test_series_have_the_names_under_which_the_server_exports_them() -> None:
    assert parse(PAGE) == {
        'lingbot_sessions_closed_total{reason="end"}': 2,
        r'lingbot_sessions_closed_total{reason="a \"b\" \\ c} 5"}': 3,
        "lingbot_chunk_seconds_count": 3,
        "lingbot_chunk_seconds_sum": 0.25,
        'lingbot_chunk_seconds_bucket{le="0.5"}': 2,
        'lingbot_chunk_seconds_bucket{le="+Inf"}': 3,
        'nv_inference_count{model="decode",version="1"}': 7,
    }


def test_a_family_is_summed_over_its_labels() -> None:
    assert total(parse(PAGE), "lingbot_sessions_closed_total") == 5
    assert total(parse(PAGE), "lingbot_sessions") == 0


@pytest.mark.parametrize(("prefix", "count"), [("lingbot_", 6), ("nv_", 1)])
def test_a_server_is_asked_for_the_series_with_a_prefix(prefix: str, count: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        series = pool.submit(scrape, f"127.0.0.1:{listener.getsockname()[1]}", prefix)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(65536).startswith(b"GET /metrics ")
            body = PAGE.encode()
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert len(series.result()) == count


def test_a_server_that_is_gone_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(OSError, match="refused"):
        scrape(address)
