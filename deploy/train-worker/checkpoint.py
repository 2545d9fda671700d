"""What a trainer needs so that its node is not taken away before its state is
saved. Copy this file next to your own trainer; it imports the standard library
only, and knows nothing of queues and jobs.

    stop = checkpoint.Stop()                         # first, before slow imports
    ...
    request = checkpoint.requested(client)           # before the save begins
    checkpoint.save(path, data)                      # returns once it is durable
    checkpoint.acknowledge(client, request, step=n, uri=path)
    if stop.asked: ...                               # save, acknowledge, exit 0

`client` is a redis.Redis with decode_responses=True. POD_NAMESPACE, POD_NAME and
POD_UID come from the downward API; CHECKPOINT_PREFIX is the keyPrefix of the
provider's configuration. Errors of Redis reach the caller. An acknowledgement that
failed must not be sent again once training has gone on, for it would then say that
newer state is saved: save again, and acknowledge that.
"""

import json
import multiprocessing
import os
import signal
import time
from datetime import datetime, timezone

# A data loader's worker is a fork of the trainer. It has the same environment and
# may run the same cleanup, but it has saved nothing.
_MAIN_PID = os.getpid()

# No pod is judged by an acknowledgement this old, and without an expiry each pod
# that there ever was would leave a key behind.
_ACK_EXPIRES_SECONDS = 7 * 24 * 3600


class Stop:
    """Whether the process was asked to end. The handler does nothing but set a
    flag: saving inside a handler, in the middle of anything, can hang."""

    def __init__(self):
        self.asked = False
        self._pid = os.getpid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number, _frame):
        if os.getpid() != self._pid:
            # A forked child that inherited the handler dies as if it had none.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.asked = True

    def wait(self, seconds):
        """Sleeps for that long, or until asked to stop; says whether it was."""
        end = time.monotonic() + seconds
        while not self.asked and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))
        return self.asked


def save(path, data):
    """Writes bytes so that after a crash at any moment there is the old file or the
    new one, never a part, and returns only when the new one is durable."""
    temporary = path + ".tmp"
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    # The new name is durable only with its directory.
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    with open(path, "rb") as file:
        if file.read() != data:
            raise OSError(f"{path} does not read back as it was written")


def now(client):
    """Redis's time, which is the clock of the protocol, as RFC 3339."""
    seconds, microseconds = client.time()
    at = datetime.fromtimestamp(seconds, timezone.utc).replace(microsecond=microseconds)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def requested(client):
    """The id of the provider's request for a checkpoint, or None. It has to be read
    before the save begins, else the acknowledgement would claim too much."""
    text = client.getrange(_key("request"), 0, 4096)
    try:
        request = json.loads(text)["id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return request if isinstance(request, str) else None


def acknowledge(client, request=None, step=None, uri=None, saved_at=None):
    """Tells the provider that all state up to now is durable. False, and nothing
    told, in a forked child.

    A trainer that saves in the background and trains on takes saved_at = now(client)
    before such a save begins."""
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
