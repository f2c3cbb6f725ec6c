"""The one way a session ends, whatever the reason."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any

from lingbot_triton.errors import StageDead, WorldError
from lingbot_triton.orchestrator.pipeline import Stages
from lingbot_triton.orchestrator.session import Session
from lingbot_triton.protocol import EndReason

log = logging.getLogger(__name__)

RELEASE_ORDER = ("decode", "denoise", "condition")
"""Stages in the order in which a session gives back what it holds there."""

RELEASE_SECONDS = 10.0
"""What a stage is given to let go; a stopped worker lets go when it goes on, or dies."""


async def end_session(stages: Stages, session: Session, reason: EndReason) -> None:
    """End `session` once, however many ask; returns when every stage that answers has let go.

    END lets the admitted chunks finish. Every other reason drops them; a call that a stage is in
    the middle of is waited for, since no stage lets go of a session while it works on it. What a
    stage that does not answer still holds is in `session.releases`.
    """
    if session.ending is None:
        session.ending = asyncio.get_running_loop().create_task(_end(stages, session, reason))
    await asyncio.shield(session.ending)


async def _end(stages: Stages, session: Session, reason: EndReason) -> None:
    session.closing = True
    # No chunk follows the admitted ones, so no condition after theirs is needed.
    session.conditions.last = session.controls.next_index - 1
    if reason is EndReason.END:
        await _settled(session.work, stop=lambda: session.failure is not None)
    session.end_reason = EndReason.FAILED if session.failure is not None else reason
    for task in list(session.work):
        task.cancel()
    await _settled(session.work)
    await _settled(session.calls)
    session.conditions.discard()
    for stage in RELEASE_ORDER:
        if stage in session.stages_open:
            await _release(stages, session, stage)


async def _release(stages: Stages, session: Session, stage: str) -> None:
    """Let `stage` let go of the session, or leave that going where its worker does not answer."""
    release = asyncio.get_running_loop().create_task(_close(stages, session, stage))
    session.releases.add(release)
    release.add_done_callback(session.releases.discard)
    if not session.late_at(stage):
        await asyncio.wait([release], timeout=RELEASE_SECONDS)
    if not release.done():
        log.warning("%s does not let go of session %s: it does not answer", stage, session.epoch)


async def _close(stages: Stages, session: Session, stage: str) -> None:
    while late := session.late_at(stage):
        await asyncio.wait(late)
    try:
        # A dead worker holds nothing, and takes seconds to say so.
        if not (isinstance(session.failure, StageDead) and session.failure.stage == stage):
            await stages.close(session, stage)
    except WorldError as error:
        # The state is gone with its worker, or the worker's own sweeper will drop it.
        log.warning("closing %s of session %s: %s", stage, session.epoch, error)
    except Exception:
        log.exception("closing %s of session %s met an internal error", stage, session.epoch)
    session.stages_open.discard(stage)


async def _settled(tasks: Collection[Any], stop: Callable[[], bool] = lambda: False) -> None:
    """Wait until there is none (each leaves the collection when it is done) or `stop()`."""
    while tasks and not stop():
        await asyncio.wait(list(tasks), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0)  # lets the done-callbacks empty it
