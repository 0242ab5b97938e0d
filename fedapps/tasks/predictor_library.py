"""Predictor library: the frozen predictors of an ensemble, of which the server sends a
few per round.

Stored in memory, as arrays stacked over the predictors, or as a folder with one
safetensors file per predictor. Opening a folder reads only the headers, so that errors
are reported before a run starts; values are read on demand, so that a library of any
size takes no more memory than the predictors in use.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedapps.errors import UserError, reason

Arrays = dict[str, NDArray[Any]]
Spec = dict[str, tuple[str, tuple[int, ...]]]  # array name -> (type, shape of one predictor)

TABLE = "table"
SUM_TOLERANCE = 1e-3
CHUNK = 64 * 2**20  # bytes of predictors processed at a time
TYPES = {
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "BOOL": "bool",
}


class Library:
    """Library of ``q`` predictors with ``names``, all with arrays of the same names,
    types and shapes (``spec``).

    ``read(ids)`` returns the arrays of the predictors ``ids`` stacked along axis 0.
    Create libraries with ``from_arrays`` or ``open``. ``from_clients``: whether the
    predictors were made from the clients' data; such a library is refused with
    differential privacy.
    """

    def __init__(
        self,
        names: Sequence[str],
        spec: Spec,
        read: Callable[[NDArray[np.int64]], Arrays],
        from_clients: bool = True,
    ) -> None:
        self.from_clients = from_clients
        self.names = list(names)
        self.spec = spec
        self._read = read
        self._hashes: dict[int, str] = {}

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, NDArray[Any]],
        names: Sequence[str] | None = None,
        from_clients: bool = True,
    ) -> "Library":
        """Return a library of arrays in memory, each of shape (q, ...). Raises
        ``UserError`` if their first axes differ.
        """
        sizes = {name: len(array) for name, array in arrays.items()}
        if len(set(sizes.values())) != 1 or not all(sizes.values()):
            raise UserError(
                f"library: arrays for {sizes} predictors: give every array one entry a predictor, "
                "and at least one"
            )
        (q,) = set(sizes.values())
        names = [str(k) for k in range(q)] if names is None else list(names)
        if len(names) != q:
            raise UserError(f"library: {len(names)} names for {q} predictors: give one each")
        spec = {name: (array.dtype.name, tuple(array.shape[1:])) for name, array in arrays.items()}
        return cls(
            names,
            spec,
            lambda ids: {name: array[ids] for name, array in arrays.items()},
            from_clients,
        )

    @classmethod
    def open(cls, folder: str | Path, from_clients: bool = True) -> "Library":
        """Return the library of a folder: its ``*.safetensors`` files, sorted by name.
        Raises ``UserError`` naming an invalid file.
        """
        folder = Path(folder).expanduser()
        if not folder.is_dir():
            raise UserError(f"library = {str(folder)!r}: there is no such folder")
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise UserError(
                f"library = {str(folder)!r}: holds no .safetensors file: save one a predictor"
            )
        names: list[str] = []
        spec: Spec = {}
        for path in paths:
            name, own = _header(path)
            names.append(name)
            spec = spec or own
            if own != spec:
                raise UserError(
                    f"library = {str(folder)!r}: {path.name} holds {_words(own)}, but "
                    f"{paths[0].name} holds {_words(spec)}: "
                    "all predictors need the same arrays"
                )

        def read(ids: NDArray[np.int64]) -> Arrays:
            out = {name: np.empty((len(ids), *shape), kind) for name, (kind, shape) in spec.items()}
            for row, k in enumerate(ids):
                _fill(paths[k], spec, out, row)
            return out

        return cls(names, spec, read, from_clients)

    @property
    def q(self) -> int:
        """The number of predictors."""
        return len(self.names)

    @property
    def num_bytes(self) -> int:
        """The size of one predictor's arrays in bytes."""
        return sum(
            np.dtype(kind).itemsize * int(np.prod(shape, dtype=np.int64))
            for kind, shape in self.spec.values()
        )

    def take(self, ids: ArrayLike) -> Arrays:
        """Return the arrays of the predictors ``ids`` (h,), stacked along axis 0.
        Raises ``IndexError`` for an unknown id.
        """
        wanted = np.asarray(ids, np.int64)
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < self.q:
            raise IndexError(
                f"predictors {wanted.min()}..{wanted.max()}, but the library has 0..{self.q - 1}"
            )
        return self._read(wanted)

    def mixture(self, alpha: ArrayLike) -> Arrays | None:
        """Return the distribution ``sum_k alpha_k h_k`` as ``{"table": (V,)}``;
        ``None`` if the predictors are not tables.
        """
        weights = np.asarray(alpha, np.float64)
        if set(self.spec) != {TABLE}:
            return None
        if weights.shape != (self.q,):
            raise ValueError(f"alpha of shape {weights.shape} for {self.q} predictors")
        total = np.zeros(self.spec[TABLE][1])
        for ids in self._chunks(np.flatnonzero(weights)):
            tables = self.take(ids)[TABLE]
            # in the tables' own precision: no copy of all of them
            total += weights[ids].astype(tables.dtype) @ tables
        return {TABLE: total}

    def hash_of(self, predictor: int) -> str:
        """Return the content hash of a predictor, 32 hex digits; the same in memory and
        on disk.
        """
        if predictor not in self._hashes:
            digest = blake2b(digest_size=16)
            for name, array in sorted(self.take([predictor]).items()):
                digest.update(f"{name}:{array.dtype.name}:{array.shape[1:]};".encode())
                digest.update(np.ascontiguousarray(array).data)
            self._hashes[predictor] = digest.hexdigest()
        return self._hashes[predictor]

    def check_densities(self) -> None:
        """Raise ``UserError`` unless every predictor is a table of probabilities that
        sum to 1; reads all of them, in chunks.
        """
        if set(self.spec) != {TABLE} or len(self.spec[TABLE][1]) != 1:
            raise UserError(
                f"library: predictors hold {_words(self.spec)}: a density is one array {TABLE!r} "
                "over the vocabulary"
            )
        for ids in self._chunks(np.arange(self.q)):
            tables = self.take(ids)[TABLE]
            sums, least = tables.sum(1, dtype=np.float64), tables.min(1)
            for k in np.flatnonzero(~((np.abs(sums - 1) <= SUM_TOLERANCE) & (least >= 0)))[:1]:
                wrong = (
                    f"has the probability {least[k]:g}" if least[k] < 0 else f"sums to {sums[k]:g}"
                )
                raise UserError(
                    f"library: predictor {self.names[ids[k]]!r} {wrong}: a density has no negative "
                    "entry and sums to 1 "
                    f"(within {SUM_TOLERANCE:g})"
                )

    def save(self, folder: str | Path) -> None:
        """Write one file per predictor, numbered so that ``open`` keeps the order.
        Raises ``UserError`` if it holds predictors.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.glob("*.safetensors")):
            raise UserError(f"{folder} holds predictors already: choose an empty folder")
        for k, name in enumerate(self.names):
            arrays = {key: np.ascontiguousarray(array[0]) for key, array in self.take([k]).items()}
            save_file(
                arrays,
                folder / f"{k:0{len(str(self.q - 1))}d}.safetensors",
                metadata={"name": name},
            )

    def _chunks(self, ids: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        size = max(1, CHUNK // max(1, self.num_bytes))
        return [ids[start : start + size] for start in range(0, len(ids), size)]


# --- one file -------------------------------------------------------------------------


def _header(path: Path) -> tuple[str, Spec]:
    """Return the name, types and shapes in a predictor's file; safetensors checks the
    length of the file against them.
    """
    try:
        with safe_open(path, framework="np") as file:
            spec: Spec = {}
            for key in sorted(file.keys()):
                part = file.get_slice(key)
                spec[key] = (TYPES.get(part.get_dtype(), part.get_dtype()), tuple(part.get_shape()))
            name = (file.metadata() or {}).get("name", path.stem)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(
            f"library: {path} cannot be read as safetensors ({reason(error, 200)}): write this "
            "file anew"
        ) from None
    unknown = next((key for key, (kind, _) in spec.items() if kind not in TYPES.values()), None)
    if unknown is not None or not spec:
        what = f"array {unknown!r} of type {spec[unknown][0]}" if unknown else "no array"
        raise UserError(f"library: {path} holds {what}: store float32")
    return name, spec


def _fill(path: Path, spec: Spec, out: Arrays, row: int) -> None:
    """Read one predictor into row ``row`` of the stacked arrays ``out``."""
    try:
        with safe_open(path, framework="np") as file:
            for key in spec:
                out[key][row] = file.get_tensor(key)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(
            f"library: {path} cannot be read any more ({reason(error, 200)}): write this file anew"
        ) from None
    for key in spec:
        if not np.isfinite(out[key][row]).all():
            raise UserError(
                f"library: {path}: array {key!r} holds values that are not finite: write this file "
                "anew"
            )


def _words(spec: Spec) -> str:
    return ", ".join(f"{name} {json.dumps(shape)} {kind}" for name, (kind, shape) in spec.items())
