"""Commands on a deployment of this machine, and the end of their processes."""

import contextlib
import os
import signal

from fedapps.engines.processes import marked
from tests.helpers import command, fedapps


def on(deployment, out):
    """Return the words with which a run is one of the deployment's sites."""
    return ["--engine", "deployment", "--deployment", deployment.folder, "--out", out]


def succeed(*words, **more):
    """Run the command in its own process and check that it succeeds; return both of its
    outputs.
    """
    done = fedapps(*words, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@contextlib.contextmanager
def running(*arguments):
    """Start `fedapps run`; kill what is left of it at the end."""
    process = command(*arguments)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ended(process, seconds, status=0):
    """Wait for the end of a command, with this status; return what it said."""
    said, _ = process.communicate(timeout=seconds)
    assert process.returncode == status, said
    return said


@contextlib.contextmanager
def hanging(site):
    """Let the processes of a site hang meanwhile."""
    hung = marked(site.mark)
    for one in hung:
        os.kill(one, signal.SIGSTOP)
    try:
        yield
    finally:
        for one in hung:
            os.kill(one, signal.SIGCONT)
