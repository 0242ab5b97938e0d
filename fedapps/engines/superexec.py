"""A stand-in for Flower's program `flower-superexec` that starts it again when it ends.

A SuperLink or SuperNode starts this program once, to start the processes of runs or of
messages, and does not notice its end, after which it waits for ever. A TLS handshake of
more than 5 seconds, on a busy machine, ends it. The processes that it has started end
with it, so that the run fails, too.
"""

import re
import shlex
from pathlib import Path

from fedapps.engines.processes import program

NAME = "flower-superexec"
#: Seconds. A program that ends sooner after its start is not started again.
SHORTEST_LIFE = 30
#: What the stand-in writes to the log.
ENDED = re.compile(rf"ERROR: {NAME} has ended with status (\d+)")

# The braces make the shell read all of it first. SIGTERM ends the shell at once, and
# the program notices by itself that its parent has ended.
SCRIPT = """#!/bin/sh
{{
while kill -0 "$PPID" 2>/dev/null; do
  began=$(date +%s)
  {program} "$@"
  echo "ERROR: {name} has ended with status $?" >&2
  [ $(($(date +%s) - began)) -ge {shortest} ] || {{ kill "$PPID"; exit; }}
done
exit
}}
"""


def make_superexec(folder: Path, shortest_life: int = SHORTEST_LIFE) -> Path:
    """Write the stand-in into a folder that goes first on the PATH of a SuperLink or
    SuperNode, and return the folder. If the program does not stay, the stand-in ends
    the SuperLink or SuperNode.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path, command = folder / NAME, shlex.quote(str(program(NAME)))
    text = SCRIPT.format(program=command, name=NAME, shortest=shortest_life)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
        path.chmod(0o700)
    return folder
