"""Flower's client program with the app that is installed at the site. What a run brings
is not imported, so that no server can change how a site's policy is enforced.
"""

from fedapps.runs.client_app import app
from fedapps.strategies.base.flower_private import run_client_program


def main() -> None:
    """Answer one message."""
    run_client_program(app)


if __name__ == "__main__":
    main()
