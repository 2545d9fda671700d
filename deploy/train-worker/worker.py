"""An example trainer. It takes jobs from a Redis list, trains them step by step, saves
and acknowledges checkpoints, and returns its job to the queue on SIGTERM.

The training is the function train_step. README.md describes the keys in Redis."""

import hashlib
import json
import math
import os
import re
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

import checkpoint

# Before slow imports: the kernel drops a SIGTERM for process 1 without a handler, and
# the trainer would be killed at the end of its grace period without a save.
stop = checkpoint.Stop()

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from jobs import Lost, Queue, say

IDLE_SECONDS = 0.5  # between two reads of an empty queue
REQUEST_SECONDS = 1  # between two reads of the provider's request
ACKNOWLEDGE_SECONDS = 5  # between two acknowledgements without a request
RETRY_SECONDS = 1  # between two attempts while Redis or the disk is away

# Three attempts of 2 s: a call to a Redis that does not respond fails after about 6 s.
REDIS = {
    "socket_timeout": 2,
    "socket_connect_timeout": 2,
    "health_check_interval": 15,
    "retry": Retry(ExponentialBackoff(cap=0.5, base=0.05), 2),
    "retry_on_error": [redis.ConnectionError, redis.TimeoutError],
    "decode_responses": True,
    "encoding_errors": "surrogateescape",  # keeps elements that are not UTF-8
}


@dataclass(frozen=True)
class State:
    """The state to save: weights, optimizer, random numbers, position in the data."""

    step: int = 0
    total: int = 0


def train_step(state, job):
    """Returns the next state, or None when the process is asked to stop: a step may be
    long, and the grace period is for saving. This one sums the numbers of its steps, so
    a lost or repeated step changes the result."""
    if stop.wait(job.step_seconds):
        return None
    step = state.step + 1
    return State(step, state.total + step)


