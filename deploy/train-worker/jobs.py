"""A queue of jobs in Redis that loses no job. A job is waiting, in flight under a
lease, done with a result, or failed with a reason. Every transition is one Lua
script, so a crash cannot interrupt it. The module does not deal with training and
checkpoints."""

import json
import math
import sys
import threading
import time
from dataclasses import dataclass

import redis

# The beginning of every script below.
#
# A lease is a field of the hash <queue>:leases, named after the job's id, with the
# value "<token> <until, in ms> <pod>". Token 0 has no owner: the reaper gives such a
# lease to an element that is in flight without one.
_COMMON = """
local function key_of(element)
  local ok, job = pcall(cjson.decode, element)
  if ok and type(job) == 'table' and type(job.id) == 'string' then return job.id end
  return 'malformed ' .. element
end
local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
local function now_ms() return math.floor(now_us() / 1000) end
local function owner(leases, key)
  local token, till = string.match(redis.call('HGET', leases, key) or '', '^(%d+) (%d+)')
  return token, tonumber(till)
end
local function lease(leases, key, token, ms, pod)
  redis.call('HSET', leases, key, string.format('%s %.0f %s', token, now_ms() + ms, pod))
end
"""

# A token is higher than all before it. It includes the time, because tokens are in the
# names of checkpoints, which are still there after Redis has lost its data.
_TAKE = _COMMON + """
local queue, inflight, leases, results, tokens = unpack(KEYS)
local ms, pod = tonumber(ARGV[1]), ARGV[2]
local element = redis.call('LMOVE', queue, inflight, 'RIGHT', 'LEFT')
if not element then return false end
local key = key_of(element)
if redis.call('HEXISTS', results, key) == 1 then
  redis.call('LREM', inflight, 1, element)
  return {'done', element, key}
end
local token, till = owner(leases, key)
if token and token ~= '0' and till > now_ms() then
  if #redis.call('LPOS', inflight, element, 'COUNT', 2) == 2 then
    redis.call('LREM', inflight, 1, element)
    return {'again', element, key}
  end
  return {'other', element, key}
end
token = math.max(tonumber(redis.call('GET', tokens) or 0) + 1, now_us())
token = string.format('%.0f', token)
redis.call('SET', tokens, token)
lease(leases, key, token, ms, pod)
return {'taken', element, key, token}
"""

# Only the token is compared: a lease that has expired and was not reaped still belongs
# to its owner.
_RENEW = _COMMON + """
local leases = KEYS[1]
local key, token, ms, pod = unpack(ARGV)
if owner(leases, key) ~= token then return 0 end
lease(leases, key, token, tonumber(ms), pod)
return 1
"""

_REAP = _COMMON + """
local queue, inflight, leases = unpack(KEYS)
local ms, reaped = tonumber(ARGV[1]), {}
for _, element in ipairs(redis.call('LRANGE', inflight, 0, -1)) do
  local key = key_of(element)
  local token, till = owner(leases, key)
  if not token then
    lease(leases, key, '0', ms, 'nobody')
  elseif till <= now_ms() then
    redis.call('HDEL', leases, key)
    redis.call('LREM', inflight, 1, element)
    redis.call('RPUSH', queue, element)
    table.insert(reaped, key)
  end
end
return reaped
"""

# An equal result is this commit, repeated after its response was lost.
_COMMIT = _COMMON + """
local inflight, leases, results = unpack(KEYS)
local element, key, token, result = unpack(ARGV)
if owner(leases, key) ~= token then
  return redis.call('HGET', results, key) == result and 'committed' or 'lost'
end
redis.call('HDEL', leases, key)
redis.call('LREM', inflight, 1, element)
return redis.call('HSETNX', results, key, result) == 1 and 'committed' or 'present'
"""

_GIVE_BACK = _COMMON + """
local queue, inflight, leases = unpack(KEYS)
local element, key, token = unpack(ARGV)
if owner(leases, key) ~= token then return 0 end
redis.call('HDEL', leases, key)
redis.call('LREM', inflight, 1, element)
redis.call('RPUSH', queue, element)
return 1
"""

_FAIL = _COMMON + """
local inflight, leases, failed = unpack(KEYS)
local element, key, token, entry = unpack(ARGV)
if owner(leases, key) == token then redis.call('HDEL', leases, key) end
if redis.call('LREM', inflight, 1, element) == 1 then redis.call('LPUSH', failed, entry) end
"""


def say(text):
    """Prints one line, and flushes it."""
    sys.stdout.write(" ".join(text.splitlines()) + "\n")
    sys.stdout.flush()


class Malformed(Exception):
    """An element of the queue is no job; the message has the reason."""


class Lost(Exception):
    """Another worker has the job, or may have it."""


