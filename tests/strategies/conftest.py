"""Runs of hundreds of rounds log what they do, which takes a fifth of their time."""

import logging

import pytest


@pytest.fixture(autouse=True)
def no_progress(caplog):
    """Log warnings only, unless a test asks for more."""
    caplog.set_level(logging.WARNING, "flwr")
