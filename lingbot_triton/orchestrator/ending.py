"""The one way a session ends, whatever the reason."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any

from lingbot_triton.errors import StageDead, WorldError
from lingbot_triton.orchestrator.interfaces import Stages
from lingbot_triton.orchestrator.session import Session
from lingbot_triton.protocol import EndReason
from lingbot_triton.stage import CLOSE, SESSION_STAGES, Stage

log = logging.getLogger(__name__)

RELEASE_ORDER = tuple(sorted(SESSION_STAGES, key=lambda stage: stage.release_order))

RELEASE_SECONDS = 10.0
"""How long a stage's release is awaited; a stopped worker releases when it goes on, or dies."""


async def end_session(stages: Stages, session: Session, reason: EndReason) -> None:
    """End `session` once, however often it is called; returns when every stage that responds has
    released it.

    END lets the admitted chunks finish. Every other reason drops them; a call that a stage is in
    the middle of is awaited, since no stage releases a session while it works on it. Releases
    that a stage has not done yet are in `session.end.releases`.
    """
    if session.end.task is None:
        session.end.task = asyncio.get_running_loop().create_task(_end(stages, session, reason))
    await asyncio.shield(session.end.task)


async def _end(stages: Stages, session: Session, reason: EndReason) -> None:
    end = session.end
    end.closing = True
    # No chunk follows the admitted ones, so no condition after theirs is needed.
    session.conditions.last = session.controls.next_index - 1
    if reason is EndReason.END:
        await _wait_all_done(session.tasks, stop=lambda: end.failure is not None)
    end.reason = EndReason.FAILED if end.failure is not None else reason
    for task in list(session.tasks):
        task.cancel()
    await _wait_all_done(session.tasks)
    await _wait_all_done(session.calls.pending)
    session.conditions.discard()
    session.outbox.discard()
    for stage in RELEASE_ORDER:
        if stage.name in session.held_stages:
            await _release(stages, session, stage)


async def _release(stages: Stages, session: Session, stage: Stage) -> None:
    """Release the session at `stage`, or leave that going where the stage does not respond."""
    release = asyncio.get_running_loop().create_task(_close(stages, session, stage))
    session.end.releases.add(release)
    release.add_done_callback(session.end.releases.discard)
    if not session.calls.overdue_at(stage.name):
        await asyncio.wait([release], timeout=RELEASE_SECONDS)
    if not release.done():
        log.warning(
            "%s has not released session %s: it does not respond",
            stage.name,
            session.correlation_id,
        )


async def _close(stages: Stages, session: Session, stage: Stage) -> None:
    while overdue := session.calls.overdue_at(stage.name):
        await asyncio.wait(overdue)
    failure = session.end.failure
    try:
        # A dead worker holds nothing, and takes seconds to say so.
        if not (isinstance(failure, StageDead) and failure.stage == stage.name):
            await stages.call(session, stage, CLOSE, {}, {})
    except WorldError as error:
        # The state is gone with its worker, or the worker drops it as stale later.
        log.warning("closing %s of session %s: %s", stage.name, session.correlation_id, error)
    except Exception:
        log.exception(
            "closing %s of session %s met an internal error", stage.name, session.correlation_id
        )
    session.held_stages.discard(stage.name)


async def _wait_all_done(
    tasks: Collection[asyncio.Future[Any]], stop: Callable[[], bool] = lambda: False
) -> None:
    """Wait until the collection, which each task leaves when it is done, is empty, or `stop()`."""
    while tasks and not stop():
        await asyncio.wait(list(tasks), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0)  # lets the done-callbacks empty it
