# SPDX-License-Identifier: Apache-2.0
"""What the tests share: a test is a function, all of a file run in order on all ranks, and the first that fails ends its rank."""
import os
import sys
import traceback


def equal(have, wanted, what=""):
    same = have == wanted
    if not (same if isinstance(same, bool) else same.all()):
        raise AssertionError("%s: %s instead of %s" % (what, have, wanted))


def raises(kind, call, *words):
    """The exception, which must be of this class and say these words."""
    try:
        call()
    except kind as error:
        for word in words:
            if word not in str(error):
                raise AssertionError("'%s' does not say '%s'" % (error, word)) from error
        return error
    raise AssertionError("nothing was raised")


def run(tests, *arguments):
    for test in tests:
        try:
            test(*arguments)
        except BaseException:
            traceback.print_exc()
            print("FAILED: %s" % test.__name__, file=sys.stderr)
            sys.stderr.flush()
            sys.exit(1)


def forked(size, body):
    """Ranks as children of this process, which has imported what they need: body(rank) in each. Returns their pids; the children
    end as programs do, so that what is registered for the end of a program runs."""
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            os.environ.update(PK_RANK=str(rank), PK_SIZE=str(size))
            body(rank)
            sys.exit(0)
        pids.append(pid)
    return pids


def statuses(pids):
    """How each ended: its exit code, or the negative number of a signal."""
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
