"""The licences of what the program is linked with for any of these targets, with their notices, to standard output: licences.py PACKAGE TARGET…"""
import json
import pathlib
import re
import subprocess
import sys

# The terms that musl and Rust share; their notices are not among the files of either.
MIT = """Permission is hereby granted, free of charge, to any person obtaining
a copy of this software and associated documentation files (the
"Software"), to deal in the Software without restriction, including
without limitation the rights to use, copy, modify, merge, publish,
distribute, sublicense, and/or sell copies of the Software, and to
permit persons to whom the Software is furnished to do so, subject to
the following conditions:

The above copyright notice and this permission notice shall be
included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND,
EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF
MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT.
IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY
CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT,
TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE
SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def notices(directory):
    """What a crate says of its licence: the file for MIT where there is a choice, for it is the one that we take."""
    files = sorted(p for p in directory.iterdir() if p.is_file() and re.match(r"(?i)(un)?licen[cs]e|copying|copyright|notice", p.name))
    preferred = [p for p in files if "apache" not in p.name.lower()] or files
    return [p.read_text(encoding="utf-8", errors="replace").strip() for p in preferred]


def each(option, targets):
    return [word for target in targets for word in (option, target)]


def main(program, *targets):
    tree = output("cargo", "tree", "--locked", "--package", program, "-e", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}", *each("--target", targets))
    linked = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    metadata = json.loads(output("cargo", "metadata", "--locked", "--format-version", "1", *each("--filter-platform", targets)))
    parts = []
    for package in metadata["packages"]:
        name, version = package["name"], package["version"]
        # Without a source it is the program itself.
        if package["source"] and (name, f"v{version}") in linked:
            texts = notices(pathlib.Path(package["manifest_path"]).parent) or ["Copyright: " + ", ".join(package["authors"])]
            parts.append((f"{name} {version}", package["license"], texts))
    rust = output("rustc", "--version").split(" (")[0] + ", its standard library"
    parts.append((rust, "MIT OR Apache-2.0", ["Copyright (c) The Rust Project Contributors\n\n" + MIT]))
    if any("musl" in target for target in targets):
        parts.append(("musl, the C library", "MIT", ["Copyright © 2005-2020 Rich Felker, et al.\n\n" + MIT]))
    for name, licence, texts in sorted(parts):
        print(f"{'=' * 80}\n{name}: {licence}\n{'-' * 80}")
        print("\n\n".join(texts), end="\n\n")


main(*sys.argv[1:])
