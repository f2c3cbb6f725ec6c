"""Thread pools that have all their threads from the start."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier


def thread_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool of exactly so many threads.

    Python's starts one more whenever it finds none idle, so a server's number of threads would
    go on growing for as long as its load meets new coincidences.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    everyone = Barrier(threads + 1)
    for _ in range(threads):
        pool.submit(everyone.wait)
    everyone.wait()
    return pool
