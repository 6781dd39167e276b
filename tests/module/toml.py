"""Values that again.toml may be asked to carry, and whether a TOML parser reads them back.

toml.py cases                    print them as JSON, for Hiera
toml.py compare CASES DIRECTORY  compare with DIRECTORY/NUMBER.toml
"""
import json
import random
import sys
import tomllib

STRINGS = [
    "", " ", '"', '""', '"""', "'", "'''", "\\", "\\\\", '\\"', "\\n", "\\u0041", "a b", "#", "= [1]", "$HOME", "<%= 1 %>",
    "\t", "\n", "\r\n", "\b\f\x1b", "\x01\x1f", "\x7f", "\x80\x9f", "\u00fc", "\u2028\u2029", "\ufeff", "\ufffd", "\U0001f600", "e\u0301", "\u202e",
]


def cases():
    dice = random.Random(7)
    alphabet = ['"', "\\", "\n", "\t", "\x7f", "\x1f", "'", "#", "u", "U", "0", "{", "}", "\u00e9", "\U0001f680", " ", "/"]
    strings = STRINGS + ["".join(dice.choices(alphabet, k=dice.randrange(1, 40))) for _ in range(150)]
    found = [{"command": ["/x", text]} for text in strings]
    found += [{"state_dir": "/" + text} for text in strings if text.isprintable()]
    found += [
        {},
        {"command": ["/x"]},
        {"command": ["/x"] + strings},
        {"jitter": 0, "max_jitter": "5m", "max_runs": 6, "window": 315360000, "on_cap": "wait", "slots": True, "save_environment": False, "scope": "never",
         "command": ["/opt/run", "agent"], "state_dir": "/srv/a b", "log_dir": "/l", "keep_logs": 0, "max_log_size": "1M", "agent_catalog_run_lockfile": "/1",
         "agent_disabled_lockfile": "/2", "lastrunfile": "/3", "pidfile": "/4"},
    ]
    return {str(number): case for number, case in enumerate(found)}


if sys.argv[1] == "cases":
    print(json.dumps({"cases": cases()}))
else:
    wanted = json.load(open(sys.argv[2], encoding="utf-8"))["cases"]
    wrong = 0
    for number, case in wanted.items():
        with open(f"{sys.argv[3]}/{number}.toml", "rb") as file:
            text = file.read()
        try:
            read = tomllib.loads(text.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            read = error
        if read != case or [type(value) for value in read.values()] != [type(value) for value in case.values()]:
            wrong += 1
            print(f"{case!r}\n  was written as {text!r}\n  and read as {read!r}")
    print(f"{len(wanted) - wrong} of {len(wanted)} files read back")
    sys.exit(wrong > 0 or len(wanted) < 200)
