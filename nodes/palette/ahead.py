"""Work on the frames of a stream in a few threads, results in order, little held at a time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

THREADS = min(4, os.cpu_count() or 1)


def in_order(tasks: Iterable[Callable[[], T]], threads: int = THREADS) -> Iterator[T]:
    """The results of `tasks`, of which `threads` run at once; the same task object given again in a row runs once.

    An error in making a task is raised after the results of the tasks before it.
    """
    if threads < 2:
        yield from _one_by_one(tasks)
        return
    waiting: deque[Future[T]] = deque()
    failure: Exception | None = None
    source = iter(tasks)
    previous: Callable[[], T] | None = None
    with ThreadPoolExecutor(threads, thread_name_prefix="palette") as pool:
        try:
            while True:
                try:
                    task = next(source, None)
                except Exception as error:
                    task, failure = None, error
                if task is None:
                    break
                waiting.append(waiting[-1] if task is previous and waiting else pool.submit(task))
                previous = task
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
    if failure is not None:
        raise failure


def _one_by_one(tasks: Iterable[Callable[[], T]]) -> Iterator[T]:
    previous: Callable[[], T] | None = None
    for task in tasks:
        if task is not previous:
            previous, result = task, task()
        yield result
