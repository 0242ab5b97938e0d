"""The clients of a site that has many. ``sites.client`` names a column whose values
distinguish them, or gives each a file.
"""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from fedapps.errors import UserError

Names = NDArray[np.str_]


def digest(value: str) -> str:
    """Return the name of the client with this value: not the value itself, which may
    name a person and stays at the site.
    """
    return blake2b(value.encode(), digest_size=6).hexdigest()


def rows_of(owners: Names, client_id: int | str) -> NDArray[np.int64]:
    """Return the rows of the client ``SITE:NAME`` among those of ``owners`` (N,).
    Raises ``UserError`` if there are none.
    """
    mine = np.flatnonzero(owners == str(client_id).rpartition(":")[2])
    if not len(mine):
        raise UserError(f"client {client_id!r} has no rows at this site")
    return mine
