"""Thread pools that have all their threads from the start."""

from __future__ import annotations

import threading

from lingbot_triton.triton.threads import thread_pool


def test_a_pool_has_all_its_threads_before_any_work_and_never_more() -> None:
    before = threading.active_count()
    pool = thread_pool(3, "test")
    try:
        assert threading.active_count() == before + 3
        names = {thread.name for thread in threading.enumerate()}
        assert {"test_0", "test_1", "test_2"} <= names
        assert [pool.submit(pow, 2, n).result() for n in range(20)] == [2**n for n in range(20)]
        assert threading.active_count() == before + 3
    finally:
        pool.shutdown()
    assert threading.active_count() == before