class Checkpoints:
    """The checkpoints of one job, by all its owners. Names begin with the owner's token,
    so a worker that has lost the job unnoticed cannot overwrite a checkpoint of its
    successor, and its later files sort as older."""

    KEEP = 2  # the newest may be torn; more would fill the disk

    def __init__(self, directory, job, token):
        readable = re.sub(r"[^A-Za-z0-9._-]", "_", job.id)[:80]
        unique = hashlib.sha256(job.id.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        self._directory = os.path.join(directory, f"{readable}-{unique}")
        self._job, self._token = job, int(token)

    def load(self):
        """Returns the newest state that is complete."""
        os.makedirs(self._directory, exist_ok=True)
        for name in sorted(os.listdir(self._directory), reverse=True):
            if not name.endswith(".ckpt"):
                continue
            try:
                with open(os.path.join(self._directory, name), "rb") as file:
                    digest, _, body = file.read().partition(b"\n")
                if digest.decode("ascii") != hashlib.sha256(body).hexdigest():
                    raise ValueError("torn")
                return State(**json.loads(body))
            except (OSError, ValueError, TypeError) as error:
                say(f"job {self._job.id} checkpoint skipped, {error}: {name}")
        return State()

    def save(self, state):
        """Returns the path once the file is durable."""
        body = json.dumps(asdict(state)).encode()
        name = f"{self._token:020d}-{state.step:012d}.ckpt"
        path = os.path.join(self._directory, name)
        checkpoint.save(path, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        self._prune(name)
        return path

    def _prune(self, newest):
        """Keeps files that sort after the newest: they belong to a later owner."""
        older = sorted(name for name in os.listdir(self._directory) if name < newest)
        kept = [name for name in older if name.endswith(".ckpt")][1 - self.KEEP :]
        for name in older:
            if name not in kept:
                with suppress(FileNotFoundError):  # a later owner prunes too
                    os.remove(os.path.join(self._directory, name))


class Worker:
    def __init__(self, settings):
        self._client = settings.client
        self._directory = settings.checkpoint_dir
        self._every = settings.checkpoint_every
        self._queue = Queue(settings.client, settings.queue, settings.lease_seconds, settings.pod)
        self._request = self._answered = None  # ids of the provider's requests
        self._looked = self._acknowledged = -math.inf
        self._quiet_until = -math.inf
        self._told_last = False  # acknowledged since SIGTERM
        self._complaint = None

    def run(self):
        while not stop.asked:
            lease = self._next()
            if lease is None:
                stop.wait(IDLE_SECONDS)
                continue
            with lease:
                try:
                    self._train(lease)
                except Lost:
                    say(f"job {lease.job.id} lost: its lease is another's by now")
        if not self._told_last:  # no job, so nothing is unsaved
            self._insist("acknowledge", lambda: self._acknowledge("idle, acknowledged"))
        say("stopped")

    def _next(self):
        try:
            self._queue.reap()
            if self._asked():
                self._acknowledge("idle, acknowledged")
            lease = self._queue.take()
        except redis.RedisError as error:
            self._complain("take a job", error)
            stop.wait(RETRY_SECONDS)
            return None
        self._complaint = None
        return lease

    def _train(self, lease):
        job = lease.job
        say(f"job {job.id} taken: {job.steps} steps")
        files = Checkpoints(self._directory, job, lease.token)
        state = self._insist("read checkpoints", files.load, lease)
        saved, path = state.step, None
        if saved:
            say(f"job {job.id} resumed from step {saved}")
        while state.step < job.steps and not stop.asked:
            state = train_step(state, job) or state
            lease.check()
            asked = self._asked()  # before the save begins
            if state.step > saved and (asked or state.step >= saved + self._every):
                saved, path = self._save(lease, files, state, asked) or (saved, path)
        self._end(lease, files, state, saved, path)

    def _save(self, lease, files, state, asked):
        """Saves and acknowledges during training. After a failure the next save is
        acknowledged; a delayed acknowledgement would also cover unsaved state."""
        try:
            path = self._write(lease, files, state)
        except OSError as error:
            self._complain("save", error)
            return None
        now = time.monotonic()
        if now >= self._quiet_until and (asked or now >= self._acknowledged + ACKNOWLEDGE_SECONDS):
            with self._brief():
                self._acknowledge(f"job {lease.job.id} acknowledged step {state.step}", state.step, path)
        return state.step, path

    def _end(self, lease, files, state, saved, path):
        """Saves and acknowledges the last state, then commits the job or returns it."""
        job = lease.job
        self._looked = -math.inf
        self._asked()  # before the save begins
        if state.step > saved:
            path = self._insist("save", lambda: self._write(lease, files, state), lease)
        told = f"job {job.id} acknowledged step {state.step}"
        self._insist("acknowledge", lambda: self._acknowledge(told, state.step, path), lease)
        if state.step < job.steps:
            if not self._insist("give the job back", lambda: self._queue.give_back(lease), lease):
                raise Lost
            say(f"job {job.id} given back at step {state.step}")
            return
        result = json.dumps({"steps": state.step, "state": state.total, "worker": self._queue.pod})
        outcome = self._insist("commit", lambda: self._queue.commit(lease, result), lease)
        if outcome == "lost":
            raise Lost
        say(f"job {job.id} " + ("committed" if outcome == "committed" else "dropped: its result is there"))

    def _write(self, lease, files, state):
        path = files.save(state)
        say(f"job {lease.job.id} checkpoint saved at step {state.step}")
        return path

    def _asked(self):
        """Returns whether a request of the provider is not answered yet."""
        now = time.monotonic()
        if now >= max(self._looked + REQUEST_SECONDS, self._quiet_until):
            self._looked = now
            with self._brief():
                # Later acknowledgements repeat the id of an answered request, so that
                # the request still counts as answered.
                self._request = checkpoint.requested(self._client) or self._request
        return self._request != self._answered

    def _acknowledge(self, what, step=None, path=None):
        last = stop.asked
        checkpoint.acknowledge(self._client, self._request, step=step, uri=path and "file://" + path)
        self._acknowledged, self._complaint = time.monotonic(), None
        answer = f" for request {self._request}" if self._request != self._answered else ""
        self._answered, self._told_last = self._request, last
        say(what + answer)

    @contextmanager
    def _brief(self):
        """Wraps a call to Redis between two steps. After a failure Redis is not called
        for ten times as long as the call delayed training."""
        began = time.monotonic()
        try:
            yield
        except redis.RedisError as error:
            now = time.monotonic()
            self._quiet_until = now + max(RETRY_SECONDS, 10 * (now - began))
            self._complain("reach Redis", error)

    def _insist(self, what, action, lease=None):
        """Repeats the action until it succeeds. If that takes longer than the grace
        period, the kubelet kills the worker, the node stays held, and the job's lease
        expires."""
        while True:
            try:
                return action()
            except (redis.RedisError, OSError) as error:
                self._complain(what, error)
            time.sleep(RETRY_SECONDS)
            if lease:
                lease.check()

    def _complain(self, what, error):
        complaint = f"trying again to {what}: {error}"
        if complaint != self._complaint:  # once, not each second
            say(complaint)
        self._complaint = complaint


class PasswordFile(redis.CredentialProvider):
    """Reads the password for each connection, so a new one needs no restart. A missing
    file means no password: the Secret in deployment.yaml is optional."""

    def __init__(self, user, path):
        self._user, self._path = user, path

    def get_credentials(self):
        try:
            with open(self._path, encoding="utf-8") as file:
                password = file.read().strip()
        except FileNotFoundError:
            return ()
        except (OSError, ValueError) as error:
            raise redis.ConnectionError(f"password file: {error}") from None
        return (self._user, password) if self._user else (password,)


class Settings:
    """Settings from the environment. Raises ValueError with all problems."""

    def __init__(self, env):
        self._env, self._wrong = env, []
        self.pod = self._text("POD_NAME")
        self._text("POD_NAMESPACE")
        self._text("POD_UID")
        self.queue = env.get("QUEUE") or "train:jobs"
        self.lease_seconds = self._number("LEASE_SECONDS", 30, least=1)
        self.checkpoint_every = self._number("CHECKPOINT_EVERY", 1, least=1)
        self.checkpoint_dir = self._directory("CHECKPOINT_DIR")
        self.client = self._redis("REDIS_URL", env.get("REDIS_PASSWORD_FILE"))
        if self._wrong:
            raise ValueError("; ".join(self._wrong))

    def _text(self, name):
        value = self._env.get(name, "")
        if not value:
            self._wrong.append(f"{name} is not set")
        return value

    def _number(self, name, default, least):
        text = self._env.get(name) or str(default)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= 86400:
            self._wrong.append(f"{name} is {text!r}, not a number from {least} to 86400")
        return value

    def _directory(self, name):
        path = self._text(name)
        if not path:
            return None
        try:
            os.makedirs(path, exist_ok=True)
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError("is not writable")
        except OSError as error:
            self._wrong.append(f"{name} {path}: {error.strerror or error}")
        return os.path.abspath(path)

    def _redis(self, name, password_file):
        url = self._text(name)
        if not url:
            return None
        try:
            if not password_file:
                return redis.Redis.from_url(url, **REDIS)
            # The user comes from the URL, the password from the file.
            parts = urlsplit(url)
            bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
            return redis.Redis.from_url(bare, credential_provider=PasswordFile(parts.username, password_file), **REDIS)
        except ValueError as error:
            self._wrong.append(f"{name}: {error}")


def main():
    sys.stdout.reconfigure(errors="backslashreplace")
    try:
        settings = Settings(os.environ)
        settings.client.ping()
    except ValueError as error:
        print(f"worker: {error}", file=sys.stderr)
        return 2
    except redis.AuthenticationError as error:
        print(f"worker: REDIS_URL, REDIS_PASSWORD_FILE: Redis refuses the password: {error}", file=sys.stderr)
        return 2
    except redis.RedisError:
        pass  # Redis may start later
    say(f"worker {settings.pod} takes jobs from {settings.queue}, checkpoints in {settings.checkpoint_dir}")
    Worker(settings).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
