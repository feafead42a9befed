"""The errors that a user can mend. Anything else is a bug and keeps its traceback."""

from __future__ import annotations


class DensecapError(Exception):
    """Something a user can mend; its text is one sentence that says what, where, and what to do."""


class ConfigError(DensecapError):
    """A setting that cannot be: unknown key, wrong type, impossible value."""


class CollectionError(DensecapError):
    """A collection of pictures and captions that cannot be read as one."""


class ModelError(DensecapError):
    """A model that cannot be found, built or loaded, or that cannot do what was asked."""


class MissingPackage(ModelError):
    """An optional package is needed; the text names the extra that brings it."""


class RunError(DensecapError):
    """A run folder that cannot be written, continued or loaded."""


class TrainingStopped(DensecapError):
    """Training ended early for a reason that lies in the data or the settings."""


class IndexFolderError(DensecapError):
    """An index folder that cannot be read or written."""


class StoreError(DensecapError):
    """A store that holds an index's vectors and does not answer, or holds something else than the index says."""


class NewerIndex(IndexFolderError):
    """An index that only a newer version can read."""


class IndexMismatch(DensecapError):
    """An index and an encoder that do not belong together."""


class FolderBusy(DensecapError):
    """A folder or a file that another process is writing."""
