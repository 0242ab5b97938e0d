"""What is said where Flower's programs end: the reason, if there is one in their
log.
"""

import json

import pytest

from fedapps.deployment.local import Deployment
from fedapps.engines.superlink import reason_of
from fedapps.errors import RunFailed
from tests.helpers import refused, write_file

# As Flower 1.41 writes them.
STARTED = """INFO :      Starting Flower SuperLink
2026-11-22T10:56:49.699Z INFO [uvicorn.error] Application startup complete.
2026-11-22T10:56:50.100Z INFO [uvicorn.access] 127.0.0.1:1 - "GET /runs/error HTTP/1.1" 200
WARNING :   an error that was survived
"""
LATE = """ERROR :     [/v1/fleet/push-messages][ApiError:2007] SuperNode 5, exception: Run is finished. \
Stopped by user.
"""
REFUSED = """ERROR :     Exit Code: 600
Address (unix:///tmp/c.sock) cannot be parsed.
Please provide a domain name.
For more information, visit: <https://flower.ai/600.html>
"""
KILLED = "its log gives no reason; it was probably killed, by a user or out of memory"


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", KILLED),
        (STARTED, KILLED),
        (STARTED + LATE, KILLED),
        (
            STARTED
            + "Traceback (most recent call last):\n  x\nOSError: the disk is full\n"
            + STARTED,
            "OSError: the disk is full",
        ),
        (
            STARTED + "2026-11-22T10:56:51.000Z ERROR [uvicorn.error] address in use\n",
            "2026-11-22T10:56:51.000Z ERROR [uvicorn.error] address in use",
        ),
        (
            STARTED + REFUSED + STARTED,
            "Address (unix:///tmp/c.sock) cannot be parsed. Please provide a domain name.",
        ),
    ],
)
def test_the_reason_is_an_errors_last_word(log, reason):
    assert reason_of(log) == reason


def test_what_a_superlink_said_before_the_run_is_not_its_reason(tmp_path):
    """One of a deployment may have run, and complained, for months."""
    deployment = Deployment.create(tmp_path / "d", {"a": {"partition-id": 0}})
    log = write_file(deployment.superlink.log, "OSError: of long ago\n")
    connection = deployment.connection()
    refused(
        lambda: connection.check_alive(), f"SuperLink has ended unexpectedly: {KILLED}", RunFailed
    )
    log.write_text(log.read_text() + STARTED + "MemoryError\n" + STARTED)
    refused(
        lambda: connection.check_alive(),
        r"SuperLink has ended unexpectedly: MemoryError$",
        RunFailed,
    )
    connection.close()
    assert "sites" in json.loads((tmp_path / "d" / "deployment.json").read_text())
