"""Durable checkpoints and their acknowledgement, for trainers on nodes of
gpu-node-provider. Copy this file next to your own trainer; it imports the standard
library only. provider/checkpoint/README.md describes the protocol.

    stop = checkpoint.Stop()                         # first, before slow imports
    ...
    request = checkpoint.requested(client)           # before the save begins
    checkpoint.save(path, data)                      # returns once it is durable
    checkpoint.acknowledge(client, request, step=n, uri=path)
    if stop.asked: ...                               # save, acknowledge, exit 0

`client` is a redis.Redis with decode_responses=True. POD_NAMESPACE, POD_NAME and
POD_UID come from the downward API; CHECKPOINT_PREFIX is the keyPrefix of the
node group file. Errors of Redis are raised to the caller. Do not repeat a failed
acknowledgement after training has continued, because it would also cover state that
is not saved: save again, and acknowledge the new save.
"""

import json
import multiprocessing
import os
import signal
import time
from datetime import datetime, timezone

# A data loader's worker is a fork of the trainer with the same environment. It may run
# the same cleanup, and must not acknowledge.
_MAIN_PID = os.getpid()

# Acknowledgements of this age do not count, and without an expiry every pod would leave
# a key behind.
_ACK_EXPIRES_SECONDS = 7 * 24 * 3600


class Stop:
    """Records SIGTERM and SIGINT in the flag asked. The handler only sets the flag,
    because a save inside a signal handler can hang."""

    def __init__(self):
        self.asked = False
        self._pid = os.getpid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number, _frame):
        if os.getpid() != self._pid:
            # A forked child inherits the handler. It ends as if it had none.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.asked = True

    def wait(self, seconds):
        """Sleeps for that long, or until asked to stop. Returns asked."""
        end = time.monotonic() + seconds
        while not self.asked and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))
        return self.asked


def save(path, data):
    """Replaces the file atomically, so that a crash leaves the old or the new content,
    and returns when the new content is durable."""
    temporary = path + ".tmp"
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    # The rename is durable only after a sync of the directory.
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    with open(path, "rb") as file:
        if file.read() != data:
            raise OSError(f"{path} does not read back as it was written")


def now(client):
    """Returns the time of Redis, the clock of the protocol, as RFC 3339."""
    seconds, microseconds = client.time()
    at = datetime.fromtimestamp(seconds, timezone.utc).replace(microsecond=microseconds)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def requested(client):
    """Returns the id of the provider's pending request, or None. Read it before the
    save begins: an acknowledgement with the id counts from the time of the request."""
    text = client.getrange(_key("request"), 0, 4096)
    try:
        request = json.loads(text)["id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return request if isinstance(request, str) else None


def acknowledge(client, request=None, step=None, uri=None, saved_at=None):
    """Acknowledges that all state up to now is durable. Returns False, without an
    acknowledgement, in a forked child.

    For a save in the background, take saved_at = now(client) before the save begins."""
    if os.getpid() != _MAIN_PID or multiprocessing.parent_process() is not None:
        return False
    ack = {"v": 1, "savedAt": saved_at or now(client)}
    for name, value in (("request", request), ("step", step), ("uri", uri)):
        if value is not None:
            ack[name] = value
    key = _key("ack")
    client.set(key, json.dumps(ack), ex=_ACK_EXPIRES_SECONDS)
    client.publish(_prefix() + ":acks", key)
    return True


def _prefix():
    return os.environ.get("CHECKPOINT_PREFIX") or "checkpoint"


def _key(kind):
    pod = [os.environ[name] for name in ("POD_NAMESPACE", "POD_NAME", "POD_UID")]
    return ":".join([_prefix(), kind, *pod])