@dataclass(frozen=True)
class Job:
    id: str
    steps: int
    step_seconds: float

    @classmethod
    def parse(cls, element):
        try:
            job = json.loads(element)
        except (ValueError, RecursionError) as error:
            raise Malformed(f"no JSON: {error}") from None
        if not isinstance(job, dict):
            raise Malformed("no JSON object")
        name, steps, seconds = job.get("id"), job.get("steps"), job.get("stepSeconds", 1)
        if not isinstance(name, str) or not name:
            raise Malformed("id is no text")
        if type(steps) is not int or steps < 1:
            raise Malformed("steps is no whole number above 0")
        if type(seconds) not in (int, float) or not 0 <= seconds < math.inf:
            raise Malformed("stepSeconds is no number of seconds")
        return cls(name, steps, float(seconds))


class Queue:
    """The lists and hashes of one queue. Errors of Redis are raised to the caller, which
    may repeat the call."""

    def __init__(self, client, name, lease_seconds, pod):
        self.name, self.lease_seconds, self.pod = name, lease_seconds, pod
        self._ms = int(lease_seconds * 1000)
        self._failed = name + ":failed"
        self._inflight, self._leases = name + ":inflight", name + ":leases"
        self._results, self._tokens = name + ":results", name + ":tokens"
        self._scripts = {text: client.register_script(text) for text in (_TAKE, _RENEW, _REAP, _COMMIT, _GIVE_BACK, _FAIL)}
        self._reap_from = -math.inf

    def take(self):
        """Returns a lease on the next job, or None when no job is available.

        When the response is lost, the job stays in flight without an owner and returns
        to the queue when its lease expires."""
        while answer := self._run(_TAKE, [self.name, self._inflight, self._leases, self._results, self._tokens], [self._ms, self.pod]):
            what, element, key = answer[:3]
            if what == "done":
                say(f"job {key} dropped: its result is there")
            elif what == "again":
                say(f"job {key} dropped: the same is in flight")
            elif what == "other":
                self._refuse(element, key, "", "another job of this id is in flight")
            else:
                try:
                    job = Job.parse(element)
                    if job.id != key:
                        raise Malformed("Redis reads another id")
                except Malformed as error:
                    self._refuse(element, key, answer[3], str(error))
                    continue
                return Lease(self, job, element, answer[3])
        return None

    def reap(self):
        """Moves jobs whose lease has expired to the front of the queue.

        Does nothing shortly after an outage of Redis, in which owners could not renew."""
        if time.monotonic() < self._reap_from:
            return
        for key in self._run(_REAP, [self.name, self._inflight, self._leases], [self._ms]):
            say(f"job {key} reaped: its lease ran out")

    def renew(self, lease):
        return bool(self._run(_RENEW, [self._leases], [lease.job.id, lease.token, self._ms, self.pod]))

    def commit(self, lease, result):
        """Returns 'committed', 'present' when a result exists already, or 'lost'."""
        return self._run(_COMMIT, [self._inflight, self._leases, self._results], [lease.element, lease.job.id, lease.token, result])

    def give_back(self, lease):
        return bool(self._run(_GIVE_BACK, [self.name, self._inflight, self._leases], [lease.element, lease.job.id, lease.token]))

    def _run(self, script, keys, args):
        try:
            return self._scripts[script](keys, args)
        except redis.RedisError:
            self._reap_from = time.monotonic() + self.lease_seconds
            raise

    def _refuse(self, element, key, token, reason):
        entry = json.dumps({"reason": reason, "element": element})
        self._run(_FAIL, [self._inflight, self._leases, self._failed], [element, key, token, entry])
        say(f"element refused, {reason}: {element[:200]}")


class Lease:
    """The right to train a job. A thread renews it while the with block runs, so long
    steps and saves do not lose it."""

    def __init__(self, queue, job, element, token):
        self.job, self.element, self.token = job, element, token
        self._queue = queue
        self._until = time.monotonic() + queue.lease_seconds
        self._lost = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()

    def check(self):
        """Raises Lost when another worker may have the job. An outage of Redis is no
        loss: training continues, and if another worker has taken the job meanwhile, its
        higher token wins every comparison."""
        if time.monotonic() > self._until:  # this process was paused, or Redis away
            self._renew()
        if self._lost:
            raise Lost

    def _keep(self):
        while not self._end.wait(self._queue.lease_seconds / 3):
            self._renew()
            try:
                self._queue.reap()
            except redis.RedisError:
                pass  # the next call reaps

    def _renew(self):
        asked = time.monotonic()
        try:
            held = self._queue.renew(self)
        except redis.RedisError:
            # Without this, every step would wait for another attempt.
            self._until = time.monotonic() + self._queue.lease_seconds
            return
        if held:
            self._until = asked + self._queue.lease_seconds
        elif not self._end.is_set():
            self._lost = True
