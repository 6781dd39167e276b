"""metadata.json is complete, and of one version with Cargo.toml: metadata.py METADATA CARGO"""
import json
import re
import sys
import tomllib

metadata = json.load(open(sys.argv[1], encoding="utf-8"))
package = tomllib.load(open(sys.argv[2], "rb"))["package"]
problems = []
for key in ("name", "version", "author", "summary", "license", "source", "dependencies", "requirements", "operatingsystem_support"):
    if key not in metadata:
        problems.append(f"no {key}")
if not re.fullmatch(r"[a-z0-9]+-common", metadata["name"]):
    problems.append(f"name {metadata['name']} does not make a module called common")
for key in ("version", "license"):
    if metadata[key] != package[key]:
        problems.append(f"{key} {metadata[key]} is {package[key]} in Cargo.toml")
if len(metadata["summary"]) > 144:
    problems.append("summary too long for the Forge")
for requirement in metadata["requirements"]:
    if not re.fullmatch(r">= \d+\.\d+\.\d+ < \d+\.0\.0", requirement["version_requirement"]):
        problems.append(f"requirement {requirement}")
print("\n".join(problems))
sys.exit(bool(problems))
