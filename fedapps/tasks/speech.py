"""Task ``speech``: classification of spoken words from waveforms. The AAggFF chapter
uses the data set Speech Commands and the M5 net.

Columns, as in ``google/speech_commands``: ``audio``, ``label``, ``speaker_id``
(``data.natural-id``). A cell of ``audio`` is a 16-bit WAV file (``bytes`` and
``path``), a decoded sound (``array``) or a list of numbers: floats in [-1, 1] or 16-bit
integers. On the hub the data set is a loading script, which the ``datasets`` library no
longer runs: read its parquet files from a folder.

Sources: Warden, "Speech Commands: A Dataset for Limited-Vocabulary Speech Recognition",
2018, arXiv 1804.03209; Hahn, "Algorithms for Collaborative Machine Learning under
Statistical Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter III. M5:
``fedapps/models/aaggff_nets.py``.
"""

import io
import wave
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.data.cache import Entry
from fedapps.data.columns import check_columns, groups_of, labels_of
from fedapps.data.frame import Frame
from fedapps.data.options import DataOptions
from fedapps.data.source import TRAIN, Samples, Source
from fedapps.data.sources import cached
from fedapps.errors import UserError
from fedapps.tasks.classification import Classification
from fedapps.tasks.options import SpeechOptions


class Speech(Classification):
    """Classification of waveforms, represented as images of shape (1, 1, length)."""

    name = "speech"
    options: SpeechOptions

    def read(self) -> Samples:
        """Return the sounds as int16 (N, 1, 1, length). Raises ``UserError`` if the
        data are invalid.

        If speakers are clients, sounds without a speaker (background noise) are left
        out. Only classes that occur are numbered.
        """
        data, options = self.context.data, self.options
        if data.part:
            raise UserError(
                f"data.part = {data.part!r}: task 'speech' has its parts in splits: set data.test "
                "and data.validation-split"
            )
        speaker = data.natural_id if data.partition == "natural" else ""
        wanted = {"audio": options.audio, "length": str(options.length)}
        wanted |= {"label": data.label, "natural-id": speaker}
        return Samples.of(
            *cached(
                Source.of(data),
                wanted,
                lambda split, parts: _decode(split, parts, data, options, speaker),
            )
        )


def _decode(
    split: Frame, parts: NDArray[np.int64], data: DataOptions, options: SpeechOptions, speaker: str
) -> Entry:
    source = Source.of(data)
    check_columns(
        split,
        source,
        {"speech.audio": options.audio, "data.label": data.label, "data.natural-id": speaker},
    )
    rows = np.arange(len(split))
    if speaker:
        rows = np.flatnonzero([bool(name) or name == 0 for name in split[speaker]])
        split = split.take(rows)
        if len(split) == 0:
            raise UserError(
                f"data.natural-id = {speaker!r}: no sound of {source} has a speaker there: choose "
                "another column"
            )
    labels, called = labels_of(split, source, data.label)
    values, labels = np.unique(labels, return_inverse=True)
    waves = np.zeros((len(split), 1, 1, options.length), np.int16)
    for row, stored in enumerate(split.columns[options.audio]):
        try:
            samples = waveform(stored.as_py())[: options.length]
        except (ValueError, TypeError, KeyError, OSError, EOFError, wave.Error) as error:
            raise UserError(
                f"speech.audio = {options.audio!r}: sound {row} of {source} cannot be read "
                f"({error}): "
                "give 16-bit WAV files or lists of numbers"
            ) from error
        waves[row, 0, 0, : len(samples)] = samples
    arrays: dict[str, NDArray[Any]] = {"x": waves, "labels": labels.astype(np.int64)}
    if (parts != TRAIN).any():
        arrays["parts"] = parts[rows]
    names: dict[str, list[str]] = {}
    if speaker:
        arrays["clients"], names["clients"] = groups_of(split, source, speaker)
    return arrays, {"names": names, "classes": [called[value] for value in values]}


def waveform(cell: Any) -> NDArray[np.int16]:
    """Return the samples (n,) of one cell, channels averaged. Raises the WAV reader's
    errors, and ``ValueError`` for other kinds.
    """
    if isinstance(cell, dict) and ("bytes" in cell or "path" in cell):
        content = cell.get("bytes")
        with wave.open(cell["path"] if content is None else io.BytesIO(content), "rb") as file:
            if file.getsampwidth() != 2:
                raise ValueError(f"{8 * file.getsampwidth()} bits")
            frames = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(
                -1, file.getnchannels()
            )
        return np.asarray(frames.mean(1), np.int16)
    samples: NDArray[Any] = np.asarray(cell["array"] if isinstance(cell, dict) else cell)
    if samples.ndim != 1 or samples.dtype.kind not in "if":
        raise ValueError(f"not a list of numbers but {type(cell).__name__}")
    if not np.isfinite(samples).all():
        raise ValueError("it holds NaN or infinity")
    if samples.dtype.kind == "f":
        samples = np.rint(samples * 2**15)
    return np.asarray(np.clip(samples, -(2**15), 2**15 - 1), np.int16)
