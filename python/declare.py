#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write libpickle/_declarations.py from the public headers: constants, structures, argument types and the manual of each
function. So the package can neither disagree with the library about a type nor have another manual.

usage: declare.py TREE LIBDIR OUT     LIBDIR: where libpickle.so lies below the prefix, for an installed package
"""
import os
import pprint
import re
import sys

HEADERS = ("base", "comm", "p2p", "coll", "mem", "stream", "inspect", "survive")
NUMBERS = {
    "int": "c_int", "pk_result_t": "c_int", "pk_dtype_t": "c_int", "pk_op_kind_t": "c_int", "pk_mem_kind_t": "c_int",
    "size_t": "c_size_t", "uintptr_t": "c_size_t", "uint64_t": "c_uint64", "pk_op_t": "c_uint64", "double": "c_double",
    "pk_stream_t": "pk_stream", "pk_log_callback_t": "c_void_p", "char": "c_char", "unsigned char": "c_ubyte", "void": None,
}
STRUCT = re.compile(r"typedef struct (pk_\w+) \{(.*?)\}", re.S)
FIELD = re.compile(r"([\w ]+?)\s+(\*?)(\w+)(?:\[(\w+)\])?;")
FUNCTION = re.compile(r"/\*\*((?:(?!\*/).)*)\*/\s*PK_API ([\w ]+?)\s*(\**)(pk_\w+)\(([^;]*)\);", re.S)


def without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def number_or_pointer(words, star):
    if star:
        return "c_void_p"
    return NUMBERS[" ".join(word for word in words.split() if word != "const")]


def parameters(text):
    text = " ".join(text.split())
    if text == "void":
        return []
    found = []
    for one in text.split(","):
        words, star, _ = re.fullmatch(r"\s*([\w ]+?)\s*(\**)(\w+)", one).groups()
        found.append(number_or_pointer(words, star))
    return found


def constants_of(text):
    text = without_comments(text)
    found = {}
    for body in re.findall(r"enum(?: pk_\w+)? \{(.*?)\}", text, re.S):
        found.update((name, int(value)) for name, value in re.findall(r"(PK_\w+) = (\d+)", body))
    for name, value in re.findall(r"^#define (PK_\w+) \(?(?:\(pk_op_t\))?(-?\d+)\)?\s*$", text, re.M):
        found[name] = int(value)
    return found


def structures_of(text, constants):
    found = {}
    for name, body in STRUCT.findall(without_comments(text)):
        fields = []
        for words, star, field, length in FIELD.findall(body):
            length = constants.get(length) or int(length or 0)
            fields.append((field, number_or_pointer(words.strip(), star), length))
        found[name] = fields
    return found


def manual_of(comment):
    """The words of a comment, without stars."""
    lines = [re.sub(r"^\s*\*? ?", "", line).rstrip() for line in comment.strip().split("\n")]
    return "\n".join(lines).strip()


def functions_of(text):
    for comment, words, star, name, arguments in FUNCTION.findall(text):
        result = "c_char_p" if star else number_or_pointer(words, star)
        yield name, (result, parameters(arguments)), manual_of(comment)


def declarations(tree):
    """{name of a variable: its value}"""
    texts = []
    for header in HEADERS:
        with open(os.path.join(tree, "include/pickle/%s.h" % header), encoding="utf-8") as file:
            texts.append(file.read())
    text = "\n".join(texts)
    constants = constants_of(text)
    functions = list(functions_of(text))
    promised = text.count("\nPK_API ")
    if len(functions) != promised:
        sys.exit("declare.py: the headers have %d functions, and %d were read" % (promised, len(functions)))
    return {
        "VERSION": "%d.%d.%d" % tuple(constants["PK_VERSION_" + part] for part in ("MAJOR", "MINOR", "PATCH")),
        "CONSTANTS": constants,
        "STRUCTURES": structures_of(text, constants),
        "FUNCTIONS": {name: types for name, types, _ in functions},
        "MANUAL": {name: manual for name, _, manual in functions},
    }


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    tree, libdir, out = sys.argv[1:]
    found = declarations(tree)
    found["LIBDIR"] = libdir
    with open(out, "w", encoding="utf-8") as file:
        file.write('# SPDX-License-Identifier: Apache-2.0\n"""Made from the headers by python/declare.py."""\n')
        for name, value in found.items():
            file.write("\n%s = %s\n" % (name, pprint.pformat(value, width=130, sort_dicts=False)))


if __name__ == "__main__":
    main()
