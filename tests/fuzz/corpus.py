#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The corpus of a fuzz program is one text file: an input a line, in hexadecimal digits. A word behind the digits is the input's name:
an input that once led to a finding has one. Lines that begin with # are comments. libFuzzer wants a folder with a file for each input.

usage: corpus.py unpack FILE FOLDER    a file for each input, in a folder that is empty or not there
       corpus.py pack FOLDER FILE      all inputs of a folder; FILE keeps its names and its comments, if it is there
       corpus.py check TREE            what tests/fuzz/corpus has is in order
       corpus.py --self-test
"""
import hashlib
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../abi"))
from planted import report, self_test

BYTES_MAX = 65536 # of a corpus: what is longer has to be merged (CAMPAIGN.md)
LINE = re.compile(r"((?:[0-9a-f]{2})+)(?: ([\w.-]+))?")


def automatic(data):
    """The name that libFuzzer gives to an input."""
    return hashlib.sha1(data).hexdigest()


def read(path):
    """(comments, {input: name or ""}, problems)"""
    comments, inputs, problems = [], {}, []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file.read().splitlines(), 1):
            match = LINE.fullmatch(line)
            data = bytes.fromhex(match.group(1)) if match else b""
            if line.startswith("#"):
                comments.append(line)
            elif match is None:
                problems.append("%s:%d: not pairs of hexadecimal digits, and a name at most" % (path, number))
            elif data in inputs or match.group(2) and match.group(2) in inputs.values():
                problems.append("%s:%d: the input or its name is there already" % (path, number))
            else:
                inputs[data] = match.group(2) or ""
    if not inputs:
        problems.append("%s: no inputs" % path)
    if os.path.getsize(path) > BYTES_MAX:
        problems.append("%s: %d bytes are more than %d" % (path, os.path.getsize(path), BYTES_MAX))
    return comments, inputs, problems


def unpack(path, folder):
    _, inputs, problems = read(path)
    os.makedirs(folder, exist_ok=True)
    if problems or os.listdir(folder):
        sys.exit("\n".join(problems) or folder + " is not empty")
    for data, name in inputs.items():
        with open(os.path.join(folder, name or automatic(data)), "wb") as file:
            file.write(data)


def pack(folder, path):
    comments, known, _ = read(path) if os.path.exists(path) else ([], {}, [])
    inputs = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            data = file.read()
        if data: # libFuzzer begins with the empty one itself
            inputs[data] = known.get(data) or ("" if re.fullmatch("[0-9a-f]{40}", name) else name)
    inputs.update({data: name for data, name in known.items() if name}) # a named one stays, whatever a merge made of it
    with open(path, "w", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in comments))
        file.write("".join((data.hex() + " " + name).rstrip() + "\n" for data, name in sorted(inputs.items())))


def check(tree):
    folder = os.path.join(tree, "tests/fuzz/corpus")
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    if not names:
        yield "no corpus in %s" % folder
    for name in names:
        if name.endswith(".txt") and os.path.isfile(os.path.join(folder, name)):
            yield from read(os.path.join(folder, name))[2]
        else:
            yield "%s: not a corpus" % os.path.join(folder, name)


def planted():
    where = "tests/fuzz/corpus/one.txt"
    yield None, {where: "# comment\n00ff\n01 crash-of-header\n"}
    yield "one.txt:2: not pairs", {where: "00\n0f1\n"}
    yield "one.txt:2: not pairs", {where: "00\n01 two names\n"}
    yield "one.txt:2: the input or its name", {where: "00\n00 again\n"}
    yield "one.txt:3: the input or its name", {where: "00\n01 again\n02 again\n"}
    yield "no inputs", {where: "# nothing\n"}
    yield "bytes are more", {where: "00" * 32769 + "\n"}
    yield "not a corpus", {where: "00\n", "tests/fuzz/corpus/two/0beec7b5": "00"}
    yield "no corpus", {"README.md": ""}


def main():
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        sys.exit(1 if self_test("corpora", list(planted()), check) else 0)
    if len(arguments) == 2 and arguments[0] == "check":
        report("corpora", list(check(arguments[1])))
    elif len(arguments) == 3 and arguments[0] == "unpack":
        unpack(*arguments[1:])
    elif len(arguments) == 3 and arguments[0] == "pack":
        pack(*arguments[1:])
    else:
        sys.exit(__doc__)


main()
