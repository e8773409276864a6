"""The tasks of the Celery scenario; its broker is in the environment, as a worker has it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import Celery

app = Celery("scenario", broker=os.environ["SCENARIO_BROKER"], backend="rpc://")
app.conf.update(
    worker_send_task_events=True,
    task_send_sent_event=True,
    task_acks_late=True,
    worker_prefetch_multiplier=2,
    broker_connection_retry_on_startup=True,
    task_default_queue=os.environ.get("SCENARIO_QUEUE", "celery"),
    worker_hijack_root_logger=False,
    event_queue_expires=60,
)


@app.task
def add(one: int, two: int) -> int:
    return one + two


@app.task(bind=True, max_retries=3)
def stubborn(self: Any) -> int:
    """Succeeds at the third try."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


@app.task(ignore_result=True)
def note(queue: str) -> None:
    """Note down where it came from."""
    with Path(os.environ["SCENARIO_NOTES"]).open("a") as notes:
        notes.write(f"{queue}\n")
