"""metadata.json is complete, of one version with Cargo.toml, and names what the matrix runs: metadata.py METADATA CARGO PLACES"""
import json
import re
import sys
import tomllib

metadata = json.load(open(sys.argv[1], encoding="utf-8"))
package = tomllib.load(open(sys.argv[2], "rb"))["package"]
problems = []
# What metadata-json-lint does not ask for.
for key in ("project_page", "issues_url"):
    if key not in metadata:
        problems.append(f"no {key}")
if not re.fullmatch(r"[a-z0-9]+-common", metadata["name"]):
    problems.append(f"name {metadata['name']} does not make a module called common")
if metadata["version"] != package["version"]:
    problems.append(f"version {metadata['version']} is {package['version']} in Cargo.toml")
# The Forge takes one licence; either may be chosen.
if metadata["license"] not in package["license"].split(" OR "):
    problems.append(f"license {metadata['license']} is none of {package['license']} in Cargo.toml")
if len(metadata["summary"]) > 144:
    problems.append("summary too long for the Forge")
# The lowest version of each Puppet that was run, and all after it up to the next major one. No distribution that the matrix can use has an
# OpenVox 8; it is Puppet 8 under another name, which was run.
ran = {"openvox": [[8, 0]]}
for name, version in re.findall(r'name: "(\w+)-\d+",\s+version: "([\d.]+)\."', open(sys.argv[3], encoding="utf-8").read()):
    ran.setdefault(name, []).append([int(part) for part in version.split(".")])
if set(ran) != {requirement["name"] for requirement in metadata["requirements"]}:
    problems.append(f"requirements other than {', '.join(ran)}")
for requirement in metadata["requirements"]:
    match = re.fullmatch(r">= (\d+)\.(\d+)\.0(?:-rc\d+)? < (\d+)\.0\.0", requirement["version_requirement"])
    versions = sorted(ran.get(requirement["name"], []))
    if not match or not versions or [int(part) for part in match.group(1, 2)][: len(versions[0])] != versions[0]:
        problems.append(f"requirement {requirement}: not what was run")
    elif int(match.group(3)) != versions[-1][0] + 1:
        problems.append(f"requirement {requirement}: beyond what was run")
print("\n".join(problems))
sys.exit(bool(problems))
