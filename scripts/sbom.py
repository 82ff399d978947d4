#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a release consists of and depends on, as SPDX 2.3 in JSON: the tree, what is linked, and what is opened at run time where
it is. Versions are those of this machine, where the release was built.

usage: sbom.py TREE [FILE...] >libpickle.spdx.json      FILE: made for the release, listed with its SHA-256"""
import hashlib
import json
import os
import re
import subprocess
import sys

LINKED = (("hwloc", "libhwloc15", "BSD-3-Clause"), ("openssl-libcrypto", "libssl3", "Apache-2.0"))
OPENED = (("pmix", "libpmix2", "BSD-3-Clause"), ("rdma-core-libibverbs", "libibverbs1", "GPL-2.0-only OR Linux-OpenIB"),
          ("cuda-driver", None, "LicenseRef-NVIDIA"))


def out_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def package(name, version, licence, about):
    return {"name": name, "SPDXID": "SPDXRef-" + name, "versionInfo": version or "NOASSERTION", "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False, "licenseConcluded": licence, "licenseDeclared": licence, "copyrightText": "NOASSERTION",
            "comment": about}


def depends(what, kind, on="libpickle"):
    if kind == "RUNTIME_DEPENDENCY_OF":
        return {"spdxElementId": "SPDXRef-" + what, "relationshipType": kind, "relatedSpdxElement": "SPDXRef-" + on}
    return {"spdxElementId": "SPDXRef-" + on, "relationshipType": kind, "relatedSpdxElement": "SPDXRef-" + what}


def file_of(path, number):
    with open(path, "rb") as file:
        data = file.read()
    return {"fileName": "./" + os.path.basename(path), "SPDXID": "SPDXRef-File-%d" % number, "licenseConcluded": "Apache-2.0",
            "copyrightText": "NOASSERTION", "checksums": [
                {"algorithm": kind.upper(), "checksumValue": hashlib.new(kind, data).hexdigest()} for kind in ("sha1", "sha256")]}


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    tree, files = sys.argv[1], sys.argv[2:]
    with open(os.path.join(tree, "include/pickle/base.h"), encoding="utf-8") as header:
        version = ".".join(re.findall(r"^#define PK_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", header.read(), re.M))
    commit = out_of("git", "-C", tree, "rev-parse", "HEAD") or "unknown"
    packages, relations = [package("libpickle", version, "Apache-2.0", "commit " + commit)], [
        {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-libpickle"}]
    for kind, about, list_ in (("DYNAMIC_LINK", "linked", LINKED), ("RUNTIME_DEPENDENCY_OF", "opened at run time, where it is", OPENED)):
        for name, debian, licence in list_:
            packages.append(package(name, out_of("dpkg-query", "-W", "-f", "${Version}", debian) if debian else "", licence, about))
            relations.append(depends(name, kind))
    made = [file_of(path, number) for number, path in enumerate(files, 1)]
    relations += [{"spdxElementId": "SPDXRef-libpickle", "relationshipType": "GENERATES", "relatedSpdxElement": one["SPDXID"]} for one in made]
    json.dump({
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": "libpickle-" + version,
        "documentNamespace": "https://spdx.org/spdxdocs/libpickle-%s-%s" % (version, commit),
        "creationInfo": {"created": out_of("git", "-C", tree, "log", "-1", "--format=%cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ")
                         or "1970-01-01T00:00:00Z", "creators": ["Tool: libpickle-sbom.py"]},
        "hasExtractedLicensingInfos": [{"licenseId": "LicenseRef-NVIDIA", "extractedText": "The licence of NVIDIA's driver."}],
        "packages": packages, "files": made, "relationships": relations}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
