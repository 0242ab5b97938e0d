"""The program behind `wall.py`: creates a network namespace and holds it open, or
connects to a port from inside one.

    python namespace.py hold
        prints "ready user", "ready net" or the reason for its failure, and stays
    python namespace.py connect PORT FD SECONDS
        connects to 127.0.0.1:PORT and passes the socket on through the Unix socket FD

It imports only the standard library and starts in a few milliseconds. For a user
namespace, `unshare` must be called before any thread starts.
"""

import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
from pathlib import Path

NEW_USER, NEW_NET = 0x10000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET of <linux/sched.h>
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP


def leave() -> str:
    """Move this process into a new network namespace; return "net", or "user" if that
    needed a user namespace. Raises OSError.
    """
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        try:
            _unshare(NEW_NET)
            return "net"
        except OSError:
            pass  # root in a container without this permission
    _unshare(NEW_USER | NEW_NET)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return "user"


def raise_loopback() -> None:
    """Switch on the loopback interface, the only interface of a new namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, GET_FLAGS, struct.pack("16sH14x", b"lo", 0))
        _, flags = struct.unpack("16sH14x", answer)
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sH14x", b"lo", flags | UP))


def hold() -> None:
    """Create the namespace, print that it is ready, and stay until a signal arrives. A
    namespace ends with its last process.
    """
    try:
        kind = leave()
        raise_loopback()
    except OSError as error:
        print(f"no namespace: {error.strerror}", flush=True)
        sys.exit(1)
    print(f"ready {kind}", flush=True)
    while True:
        signal.pause()


def connect(port: int, channel: int, seconds: float) -> None:
    """Connect from inside and pass on the socket, or the number of the error."""
    with socket.socket(fileno=channel) as unix:
        try:
            with socket.create_connection(("127.0.0.1", port), seconds) as made:
                socket.send_fds(unix, [b"0"], [made.fileno()])
        except OSError as error:
            unix.sendall(str(error.errno or 0).encode() or b"0")


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    if sys.argv[1] == "hold":
        hold()
    else:
        connect(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
