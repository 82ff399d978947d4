#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hold the includes of every source file against the layers of the source tree (docs: README, CONTRIBUTING).

    api -> comm -> engine -> { transport/*, switchml, coll } -> { device, topology } -> { kernels, util } -> tuning

Inside the engine and the tcp transport a file may include and call what lies in its own folder and those below it, and a file of lib/engine or
of lib/transport/tcp itself whatever it likes; engine.h, tcp.h and wire.h are there for all.

    inline -> stream -> fused -> progress -> plan -> proto -> mem -> channel -> core
    data -> chan -> ack -> conn

What breaks that today stands in tests/abi/layers_known.txt, a line each (the file that calls, the file it calls): nothing new may join it, and
a line that no longer holds is to be deleted.

usage: layers.py TREE        print each violation, exit 1 when there is one
       layers.py --self-test plant violations in a small tree and check that each is found
"""
import os
import re

from calls import calls
from planted import main

# What a module may include besides itself: modules, or single headers of a module.
MODULES = {
    "api": {"comm", "engine", "util", "transport/transport.h", "coll/plan.h", "device/device.h", "topology/topology.h"},
    "comm": {"comm/bootstrap", "comm/launch", "engine", "switchml/switchml.h", "transport/transport.h", "coll", "device/device.h", "topology/topology.h",
             "util"},
    "comm/launch": {"comm/bootstrap", "util"},
    "comm/bootstrap": {"util"},
    "engine": {"switchml/switchml.h", "transport/transport.h", "coll/plan.h", "coll/agree.h", "coll/order.h", "device/device.h", "topology/topology.h", "util"},
    "coll": {"util"},
    "switchml": {"device/float_env.h", "util"},
    "transport": {"device/device.h", "topology/topology.h", "util"},
    "transport/*": {"transport/transport.h", "device/device.h", "topology/topology.h", "util"},
    "device": {"kernels", "util"},
    "kernels": set(),
    "topology": {"util"},
    "util": set(),
    "tuning": set(),
}
# Below everything: a table of numbers.
BELOW_ALL = {"tuning"}
# Modules that know nothing of communicators see the public types alone.
PUBLIC_BASE_ONLY = {"coll", "switchml", "transport", "transport/*", "device", "kernels", "topology", "util", "tuning"}
PUBLIC_TYPES = {"pickle/base.h"}

# Third-party headers: where their home is, and in how many files of it they may stand.
HOMES = [
    (r"hwloc(/.*)?\.h", r"lib/topology/hwloc\.c", 1),
    (r"(infiniband|rdma)/.*", r"lib/transport/rdma/.*", None),
    (r"(cuda|cudaTypedefs|cuda_.*|crt/.*|cooperative_groups.*)(\.h)?", r"lib/(device/cuda[^/]*|kernels/.*)", None),
    (r"openssl/.*", r"lib/util/[^/]*\.c", 1),
    (r"pmix[^/]*\.h", r"lib/comm/launch/[^/]*\.c", 1),
]
SYSTEM = re.compile(
    r"(assert|ctype|dirent|dlfcn|endian|errno|fcntl|fenv|float|ifaddrs|inttypes|limits|locale|malloc|math|netdb|poll|pthread|"
    r"sched|semaphore|setjmp|signal|spawn|stdalign|stdarg|stdatomic|stdbool|stddef|stdint|stdio|stdlib|string|strings|time|uchar|"
    r"unistd|wchar|[a-z0-9]*intrin|arm_neon|byteswap|link|elf)\.h|(sys|net|netinet|arpa|linux|asm)/[a-z0-9_/-]+\.h")
PUBLIC_SYSTEM = {"stddef.h", "stdint.h", "stdbool.h", "limits.h"}

# Folders with an order inside: their own folders from the bottom, and the files that are below all of them.
ORDERED = {
    "lib/engine": (["core", "channel", "mem", "proto", "plan", "progress", "fused", "stream", "inline"], ["engine.h"]),
    "lib/transport/tcp": (["conn", "ack", "chan", "data"], ["tcp.h", "wire.h", "wire.c"]),
}
FOR_ALL = -1
KNOWN = "tests/abi/layers_known.txt"

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CUDA_CONDITION = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b.*CUDA")


def source_files(tree):
    for top in ("lib", "include"):
        for folder, _, names in os.walk(os.path.join(tree, top)):
            for name in sorted(names):
                if name.endswith((".c", ".h", ".cu", ".cuh")):
                    yield os.path.relpath(os.path.join(folder, name), tree)


def module_of(path):
    """lib/transport/shm/ring.c -> transport/shm; None when the file lies in no known module."""
    parts = path.split("/")[1:-1]
    if not parts:
        return None
    if len(parts) > 1 and (parts[0] == "transport" or "/".join(parts[:2]) in MODULES):
        return "/".join(parts[:2])
    return parts[0] if parts[0] in MODULES else None


def allowed(module, path, target):
    """May a file of `module` include "target" (as written from lib/)?"""
    rules = "transport/*" if module.startswith("transport/") else module
    if target.startswith("pickle/"):
        return rules not in PUBLIC_BASE_ONLY or target in PUBLIC_TYPES
    other = module_of("lib/" + target)
    if other is None:
        return False
    if other == module or other in BELOW_ALL or other in MODULES[rules] or target in MODULES[rules]:
        return True
    return path == "lib/transport/list.c" and other.startswith("transport/")


def check_quoted(tree, path, target):
    if path.startswith("include/"):
        return None if target.startswith("pickle/") else "public headers include only libc and pickle/*.h"
    if "/" not in target and os.path.exists(os.path.join(tree, os.path.dirname(path), target)):
        return None
    module = module_of(path)
    if ordered_folder(path) is not None and ordered_folder(path) == ordered_folder("lib/" + target):
        here, there = room_level(path), room_level("lib/" + target)
        if here is not None and there is not None and there > here != FOR_ALL:
            return "%s stands above" % target
    if allowed(module, path, target):
        return None
    return "%s may not include %s" % (module, target)


def check_system(path, target, uses):
    for index, (pattern, home, _) in enumerate(HOMES):
        if re.fullmatch(pattern, target):
            if not re.fullmatch(home, path):
                return "<%s> belongs in %s" % (target, home)
            uses.setdefault(index, set()).add(path)
            return None
    if path.startswith("include/"):
        return None if target in PUBLIC_SYSTEM else "public headers include only libc's types, not <%s>" % target
    if SYSTEM.fullmatch(target):
        return None
    return "<%s> is no header of libc or Linux: give it a home in layers.py" % target


def check_file(tree, path, uses):
    if path.startswith("lib/") and module_of(path) is None:
        yield "%s: lies in no module of the source tree" % path
        return
    with open(os.path.join(tree, path), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            problem = None
            match = INCLUDE.match(line)
            if match and match.group(1) == '"':
                problem = check_quoted(tree, path, match.group(2))
            elif match:
                problem = check_system(path, match.group(2), uses)
            elif CUDA_CONDITION.match(line) and not path.startswith(("lib/device/", "lib/kernels/")):
                problem = "conditions on CUDA belong in lib/device"
            if problem:
                yield "%s:%d: %s" % (path, number, problem)


def ordered_folder(path):
    """The key of ORDERED below which the file lies, or None."""
    return next((folder for folder in ORDERED if path.startswith(folder + "/")), None)


def room_level(path):
    """How high a file stands in its ordered folder; None: it lies in no known folder there."""
    folder = ordered_folder(path)
    rooms, for_all = ORDERED[folder]
    parts = path[len(folder) + 1:].split("/")
    if parts[0] in for_all:
        return FOR_ALL
    if len(parts) == 1:
        return len(rooms)
    return rooms.index(parts[0]) if parts[0] in rooms else None


def read_known(tree):
    path = os.path.join(tree, KNOWN)
    if not os.path.exists(path):
        return set()
    with open(path, encoding="utf-8") as file:
        return {tuple(line.split()) for line in file if line.strip() and not line.startswith("#")}


def check_rooms(tree):
    known = read_known(tree)
    held = set()
    for folder in ORDERED:
        for (path, other), names in sorted(calls(tree, folder).items()):
            below, above = room_level(path), room_level(other)
            if below is None or above is None:
                yield "%s: lies in no known folder of %s" % (path if below is None else other, folder)
            elif above > below:
                pair = (path[len("lib/"):], other[len("lib/"):])
                held.add(pair)
                if pair not in known:
                    yield "%s: calls %s of %s, which stands above it" % (path, ", ".join(sorted(names)), other)
    for pair in sorted(known - held):
        yield "%s: %s no longer calls %s: delete the line" % (KNOWN, *pair)


def check(tree):
    problems = list(check_rooms(tree))
    uses = {}
    count = 0
    for path in source_files(tree):
        count += 1
        problems += check_file(tree, path, uses)
    for index, files in uses.items():
        pattern, _, limit = HOMES[index]
        if limit is not None and len(files) > limit:
            problems.append("<%s> is included by %s: one file is its home" % (pattern, ", ".join(sorted(files))))
    if count == 0:
        problems.append("no source file under %s" % tree)
    return problems


# A small source tree in order, and what must be found when one line is added to it: (file, line, part of the message).
SOURCE_TREE = {
    "include/pickle/base.h": "#include <stdint.h>\n",
    "include/pickle/comm.h": '#include "pickle/base.h"\n',
    "lib/api/comm.c": '#include "pickle/comm.h"\n#include "comm/comm.h"\n',
    "lib/comm/comm.h": '#include "engine/engine.h"\n',
    "lib/comm/launch/pmix.c": '#include <pmix.h>\n#include "comm/bootstrap/net.h"\n',
    "lib/comm/bootstrap/net.h": '#include "util/list.h"\n',
    "lib/comm/paths/connect.c": '#include "comm/comm.h"\n#include "comm/bootstrap/net.h"\n',
    "lib/util/auth.c": "#include <openssl/evp.h>\n",
    "lib/engine/engine.h": '#include "transport/transport.h"\n#include "coll/plan.h"\n#include "device/device.h"\n',
    "lib/coll/plan.h": '#include "pickle/base.h"\n#include "util/list.h"\n',
    "lib/transport/transport.h": '#include "device/device.h"\n',
    "lib/transport/list.c": '#include "transport/shm/shm.h"\n',
    "lib/transport/shm/shm.h": '#include "transport/transport.h"\n#include "util/list.h"\n',
    "lib/transport/nvlink/nvlink.h": '#include "transport/transport.h"\n',
    "lib/device/device.h": '#include "pickle/base.h"\n#include "kernels/kernels.h"\n',
    "lib/kernels/kernels.h": "#include <stdint.h>\n",
    "lib/device/cuda.c": '#include <cuda.h>\n#ifdef PICKLE_HAVE_CUDA\n#endif\n#include "cuda_driver.h"\n',
    "lib/device/cuda_driver.h": "#include <cuda.h>\n",
    "lib/topology/topology.h": '#include "util/list.h"\n',
    "lib/topology/hwloc.c": "#include <hwloc.h>\n#include <sys/mman.h>\n",
    "lib/util/list.h": "#include <stddef.h>\n",
}
VIOLATIONS = [
    ("lib/api/comm.c", '#include "transport/shm/shm.h"', "api may not include"),
    ("lib/comm/comm.h", '#include "transport/nvlink/nvlink.h"', "comm may not include"),
    ("lib/comm/bootstrap/net.h", '#include "comm/comm.h"', "comm/bootstrap may not include"),
    ("lib/comm/bootstrap/net.h", '#include "comm/launch/pmix.h"', "comm/bootstrap may not include"),
    ("lib/comm/launch/pmix.c", '#include "comm/comm.h"', "comm/launch may not include"),
    ("lib/engine/engine.h", '#include "comm/comm.h"', "engine may not include"),
    ("lib/engine/engine.h", '#include "kernels/kernels.h"', "engine may not include"),
    ("lib/kernels/kernels.h", '#include "device/device.h"', "kernels may not include"),
    ("lib/engine/engine.h", '#include "transport/shm/shm.h"', "engine may not include"),
    ("lib/engine/engine.h", '#include "device/cuda_driver.h"', "engine may not include"),
    ("lib/coll/plan.h", '#include "device/device.h"', "coll may not include"),
    ("lib/coll/plan.h", '#include "pickle/comm.h"', "coll may not include"),
    ("lib/transport/shm/shm.h", '#include "transport/nvlink/nvlink.h"', "transport/shm may not include"),
    ("lib/transport/shm/shm.h", '#include "engine/engine.h"', "transport/shm may not include"),
    ("lib/device/device.h", '#include "topology/topology.h"', "device may not include"),
    ("lib/topology/topology.h", '#include "device/device.h"', "topology may not include"),
    ("lib/util/list.h", '#include "coll/plan.h"', "util may not include"),
    ("lib/util/list.h", '#include "list_of_nothing.h"', "util may not include"),
    ("lib/topology/topology.h", "#include <hwloc.h>", "belongs in"),
    ("lib/engine/engine.h", "#  include <cuda.h>", "belongs in"),
    ("lib/transport/shm/shm.h", "#include <infiniband/verbs.h>", "belongs in"),
    ("lib/util/list.h", "#include <openssl/hmac.h>", "belongs in"),
    ("lib/util/pmix.c", "#include <openssl/hmac.h>", "one file is its home"),
    ("lib/comm/launch/auth.c", "#include <pmix_common.h>", "one file is its home"),
    ("lib/comm/auth.c", "#include <pmix_common.h>", "belongs in"),
    ("lib/util/list.h", "#include <glib.h>", "no header of libc"),
    ("lib/engine/engine.h", "#if defined(PICKLE_HAVE_CUDA)", "conditions on CUDA"),
    ("include/pickle/base.h", "#include <pthread.h>", "public headers"),
    ("include/pickle/base.h", '#include "util/list.h"', "public headers"),
    ("lib/attic/old.c", "", "no module"),
    ("lib/stray.c", "", "no module"),
]


def planted(path, line):
    return {**SOURCE_TREE, path: SOURCE_TREE.get(path, "") + line + "\n"}


UP = {
    "lib/engine/life.c": "void pki_open(void)\n{\n    pki_send();\n    pki_open_lock();\n}\n",
    "lib/engine/core/lock.c": "static void pki_open(void)\n{\n    /* pki_send(), then */ pki_open();\n}\nvoid pki_open_lock(void)\n{\n    pki_open();\n}\n",
    "lib/engine/core/signal.h": "void pki_send(void);\nstatic inline void pki_signal(void)\n{\n    pki_open_lock();\n}\n",
    "lib/engine/proto/send.c": "void pki_send(void)\n{\n    pki_open_lock();\n    pki_signal();\n}\n",
}
TCP = {
    "lib/transport/tcp/tcp.c": '#include "transport/tcp/data/data.h"\nvoid pki_progress(void)\n{\n    pki_put();\n}\n',
    "lib/transport/tcp/tcp.h": '#include "transport/tcp/conn/conn.h"\nstatic inline void pki_where(void)\n{\n}\n',
    "lib/transport/tcp/conn/conn.h": "void pki_broken(void);\n",
    "lib/transport/tcp/conn/link.c": '#include "transport/tcp/tcp.h"\nvoid pki_broken(void)\n{\n    pki_where();\n}\n',
    "lib/transport/tcp/data/data.h": '#include "transport/tcp/conn/conn.h"\n',
    "lib/transport/tcp/data/put.c": "void pki_put(void)\n{\n    pki_broken();\n}\n",
}
UP_CALL = {"lib/engine/core/signals.c": "void pki_words(void)\n{\n    pki_send();\n}\n"}
CASES = [(None, SOURCE_TREE)] + [(expected, planted(path, line)) for path, line, expected in VIOLATIONS] + [
    (None, UP),
    ("signals.c: calls pki_send of lib/engine/proto/send.c", {**UP, **UP_CALL}),
    (None, {**UP, "lib/engine/core/lock.h": '#include "engine/engine.h"\n', "lib/engine/plan/plan.h": '#include "engine/core/lock.h"\n'}),
    ("send.h stands above", {**UP, "lib/engine/core/lock.h": '#include "engine/proto/send.h"\n'}),
    ("life.h stands above", {**UP, "lib/engine/inline/lock.h": '#include "engine/life.h"\n'}),
    ("lock.h: calls pki_send", {**UP, "lib/engine/core/lock.h": "static inline void pki_sign(void)\n{\n    pki_send();\n}\n"}),
    ("table.c: calls pki_send", {**UP, "lib/engine/mem/table.c": "static void (*const table[])(void) = { pki_send };\n"}),
    ("no known folder", {**UP, "lib/engine/attic/old.c": "void pki_old(void)\n{\n    pki_send();\n}\n"}),
    (None, {**UP, **UP_CALL, KNOWN: "# so far\nengine/core/signals.c engine/proto/send.c\n"}),
    (None, TCP),
    ("accept.c: calls pki_put", {**TCP, "lib/transport/tcp/conn/accept.c": "void pki_accept(void)\n{\n    pki_put();\n}\n"}),
    ("accept.c: calls pki_progress", {**TCP, "lib/transport/tcp/conn/accept.c": "void pki_accept(void)\n{\n    pki_progress();\n}\n"}),
    ("tcp.h: calls pki_broken", {**TCP, "lib/transport/tcp/tcp.h": "static inline void pki_where(void)\n{\n    pki_broken();\n}\n"}),
    ("data.h stands above", {**TCP, "lib/transport/tcp/ack/ack.c": '#include "transport/tcp/data/data.h"\n'}),
    ("no known folder", {**TCP, "lib/transport/tcp/attic/old.c": "void pki_old(void)\n{\n    pki_put();\n}\n"}),
    ("no longer calls", {**UP, KNOWN: "engine/core/signals.c engine/proto/send.c\n"}),
]

main("layers", __doc__, CASES, check)
