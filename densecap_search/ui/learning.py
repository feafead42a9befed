"""The lesson of a page: heads tuned on its answers in the background, taken or thrown away when somebody says so."""

from __future__ import annotations

import re
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from densecap_search.collection.feedback import feedback_file
from densecap_search.errors import DensecapError
from densecap_search.workflows.background import Background
from densecap_search.workflows.learn import (
    Answers,
    Lesson,
    check_lesson,
    count_answers,
    learn,
    lessons_folder,
    take,
)

Stage = Literal["none", "learning", "learned", "taking", "taken"]
_RUN = re.compile(r"run-(\d+)")


@dataclass
class Learning:
    """One lesson at a time. folder: of the index. problem: why the last step did not come to its end, in a sentence."""

    folder: Path
    stage: Stage = "none"
    work: Background | None = None
    lesson: Lesson | None = None
    problem: str = ""
    _counted: tuple[tuple[int, int], Answers] = ((0, 0), Answers(0, 0))  # which file, what it held
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def start(self) -> None:
        """Begin a lesson. Errors: DensecapError where one runs or waits to be judged, or there is nothing to learn."""
        with self._lock:
            if self.stage in ("learning", "taking"):
                raise DensecapError("a lesson is being learned already; wait, or stop it")
            if self.stage == "learned":
                raise DensecapError("the last lesson has not been judged yet; use it or throw it away first")
            check_lesson(self.folder)
            run = self._next_run()
            self.stage, self.problem, self.lesson = "learning", "", None
            self.work = Background.start(learn, self.folder, run, then=lambda work: self._learned(work, run))

    def cancel(self) -> None:
        """Stop what runs. A generation that was not finished is none; its lesson can be taken again."""
        with self._lock:
            work = self.work if self.stage in ("learning", "taking") else None
        if work is None:
            raise DensecapError("nothing is being learned")
        work.stop()  # without the lock, which its end takes

    def take(self) -> None:
        """Begin to encode the index by the model of the lesson."""
        with self._lock:
            lesson = self._judged()
            self.stage, self.problem = "taking", ""
            self.work = Background.start(take, self.folder, lesson.run, then=self._taken)

    def discard(self) -> None:
        """Remove the model of the lesson."""
        with self._lock:
            shutil.rmtree(self._judged().run, ignore_errors=True)
            self.stage, self.lesson, self.work, self.problem = "none", None, None, ""

    def close(self) -> None:
        """The server ends: so does what it began."""
        if self.work is not None and self.work.ended is None:
            self.work.stop()

    def _judged(self) -> Lesson:
        if self.stage != "learned" or self.lesson is None:
            raise DensecapError("there is no lesson to judge; begin one first")
        return self.lesson

    def _learned(self, work: Background, run: Path) -> None:
        with self._lock:
            if work.ended == "done":
                self.stage, self.lesson = "learned", work.result
                return
            shutil.rmtree(run, ignore_errors=True)
            self.stage, self.problem = "none", "" if work.ended == "stopped" else work.said

    def _taken(self, work: Background) -> None:
        with self._lock:
            self.stage = "taken" if work.ended == "done" else "learned"
            self.problem = work.said if work.ended == "failed" else ""

    def _next_run(self) -> Path:
        folder = lessons_folder(self.folder)
        numbers = [int(found[1]) for path in folder.glob("run-*") if (found := _RUN.fullmatch(path.name))]
        run = folder / f"run-{max(numbers, default=0) + 1}"
        try:
            run.mkdir(parents=True)  # of this server alone: another one of the same index takes the next number
        except OSError as error:
            raise DensecapError(f"{run} cannot be made: {error.strerror}") from error
        return run

    def answers(self) -> Answers:
        """The questions that were kept, counted again where their file has changed."""
        try:
            status = feedback_file(self.folder).stat()
        except OSError:
            return Answers(0, 0)
        which = (status.st_mtime_ns, status.st_size)
        if which != self._counted[0]:
            self._counted = which, count_answers(self.folder)
        return self._counted[1]
