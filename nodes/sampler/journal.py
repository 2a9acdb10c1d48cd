"""The chunk journal: after every chunk all that is needed to go on is safe on disk, and goes when the render is finished.

A journal is a folder. `state.safetensors` is its only word on what is complete: it is written beside, forced to disk and
renamed, after the frames and latents it counts are on disk themselves. Whatever those files hold beyond is cut off.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..preview.formats import VideoFileError
from ..preview.video_file import sync_folder
from .filelock import FileLock
from .fingerprint import Parts, differences, fingerprint_id

log = logging.getLogger("streamrender_h3")

FORMAT = 1
STATE, LOCK, FINISHED = "state.safetensors", "lock", "finished"
MAX_JOURNALS = 16
MAX_BYTES = 32 * 2**30
GRACE_SECONDS = 60.0  # a folder without state this young may be another process about to begin


@dataclass(frozen=True)
class Entry:
    """The last complete chunk: `tensors` and `facts` as they were committed."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


class Journal:
    """One render's folder. `durable` journals are forced to disk and found again; others are only a place to work in."""

    def __init__(
        self, folder: Path, parts: Parts, *, durable: bool, strict: bool = False, lock: FileLock | None = None
    ) -> None:
        """`strict`: an entry that turns out unusable is an error; else the render starts afresh."""
        self.folder, self.parts, self.durable, self.strict = folder, parts, durable, strict
        self._lock = lock
        self.entry: Entry | None = None

    def commit(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Make one more chunk complete. Raises `VideoFileError` when that cannot be written; the chunk before still counts."""
        if not self.durable:
            return
        from safetensors.torch import save

        about = {"format": FORMAT, "parts": self.parts, "facts": facts}
        words = json.dumps(about, separators=(",", ":"))
        data = save({name: tensor.contiguous() for name, tensor in tensors.items()}, {"journal": words})
        partial = self.folder / f"{STATE}.part"
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, self.folder / STATE)
            sync_folder(self.folder)
        except OSError as error:
            with suppress(OSError):
                partial.unlink()
            raise VideoFileError(
                f"cannot write the render's journal in {self.folder}: {error.strerror or error}. "
                "Free disk space and start the same render again, it goes on from here"
            ) from error

    def start_afresh(self) -> None:
        """Forget the entry and everything that belongs to it."""
        self.entry = None
        clear(self.folder)

    def remove(self) -> None:
        """Delete the folder; a state goes first, so that half a journal is never taken for one."""
        with suppress(OSError):
            (self.folder / STATE).unlink()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.release()
        shutil.rmtree(self.folder, ignore_errors=True)  # Windows deletes no file that is open, as the lock was

    def release(self) -> None:
        """Leave the folder to whoever comes next."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def finish(self) -> None:
        """The render is finished, but its folder stays until `remove_unless_used`: the host may still lose what it was given."""
        with suppress(OSError):
            (self.folder / FINISHED).touch()
        self.release()

    def remove_unless_used(self) -> None:
        """Delete a folder that was released, if nobody has taken it since."""
        with suppress(OSError):
            if self.folder.is_dir() and (lock := FileLock.take(self.folder / LOCK)):
                self._lock = lock
                self.remove()

    def close(self, *, finished: bool) -> None:
        """After the render: nothing is kept of a finished one, of one that cannot be found again, or of no chunk at all."""
        if finished or not self.durable or not (self.folder / STATE).is_file():
            self.remove()
        else:
            self.release()


def read_state(folder: Path) -> tuple[Parts, Entry] | None:
    """What a journal folder holds, or None when that is nothing usable."""
    from safetensors import SafetensorError, safe_open

    path = folder / STATE
    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})["journal"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about["format"] != FORMAT:
            return None
        return about["parts"], Entry(tensors, about["facts"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        log.warning("the journal in %s cannot be read and is not used: %s", folder, error)
        return None


def open_at(folder: Path, parts: Parts, *, resume: bool) -> Journal:
    """The journal of one output file. With `resume` an existing one must be of the same render, else `JournalError` names
    what differs; without, it is thrown away.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise VideoFileError(
            f"cannot make the journal folder {folder}: {error.strerror or error}. Choose an output in a folder you may write to"
        ) from error
    lock = FileLock.take(folder / LOCK)
    if lock is None:
        raise JournalError(
            f"another render writes to {folder.with_suffix('')} right now; wait for it or name another file"
        )
    journal = Journal(folder, parts, durable=True, strict=True, lock=lock)
    found = read_state(folder)
    if found and resume:
        if changed := differences(found[0], parts):
            journal.release()
            raise JournalError(
                f"the unfinished render in {folder} is another one: {', '.join(changed)} "
                f"{'differs' if len(changed) == 1 else 'differ'}. Render with the same inputs, or without --resume to start afresh"
            )
        journal.entry = found[1]
    elif found:
        log.warning("an unfinished render in %s is thrown away; --resume would have gone on with it", folder)
    if journal.entry is None:
        clear(folder)
    return journal


class JournalError(ValueError):
    """A journal that cannot be used; the message says why and what to do."""


def open_in(store: Path, parts: Parts, temporary: Callable[[], Path]) -> Journal:
    """The journal of this render in a folder of many, found by its fingerprint; never an error.

    Where another process renders the very same, or the store cannot be written, a folder from `temporary` takes its place.
    """
    try:
        sweep(store, keep=fingerprint_id(parts))
        folder = store / fingerprint_id(parts)
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock.take(folder / LOCK)
    except OSError as error:
        log.warning(
            "no journal can be kept in %s (%s); the render goes on without, an interruption loses it", store, error
        )
        return work_in(temporary(), parts)
    if lock is None:
        log.warning("the same render runs elsewhere already; this one keeps no journal")
        return work_in(temporary(), parts)
    journal = Journal(folder, parts, durable=True, lock=lock)
    found = read_state(folder)
    if found and not differences(found[0], parts):
        journal.entry = found[1]
    else:
        clear(folder)
        tell_near_misses(store, parts)
    return journal


def work_in(folder: Path, parts: Parts) -> Journal:
    """A folder to work in that nobody will look for."""
    folder.mkdir(parents=True, exist_ok=True)
    return Journal(folder, parts, durable=False)


def tell_near_misses(store: Path, parts: Parts) -> None:
    """One log line when there is an unfinished render of this clip that cannot be continued, and why."""
    for folder in journals(store):
        found = None if (folder / FINISHED).exists() else read_state(folder)
        if found and found[0].get("clip") == parts.get("clip") and (changed := differences(found[0], parts)):
            log.info(
                "an unfinished render of this clip is not continued, because of another %s; starting afresh",
                ", ".join(changed),
            )
            return


def journals(store: Path) -> list[Path]:
    """Journal folders, the longest unused first."""
    found = [path for path in store.iterdir() if path.is_dir()] if store.is_dir() else []
    return sorted(found, key=last_use)


def last_use(folder: Path) -> float:
    with suppress(OSError):
        return (folder / STATE if (folder / STATE).exists() else folder).stat().st_mtime
    return 0.0


def sweep(store: Path, keep: str, limit: int = MAX_JOURNALS, size: int = MAX_BYTES) -> None:
    """Remove what nobody can continue, then the longest unused journals beyond `limit` of them or `size` bytes."""
    others = [folder for folder in journals(store) if folder.name != keep]
    kept, total = 0, 0
    for folder in reversed(others):
        usable = (folder / STATE).is_file()
        if not usable and time.time() - last_use(folder) < GRACE_SECONDS:
            continue
        total += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        kept += 1
        if usable and kept < limit and total <= size:
            continue
        lock = FileLock.take(folder / LOCK)
        if lock is None:
            continue  # in use
        if usable:
            log.info("the unfinished render in %s is removed to make room", folder)
        Journal(folder, {}, durable=True, lock=lock).remove()


def clear(folder: Path) -> None:
    """Delete everything in a journal folder but its lock."""
    for path in folder.iterdir():
        if path.name == LOCK:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


def private_folder(parent: Path) -> Path:
    """A new name below `parent` that no other render has."""
    return parent / uuid.uuid4().hex
