# SPDX-License-Identifier: Apache-2.0
"""For pytest on shipped.py: a time limit for each test, a line for each result at once, and tests shared among several pytests.

SHIPPED_RESULTS=FILE   one JSON object a line is added for each test as soon as it has ended
SHIPPED_CLAIMS=FOLDER  pytests that name the same folder share the tests: each is run by the first that comes to it
SHIPPED_SECONDS=90     limit of one test
"""
import hashlib
import json
import os
import signal

import pytest


class Late(BaseException):
    """Not an Exception: a test that expects one must not take this for it."""


def on_alarm(_number, _frame):
    raise Late("not done in %s s" % os.environ.get("SHIPPED_SECONDS", "90"))


def claim(name):
    folder = os.environ.get("SHIPPED_CLAIMS")
    if not folder:
        return True
    path = os.path.join(folder, hashlib.sha1(name.encode()).hexdigest())
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    return None if claim(item.nodeid) else True


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call():
    signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(int(os.environ.get("SHIPPED_SECONDS", "90")))
    yield
    signal.alarm(0)


def last_line(report):
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def pytest_runtest_logreport(report):
    path = os.environ.get("SHIPPED_RESULTS")
    if not path or (report.when != "call" and report.outcome == "passed"):
        return
    result = {"test": report.nodeid.split("::")[-1], "outcome": report.outcome, "seconds": round(report.duration, 2)}
    if report.outcome == "failed":
        result["error"] = last_line(report)
        result["text"] = str(report.longrepr)[-4000:]
    # In one piece: several pytests may write here, and any of them may be ended at any moment.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(file, (json.dumps(result) + "\n").encode())
    os.close(file)
