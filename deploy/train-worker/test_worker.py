"""Real workers on a real Redis, stopped, paused and killed for real. Run by `make trainer-test`."""

import contextlib
import glob
import io
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from unittest import mock

import redis

import checkpoint
import jobs

HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE = 20
LEASE = 1.5


def until(what, holds):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if answer := holds():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"this did not happen in {PATIENCE} s: {what() if callable(what) else what}")


def free_port():
    """A port below those that Linux gives to outgoing connections: one of these could take it first."""
    while True:
        port = random.randrange(18_000, 32_000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Server:
    """A redis-server of its own, which loses nothing when it is killed."""

    def __init__(self, *options):
        self.folder = tempfile.mkdtemp()
        port = free_port()
        self.url = f"redis://127.0.0.1:{port}"
        self.command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", self.folder]
        self.command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always", *options]
        self.client = redis.Redis.from_url(self.url, decode_responses=True)
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)

        def answers():
            try:
                return self.client.ping()
            except redis.AuthenticationError:
                return True
            except redis.RedisError:
                return False

        until("Redis answers", answers)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.client.close()
        self.kill()
        shutil.rmtree(self.folder)


class Worker:
    """One worker process, and what it has said."""

    def __init__(self, test, name, script="worker.py", **environment):
        self.name, self.log = name, os.path.join(test.folder, name + ".log")
        identity = {"POD_NAME": name, "POD_NAMESPACE": "ns", "POD_UID": "uid-" + name}
        settings = {"REDIS_URL": test.url, "CHECKPOINT_DIR": test.checkpoints, "LEASE_SECONDS": str(LEASE)}
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [sys.executable, os.path.join(HERE, script)],
                stdout=log, stderr=log, cwd=HERE,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": HERE, "PYTHONDONTWRITEBYTECODE": "1", **identity, **settings, **environment},
            )
        test.addCleanup(self.kill)

    def said(self):
        with open(self.log, encoding="utf-8") as log:
            return log.read()

    def says(self, text):
        until(lambda: f"{self.name} says {text!r}; it said:\n{self.said()}", lambda: text in self.said())

    def number_after(self, text):
        self.says(text)
        return int(self.said().split(text)[1].split()[0])

    def send(self, number):
        self.process.send_signal(number)

    def ends(self):
        return self.process.wait(PATIENCE)

    def stop(self):
        self.send(signal.SIGTERM)
        return self.ends()

    def kill(self):
        self.process.kill()
        self.process.wait()


class WorkerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.close)

    def setUp(self):
        self.use(self.server)
        self.redis.flushall()
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.checkpoints = os.path.join(self.folder, "checkpoints")

    def use(self, server):
        self.redis, self.url = server.client, server.url

    def push(self, *elements):
        for element in elements:
            self.redis.lpush("train:jobs", element if isinstance(element, (str, bytes)) else json.dumps(element))

    def result(self, job):
        text = self.redis.hget("train:jobs:results", job)
        return text and json.loads(text)

    def trained(self, *ids):
        until(f"results of {ids}", lambda: all(map(self.result, ids)))
        keys = set(self.redis.keys("train:jobs*")) - {f"train:jobs:{kept}" for kept in ("results", "tokens", "failed")}
        self.assertEqual(keys, set(), "nothing waits and nothing is in flight")

    def failed(self):
        return [json.loads(text) for text in self.redis.lrange("train:jobs:failed", 0, -1)]

    def files(self, job):
        """Of a job, oldest first, with their steps."""
        names = sorted(glob.glob(f"{self.checkpoints}/{job}-*/*.ckpt"))
        return [(name, int(name.rsplit("-", 1)[1].removesuffix(".ckpt"))) for name in names]

    def acknowledgement(self, worker):
        text = self.redis.get(f"checkpoint:ack:ns:{worker.name}:uid-{worker.name}")
        return text and json.loads(text)

    def asks(self, worker, request):
        self.redis.set(f"checkpoint:request:ns:{worker.name}:uid-{worker.name}", json.dumps({"v": 1, "id": request, "reason": "underused"}))

    # The life of a job

    def test_trains_every_job(self):
        ids = [f"job-{n}" for n in range(5)]
        self.push(*[{"id": job, "steps": 3, "stepSeconds": 0} for job in ids])
        a = Worker(self, "a")
        self.trained(*ids)
        self.assertEqual(self.result("job-0"), {"steps": 3, "state": 6, "worker": "a"})
        until("all are told", lambda: a.said().count("committed") == 5)
        taken = [line.split()[1] for line in a.said().splitlines() if "taken" in line]
        self.assertEqual(taken, ids, "the oldest first")
        self.assertLessEqual(len(self.files("job-0")), 2, "the disk does not fill")

    def test_stopped_worker_saves_acknowledges_and_gives_back(self):
        self.push({"id": "long", "steps": 15, "stepSeconds": 0.1}, {"id": "later", "steps": 1, "stepSeconds": 0})
        a = Worker(self, "a", CHECKPOINT_EVERY="1000")
        lease = until("a lease", lambda: self.redis.hget("train:jobs:leases", "long"))
        until("it is renewed, so steps are done", lambda: self.redis.hget("train:jobs:leases", "long") != lease)
        self.assertNotIn("saved", a.said())
        self.assertEqual(a.stop(), 0)
        step = a.number_after("job long given back at step ")
        last = [f"job long checkpoint saved at step {step}", f"job long acknowledged step {step}", f"job long given back at step {step}", "stopped"]
        self.assertEqual(a.said().splitlines()[-4:], last)
        self.assertGreater(step, 1)
        ack = self.acknowledgement(a)
        self.assertEqual((ack["v"], ack["step"]), (1, step))
        self.assertEqual(ack["uri"], "file://" + self.files("long")[-1][0])
        self.assertEqual(json.loads(self.redis.lindex("train:jobs", -1))["id"], "long", "at the front")
        b = Worker(self, "b")
        b.says(f"job long resumed from step {step}\n")
        self.trained("long", "later")
        self.assertEqual(self.result("long")["state"], sum(range(16)), "no step was lost and none came twice")

    def test_sigterm_in_a_long_step(self):
        self.push({"id": "slow", "steps": 2, "stepSeconds": 600})
        a = Worker(self, "a")
        a.says("job slow taken")
        began = time.monotonic()
        self.assertEqual(a.stop(), 0)
        self.assertLess(time.monotonic() - began, 5)
        self.assertIn("job slow given back at step 0", a.said())
        self.assertEqual(self.acknowledgement(a)["step"], 0)

    def test_killed_worker_loses_nothing(self):
        self.push({"id": "long", "steps": 10, "stepSeconds": 0.2})
        a, b = Worker(self, "a"), Worker(self, "b")
        until("a checkpoint", lambda: "checkpoint saved at step 3" in a.said() + b.said())
        victim, other = (a, b) if "saved" in a.said() else (b, a)
        victim.kill()
        saved = victim.said().count("checkpoint saved")
        killed = time.monotonic()
        other.says("job long reaped")
        self.assertLess(time.monotonic() - killed, 3 * LEASE)
        self.assertIn(other.number_after("job long resumed from step "), (saved, saved + 1))
        self.trained("long")
        self.assertEqual(self.result("long"), {"steps": 10, "state": 55, "worker": other.name})
        self.assertEqual((victim.said() + other.said()).count("job long committed"), 1)

    def test_busy_worker_reaps_too(self):
        self.push({"id": "slow", "steps": 1, "stepSeconds": 600})
        a = Worker(self, "a")
        a.says("job slow taken")
        self.redis.lpush("train:jobs:inflight", '{"id": "orphan", "steps": 1}')
        a.says("job orphan reaped")

    def test_orphan_in_flight_comes_back(self):
        self.push({"id": "orphan", "steps": 1, "stepSeconds": 0})
        self.redis.lmove("train:jobs", "train:jobs:inflight")
        a = Worker(self, "a")
        began = time.monotonic()
        a.says("job orphan reaped")
        self.assertGreater(time.monotonic() - began, LEASE * 0.8, "whoever moved it may be about to say so")
        self.trained("orphan")

    def test_lease_outlives_a_long_step(self):
        self.push({"id": "slow", "steps": 1, "stepSeconds": 2 * LEASE})
        a, b = Worker(self, "a"), Worker(self, "b")
        self.trained("slow")
        self.assertNotIn("reaped", a.said() + b.said())

    def test_paused_worker_neither_commits_nor_saves(self):
        self.push({"id": "long", "steps": 6, "stepSeconds": 0.4})
        a = Worker(self, "a")
        a.says("checkpoint saved at step 2")
        a.send(signal.SIGSTOP)
        before = a.said()
        b = Worker(self, "b")
        b.says("job long resumed from step 2")
        b.says("checkpoint saved at step 3")
        a.send(signal.SIGCONT)
        a.says("job long lost: its lease is another's by now")
        self.trained("long")
        self.assertEqual(self.result("long"), {"steps": 6, "state": 21, "worker": "b"})
        after = a.said().removeprefix(before)
        self.assertNotIn("saved", after)
        self.assertNotIn("committed", after)

    def test_late_save_does_not_hide_the_successors(self):
        code = """
            import os, sys, jobs, worker
            def files(token): return worker.Checkpoints(sys.argv[1], jobs.Job("j", 9, 0), token)
            files(7).load()
            for step in 1, 2:
                files(7).save(worker.State(step, 70 + step))
            files(5).save(worker.State(2, 52))
            files(5).save(worker.State(8, 58))
            assert files(9).load() == worker.State(2, 72), files(9).load()
            folder, = os.scandir(sys.argv[1])
            assert sum("7-" in name for name in os.listdir(folder)) == 2, os.listdir(folder)
        """
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run([sys.executable, "-c", textwrap.dedent(code), self.folder], cwd=HERE, env=environment, check=True)

    def test_only_the_lease_decides(self):
        self.push({"id": "x", "steps": 1})
        first, second = jobs.Queue(self.redis, "train:jobs", 0.2, "a"), jobs.Queue(self.redis, "train:jobs", 30, "b")
        with contextlib.redirect_stdout(io.StringIO()):
            old = first.take()
            until("it is reaped", lambda: second.reap() or self.redis.llen("train:jobs"))
            new = second.take()
        self.assertGreater(int(new.token), int(old.token))
        self.assertFalse(first.renew(old))
        self.assertFalse(first.give_back(old))
        self.assertEqual(first.commit(old, '"old"'), "lost")
        self.assertIsNone(self.result("x"))
        self.assertTrue(second.renew(new))
        self.assertEqual(second.commit(new, '"new"'), "committed")
        self.assertEqual(second.commit(new, '"new"'), "committed", "again, since the answer may have been lost")
        self.assertEqual(first.commit(old, '"old"'), "lost")
        self.assertEqual(self.result("x"), "new")

    def test_tokens_grow_after_redis_lost_its_data(self):
        queue = jobs.Queue(self.redis, "train:jobs", 30, "a")
        self.push({"id": "x", "steps": 1}, {"id": "y", "steps": 1})
        first, second = queue.take(), queue.take()
        self.redis.flushall()
        self.push({"id": "x", "steps": 1})
        third = queue.take()
        self.assertLess(int(first.token), int(second.token))
        self.assertLess(int(second.token), int(third.token))

    # What comes on the queue

    def test_what_is_no_job_is_kept_aside(self):
        bad = [
            "garbage", "", "[]", "null", '{"steps": 1}', '{"id": "", "steps": 1}', '{"id": 7, "steps": 1}',
            '{"id": "x"}', '{"id": "x", "steps": 0}', '{"id": "x", "steps": 1.5}', '{"id": "x", "steps": true}',
            '{"id": "x", "steps": 1, "stepSeconds": -1}', '{"id": "x", "steps": 1, "stepSeconds": NaN}',
            '{"id": "x", "steps": 1, "stepSeconds": "1"}', "[" * 5000, '{"id": "a\\ud800b", "steps": 1}',
        ]  # fmt: skip
        self.push(*bad, b'{"id": "\xff", "steps": 0}', {"id": "good", "steps": 1, "stepSeconds": 0})
        Worker(self, "a")
        self.trained("good")
        failed = self.failed()
        self.assertCountEqual([f["element"] for f in failed], [*bad, '{"id": "\udcff", "steps": 0}'])
        self.assertTrue(all(f["reason"] for f in failed))

    def test_any_id_will_do(self):
        ids = ["../../escape", "x" * 5000, "two\nlines", "ünï", "."]
        self.push(*[{"id": job, "steps": 1, "stepSeconds": 0} for job in ids], b'{"id": "\xfe", "steps": 1, "stepSeconds": 0}')
        a = Worker(self, "a", PYTHONIOENCODING="ascii")
        until("all are trained", lambda: self.redis.hlen("train:jobs:results") == len(ids) + 1)
        self.trained(*ids)
        until("all are told", lambda: a.said().count("committed") == len(ids) + 1)
        self.assertTrue(all(line.startswith(("worker ", "job ")) for line in a.said().splitlines()), a.said())
        self.assertEqual(len(os.listdir(self.checkpoints)), len(ids) + 1)
        self.assertCountEqual(os.listdir(self.folder), ["a.log", "checkpoints"])

    def test_same_id_is_trained_once(self):
        job = {"id": "x", "steps": 4, "stepSeconds": 0.2}
        self.push(job)
        a, b = Worker(self, "a"), Worker(self, "b")
        until("it is taken", lambda: "job x taken" in a.said() + b.said())
        self.push(job, {"id": "x", "steps": 9})
        until("what differs is kept", lambda: len(self.failed()) == 1)
        self.assertEqual(json.loads(self.failed()[0]["element"]), {"id": "x", "steps": 9})
        self.trained("x")
        self.push(job)
        until("both are dropped", lambda: (a.said() + b.said()).count("job x dropped") == 2)
        self.assertEqual((a.said() + b.said()).count("job x taken"), 1)
        self.trained("x")

    def test_same_id_in_flight_by_hand(self):
        self.redis.lpush("train:jobs:inflight", json.dumps({"id": "x", "steps": 4}))
        self.push({"id": "x", "steps": 3, "stepSeconds": 0.1})
        a = Worker(self, "a")
        until("all is cleared", lambda: self.result("x") and not self.redis.exists("train:jobs", "train:jobs:inflight"))
        self.assertEqual(self.result("x")["steps"], 3)
        self.assertEqual(self.failed(), [], "nobody was training the other")
        until("that is told", lambda: "job x dropped" in a.said())

    # Checkpoints

    def test_torn_checkpoint_is_passed_over(self):
        self.push({"id": "long", "steps": 25, "stepSeconds": 0.05})
        a = Worker(self, "a")
        a.says("checkpoint saved at step 4")
        a.kill()
        (whole, before), (newest, _) = self.files("long")
        with open(newest, "r+b") as file:
            file.truncate(os.path.getsize(newest) - 3)
        leftover = whole + ".tmp"
        with open(leftover, "wb") as file:
            file.write(b"half")
        b = Worker(self, "b")
        b.says("checkpoint skipped, torn")
        b.says(f"job long resumed from step {before}\n")
        self.trained("long")
        self.assertEqual(self.result("long")["state"], sum(range(26)))
        self.assertFalse(os.path.exists(leftover))

    def test_what_cannot_be_saved_is_not_acknowledged(self):
        self.push({"id": "long", "steps": 200, "stepSeconds": 0.1})
        a = Worker(self, "a")
        a.says("checkpoint saved at step 1")
        folder = os.path.dirname(self.files("long")[-1][0])
        os.rename(folder, folder + ".away")
        a.says("trying again")
        before = self.acknowledgement(a)
        self.asks(a, "r-1")
        a.send(signal.SIGTERM)
        time.sleep(1.5)  # it must not do anything, so there is nothing to wait for
        self.assertIsNone(a.process.poll())
        self.assertEqual(self.acknowledgement(a), before)
        os.rename(folder + ".away", folder)
        self.assertEqual(a.ends(), 0)
        step = a.number_after("given back at step ")
        self.assertEqual(self.acknowledgement(a)["step"], step)
        self.assertEqual(self.files("long")[-1][1], step)

    # Acknowledgements

    def test_request_is_answered_with_its_id(self):
        self.push({"id": "long", "steps": 1000, "stepSeconds": 0.1})
        a = Worker(self, "a", CHECKPOINT_EVERY="1000")
        a.says("job long taken")
        self.assertIsNone(self.acknowledgement(a))
        with self.redis.pubsub(ignore_subscribe_messages=True) as listener:
            listener.subscribe("checkpoint:acks")
            until("the subscription", lambda: self.redis.pubsub_numsub("checkpoint:acks")[0][1])
            self.asks(a, "r-7")
            message = until("a message", listener.get_message)
        self.assertEqual(message["data"], "checkpoint:ack:ns:a:uid-a")
        a.says("for request r-7")
        ack = self.acknowledgement(a)
        self.assertEqual(ack["request"], "r-7")
        self.assertEqual(ack["uri"], "file://" + self.files("long")[-1][0])
        self.assertEqual(ack["step"], self.files("long")[-1][1])
        self.asks(a, "r-8")
        a.says("for request r-8")
        self.assertIsNone(a.process.poll(), "it goes on training")
        self.assertEqual(a.said().count("checkpoint saved"), 2, "once a request")
        self.redis.delete("checkpoint:request:ns:a:uid-a")
        a.stop()
        self.assertEqual(self.acknowledgement(a)["request"], "r-8", "still true, so still said")

    def test_idle_worker_answers_and_stops_at_once(self):
        a = Worker(self, "a", CHECKPOINT_PREFIX="cp")
        a.says("takes jobs")
        self.redis.set("cp:request:ns:a:uid-a", '{"v": 1, "id": "r-8"}')
        a.says("idle, acknowledged for request r-8")
        self.redis.delete("cp:ack:ns:a:uid-a")
        began = time.monotonic()
        self.assertEqual(a.stop(), 0)
        self.assertLess(time.monotonic() - began, 2)
        self.assertIn("savedAt", json.loads(self.redis.get("cp:ack:ns:a:uid-a")))

    def test_acknowledgement_carries_the_time_of_redis(self):
        client = mock.Mock()
        client.time.return_value = (1700000000, 5)
        with mock.patch.dict(os.environ, POD_NAME="p", POD_NAMESPACE="ns", POD_UID="u"):
            self.assertTrue(checkpoint.acknowledge(client, "r", step=3, uri="file:///x"))
        key, text = client.set.call_args.args
        self.assertEqual(key, "checkpoint:ack:ns:p:u")
        expected = {"v": 1, "savedAt": "2023-11-14T22:13:20.000005Z", "request": "r", "step": 3, "uri": "file:///x"}
        self.assertEqual(json.loads(text), expected)

    def test_odd_requests_are_none(self):
        with mock.patch.dict(os.environ, POD_NAME="p", POD_NAMESPACE="ns", POD_UID="u"):
            self.assertIsNone(checkpoint.requested(self.redis))
            for text in ("", "x", "[]", "3", "{}", '{"id": 7}', "[" * 5000, '{"id": "' + "x" * 5000 + '"}'):
                self.redis.set("checkpoint:request:ns:p:u", text)
                self.assertIsNone(checkpoint.requested(self.redis), text[:40])

    def test_forked_child_is_not_the_trainer(self):
        """A data loader's worker that is stopped while the trainer goes on."""
        code = """
            import os, sys, time, checkpoint, worker
            real, child = worker.train_step, None
            def train_step(state, job):
                global child
                if child is None:
                    child = os.fork()
                    if child == 0:
                        print("child", os.getpid(), "runs", flush=True)
                        while not worker.stop.asked:
                            time.sleep(0.02)
                        os._exit(3)
                elif child > 0 and os.waitpid(child, os.WNOHANG)[1] == 15:
                    child = -1
                    print("child died of its SIGTERM", flush=True)
                return real(state, job)
            worker.train_step = train_step
            sys.exit(worker.main())
        """
        script = os.path.join(self.folder, "driver.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(code))
        self.push({"id": "long", "steps": 20, "stepSeconds": 0.1})
        a = Worker(self, "a", script=script)
        os.kill(a.number_after("child "), signal.SIGTERM)
        a.says("child died of its SIGTERM")
        self.trained("long")
        self.assertNotIn("given back", a.said())

    def test_forked_child_does_not_acknowledge(self):
        code = """
            import os, redis, checkpoint
            client = redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)
            child = os.fork()
            if child == 0:
                os._exit(1 if checkpoint.acknowledge(client) else 0)
            assert os.waitpid(child, 0)[1] == 0
            assert client.get("checkpoint:ack:ns:a:uid-a") is None
            assert checkpoint.acknowledge(client, step=1)
            assert client.get("checkpoint:ack:ns:a:uid-a")
        """
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "POD_NAME": "a", "POD_NAMESPACE": "ns", "POD_UID": "uid-a", "REDIS_URL": self.url}
        subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=HERE, env=environment, check=True)

    # Redis

    def test_redis_away_for_a_while(self):
        server = Server()
        self.addCleanup(server.close)
        self.use(server)
        self.push({"id": "long", "steps": 8, "stepSeconds": 0.1})
        a = Worker(self, "a")
        a.says("checkpoint saved at step 2")
        server.kill()
        a.says("checkpoint saved at step 8")
        a.says("trying again to acknowledge")
        server.start()
        self.trained("long")
        self.assertEqual(self.result("long")["state"], 36)
        server.kill()
        a.says("trying again to take a job")
        server.start()
        self.push({"id": "next", "steps": 1, "stepSeconds": 0})
        self.trained("next")
        self.redis.delete("checkpoint:ack:ns:a:uid-a")
        server.kill()
        a.send(signal.SIGTERM)
        until("it tries", lambda: a.said().count("trying again to acknowledge") == 2)
        server.start()
        self.assertEqual(a.ends(), 0)
        self.assertIsNotNone(self.acknowledgement(a))
        self.assertEqual(a.said().count("taken"), 2)

    def test_leases_outlive_an_absence_of_redis(self):
        server = Server()
        self.addCleanup(server.close)
        self.use(server)
        self.push(*[{"id": job, "steps": 40, "stepSeconds": 0.1} for job in ("one", "two")])
        a, b = Worker(self, "a"), Worker(self, "b")
        until("both are taken", lambda: (a.said() + b.said()).count("taken") == 2)
        server.kill()
        time.sleep(1.3 * LEASE)  # the absence
        server.start()
        self.trained("one", "two")
        for text in ("reaped", "lost"):
            self.assertNotIn(text, a.said() + b.said())

    def test_password_comes_from_a_file(self):
        server = Server("--requirepass", "sesame")
        self.addCleanup(server.close)
        self.url = server.url
        path = os.path.join(self.folder, "password")
        a = Worker(self, "a", REDIS_PASSWORD_FILE=path)
        self.assertEqual(a.ends(), 2)
        self.assertIn("worker: REDIS_URL, REDIS_PASSWORD_FILE: Redis refuses the password: ", a.said())
        self.assertEqual(a.said().count("\n"), 1)
        with open(path, "w", encoding="utf-8") as file:
            file.write("sesame\n")
        b = Worker(self, "b", REDIS_PASSWORD_FILE=path)
        b.says("takes jobs")
        with open(path, "w", encoding="utf-8") as file:
            file.write("changed")
        admin = redis.Redis.from_url(server.url, password="sesame")
        self.addCleanup(admin.close)
        admin.config_set("requirepass", "changed")
        admin.client_kill_filter(_type="normal", skipme=True)
        self.assertEqual(b.stop(), 0, "it reads the new one when it connects again")

    def test_settings_that_are_missing_or_wrong(self):
        with open(os.path.join(self.folder, "file"), "w", encoding="utf-8"):
            pass
        folder = os.path.join(self.folder, "file", "x")
        a = Worker(self, "a", POD_UID="", CHECKPOINT_DIR=folder, LEASE_SECONDS="soon", REDIS_URL="")
        self.assertEqual(a.ends(), 2)
        self.assertEqual(
            a.said(),
            f"worker: POD_UID is not set; LEASE_SECONDS is 'soon', not a number from 1 to 86400; CHECKPOINT_DIR {folder}: Not a directory; REDIS_URL is not set\n",
        )


if __name__ == "__main__":
    unittest.main()
