"""The task of a site with data of its own, or of the server that serves such sites."""

from typing import Any

from fedapps.errors import UserError
from fedapps.tasks.context import RunContext
from fedapps.tasks.regression import SiteRegression, SiteSurvival
from fedapps.tasks.site_data import SiteImages, SiteRows, SiteTable

TABLES: dict[str, type[SiteRows]] = {
    "tabular": SiteTable,
    "regression": SiteRegression,
    "survival": SiteSurvival,
}


def site_task(name: str, options: Any, context: RunContext, source: str) -> SiteImages | SiteRows:
    """Return the task of a site or, if ``source`` is "", of the server. Raises
    ``UserError`` if settings and site do not agree.
    """
    if not context.sites.own:
        raise UserError(
            f"this site has data of its own ({source}), but the settings describe none: set "
            "sites.labels or sites.columns"
        )
    if name in TABLES and context.sites.columns:
        return TABLES[name](options, context, source)
    if name == "classification" and context.sites.labels:
        return SiteImages(options, context, source)
    given = "columns" if context.sites.columns else "labels"
    raise UserError(
        f"sites.{given} with task = {name!r}: sites have images (task = 'classification') or "
        f"tables ({', '.join(map(repr, TABLES))})"
    )
