"""For mkdocstrings: the roles of docstrings, such as :func:`pages`, become code, as
everywhere else on the site.
"""

import re
from typing import Any

from griffe import Extension, Object

ROLE = re.compile(r":(?:func|class|meth|mod|attr|data|exc):`~?([^`]+)`")


class Roles(Extension):
    """Takes the roles out of docstrings as they are read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of an object that has one."""
        if obj.docstring:
            obj.docstring.value = ROLE.sub(r"`\1`", obj.docstring.value)
