"""A queue of jobs in Redis that loses none: a job is in the queue, or in flight
under a lease, or its result is there, or it is among the failed with a reason.
Every change from one to another is one script, so a crash cannot fall in between.
It knows nothing of training and checkpoints."""

import json
import math
import sys
import threading
import time
from dataclasses import dataclass

import redis

# What every script below begins with.
#
# A lease is a field of the hash <queue>:leases, named after the job's id, with the
# value "<token> <until, in ms> <pod>". Token 0 is nobody's: the reaper gives such a
# lease to what it finds in flight without one.
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

# A token is higher than all before it, also after Redis has lost its data: tokens
# are in the names of checkpoints, and those outlive Redis. Hence the time.
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

# Only the token decides: a lease that ran out and was not reaped is still its owner's.
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

# The same result there already is this commit, whose first answer was lost.
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
    """One line a fact, at once: people and tests read along."""
    sys.stdout.write(" ".join(text.splitlines()) + "\n")
    sys.stdout.flush()


class Malformed(Exception):
    """What is wrong with an element of the queue."""


class Lost(Exception):
    """Somebody else has the job, or may have it."""


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
    """The lists and hashes of one queue. Errors of Redis reach the caller, who may
    simply call again: no script does its work twice."""

    def __init__(self, client, name, lease_seconds, pod):
        self.name, self.lease_seconds, self.pod = name, lease_seconds, pod
        self._ms = int(lease_seconds * 1000)
        self._failed = name + ":failed"
        self._inflight, self._leases = name + ":inflight", name + ":leases"
        self._results, self._tokens = name + ":results", name + ":tokens"
        self._scripts = {text: client.register_script(text) for text in (_TAKE, _RENEW, _REAP, _COMMIT, _GIVE_BACK, _FAIL)}
        self._reap_from = -math.inf

    def take(self):
        """A lease on the next job, or None where there is nothing to do right now.

        An answer that got lost leaves a job in flight whose token nobody knows; it
        comes back when its lease has run out."""
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
        """Returns jobs whose lease ran out to the end that is taken from.

        Not when Redis has just come back: the owners could not renew meanwhile."""
        if time.monotonic() < self._reap_from:
            return
        for key in self._run(_REAP, [self.name, self._inflight, self._leases], [self._ms]):
            say(f"job {key} reaped: its lease ran out")

    def renew(self, lease):
        return bool(self._run(_RENEW, [self._leases], [lease.job.id, lease.token, self._ms, self.pod]))

    def commit(self, lease, result):
        """'committed', 'present' where there was a result, or 'lost'."""
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
    """The right to train a job, renewed in the background for as long as the with
    block runs: also while a step or a save is long."""

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
        """Raises Lost when another worker may have the job. Silence of Redis is no
        loss: training goes on, and whoever has the job by then keeps it, since the
        older token loses every comparison."""
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
                pass  # whoever comes next reaps

    def _renew(self):
        asked = time.monotonic()
        try:
            held = self._queue.renew(self)
        except redis.RedisError:
            # No reason to make every step wait for another try.
            self._until = time.monotonic() + self._queue.lease_seconds
            return
        if held:
            self._until = asked + self._queue.lease_seconds
        elif not self._end.is_set():
            self._lost = True
