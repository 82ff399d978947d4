#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a wheel of an installed libpickle: the package, the library with the shared libraries that a machine may lack (hwloc,
libcrypto and what these need, under names of their own), the headers, and libnccl.so.2 in a private folder. What auditwheel does,
by patchelf and objdump.

usage: wheel.py TREE PREFIX PACKAGE OUT      PACKAGE: the folder libpickle as installed; prints the file that it has made"""
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

# Part of every Linux with glibc: what the rules for manylinux allow.
EVERYWHERE = re.compile(r"^(libc|libm|libdl|libpthread|librt|ld-linux.*)\.so\.\d+$")
METADATA = """Metadata-Version: 2.1
Name: libpickle
Version: %s
Summary: Moves tensors between the ranks of a training or inference job
License: Apache-2.0
Requires-Python: >=3.8
Provides-Extra: numpy
Requires-Dist: numpy; extra == 'numpy'
Description-Content-Type: text/markdown

"""
# torch 2.5 and newer call this at `import torch`, so that the backend "pickle" is known without an import.
ENTRY_POINTS = "[torch.backends]\nlibpickle = libpickle.torch:autoload\n"


def out_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needed(path):
    return out_of("patchelf", "--print-needed", path).split()


def where_is(name, path):
    """The file that the loader takes for a name that `path` needs."""
    found = re.search(r"^\s*%s => (/\S+)" % re.escape(name), out_of("ldd", path), re.M)
    if not found:
        sys.exit("wheel.py: %s needs %s, which is not here" % (path, name))
    return os.path.realpath(found.group(1))


def vendor(path, folder, done):
    """What `path` needs comes along, under a name with a piece of its hash: a program may have another version of the same
    library."""
    for name in needed(path):
        if EVERYWHERE.match(name):
            continue
        if name not in done:
            source = where_is(name, path)
            with open(source, "rb") as file:
                piece = hashlib.sha256(file.read()).hexdigest()[:8]
            stem, dot_so, rest = name.partition(".so")
            done[name] = "%s-%s%s%s" % (stem, piece, dot_so, rest)
            copy = os.path.join(folder, done[name])
            shutil.copyfile(source, copy)
            os.chmod(copy, 0o755)
            vendor(copy, folder, done)
            subprocess.run(["patchelf", "--set-soname", done[name], "--set-rpath", "$ORIGIN", "--force-rpath", copy], check=True)
        subprocess.run(["patchelf", "--replace-needed", name, done[name], path], check=True)


def licences(done, folder):
    """Of what came along, where Debian has them."""
    os.makedirs(folder)
    for name in done:
        source = os.path.realpath("/lib/%s-linux-gnu/%s" % (os.uname().machine, name))
        query = subprocess.run(["dpkg-query", "-S", "*/" + os.path.basename(source)], capture_output=True, text=True, check=False)
        package = query.stdout.split(":")[0].strip()
        notice = "/usr/share/doc/%s/copyright" % package
        if package and os.path.exists(notice):
            shutil.copyfile(notice, os.path.join(folder, "%s.txt" % package))


def glibc_of(paths):
    """The newest glibc that a symbol asks for: 36 of GLIBC_2.36."""
    return max(int(minor) for path in paths for minor in re.findall(r"GLIBC_2\.(\d+)", out_of("objdump", "-T", path)))


def files_below(folder):
    for here, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            yield os.path.join(here, name)


def write_wheel(stage, info, path):
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in files_below(stage):
            name = os.path.relpath(file, stage)
            with open(file, "rb") as opened:
                data = opened.read()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append("%s,sha256=%s,%d" % (name, digest, len(data)))
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)) # the same wheel from the same files
            entry.external_attr = (0o100755 if ".so" in os.path.basename(name) else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
        name = os.path.basename(info) + "/RECORD"
        wheel.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), "\n".join(record + [name + ",,"]) + "\n")


def version_of(package):
    with open(os.path.join(package, "_declarations.py"), encoding="utf-8") as file:
        return re.search(r"^VERSION = '(.*)'$", file.read(), re.M).group(1)


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    tree, prefix, package, out = sys.argv[1:]
    with tempfile.TemporaryDirectory() as stage:
        inside = os.path.join(stage, "libpickle")
        shutil.copytree(package, inside, ignore=shutil.ignore_patterns("__pycache__"))
        libraries = {os.path.basename(file): file for file in files_below(prefix) if re.search(r"\.so[.0-9]*$", file)}
        version = version_of(inside)
        folder = os.path.join(inside, "lib")
        os.makedirs(os.path.join(folder, "pickle", "nccl"))
        soname = "libpickle.so." + version.split(".", maxsplit=1)[0]
        ours = os.path.join(folder, soname)
        shutil.copyfile(os.path.realpath(libraries[soname]), ours)
        shutil.copyfile(os.path.realpath(libraries["libnccl.so.2"]), os.path.join(folder, "pickle", "nccl", "libnccl.so.2"))
        shutil.copytree(os.path.join(prefix, "include"), os.path.join(inside, "include"))
        for file in files_below(folder): # before patchelf: strip would undo what that does
            subprocess.run(["strip", "--strip-unneeded", file], check=True)
        done = {}
        vendor(ours, folder, done)
        subprocess.run(["patchelf", "--set-rpath", "$ORIGIN", "--force-rpath", ours], check=True)
        binaries = [file for file in files_below(inside) if ".so" in os.path.basename(file)]
        tag = "py3-none-manylinux_2_%d_%s" % (glibc_of(binaries), os.uname().machine)
        info = os.path.join(stage, "libpickle-%s.dist-info" % version)
        licences(done, os.path.join(info, "licenses"))
        shutil.copyfile(os.path.join(tree, "LICENSE"), os.path.join(info, "licenses", "LICENSE"))
        with open(os.path.join(tree, "docs/python.md"), encoding="utf-8") as file:
            texts = {"METADATA": METADATA % version + file.read(), "entry_points.txt": ENTRY_POINTS,
                     "WHEEL": "Wheel-Version: 1.0\nGenerator: libpickle\nRoot-Is-Purelib: false\nTag: %s\n" % tag}
        for name, text in texts.items():
            with open(os.path.join(info, name), "w", encoding="utf-8") as file:
                file.write(text)
        path = os.path.join(out, "libpickle-%s-%s.whl" % (version, tag))
        write_wheel(stage, info, path)
    print(path)


if __name__ == "__main__":
    main()
