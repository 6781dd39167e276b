# Sourced by what writes a page whose outputs are real: a command and its output as they stand on the page, and whether a page still is what
# comes out.

# shown COMMAND…: the command as it is typed, and what it prints.
shown() {
  echo '```console'
  echo "\$ $*"
  eval "$@" 2>&1 || true
  echo '```'
  echo
}

# masked FILE: times, ids and pids differ from one run to the next. A short run of a fleet has ended before anybody told that it has started.
masked() {
  sed -E 's/[0-9]{8}T[0-9]{9}-[0-9a-f]{8}/LOG/g; s/\b[0-9a-f]{32}\b/ID/g; s/\b[0-9a-f]{16}\b/ID/g; s/\b[0-9a-f]{8}\b/CHAIN/g; s/[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}/TIME/g;
    s/\b([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+(\.[0-9]+)?s)\b/SPAN/g; s/\b([0-9]+d)?([0-9]+h)?[0-9]+m\b/SPAN/g; s/(pid|process) [0-9]+/\1 N/g; s/kill [0-9]+/kill N/;
    s/ in [0-9.]+ seconds/ in S seconds/; s/ [0-9]+ MB of memory/ N MB of memory/;
    /: started$/d; s/([0-9]{4}-[0-9]{2}-[0-9]{2} )?\b[0-9]{2}:[0-9]{2}(:[0-9]{2})?\b/CLOCK/g; s/\b[0-9]{13}\b/NUMBER/g; s/etcd [0-9.]+ is/etcd VERSION is/; s/ +/ /g' "$1"
}

# page NAME PAGE OUT WORD: prints it; with --check as the word it says whether PAGE is that, as a test.
page() {
  if [ "$4" != --check ]; then
    cat "$3"
  elif diff -u <(masked "$repo/$2") <(masked "$3"); then
    echo "$1: 1 passed, 0 failed"
  else
    echo "$2 is not what comes out: tests/tools/$1 > $2" >&2
    echo "$1: 0 passed, 1 failed"
    return 1
  fi
}

# pages NAME DIRECTORY FROM WORD PAGE…: writes the pages in FROM to DIRECTORY of the repository; with --check as the word it compares them, as tests.
pages() {
  local name=$1 to=$2 from=$3 page passed=0 failed=0
  if [ "$4" != --check ]; then
    for page in "${@:5}"; do cp "$from/$page.md" "$repo/$to/"; done
    return
  fi
  for page in "${@:5}"; do
    if diff -u <(masked "$repo/$to/$page.md") <(masked "$from/$page.md"); then
      passed=$((passed + 1))
    else
      echo "$to/$page.md differs from the output; write it anew with tests/tools/$name" >&2
      failed=$((failed + 1))
    fi
  done
  echo "$name: $passed passed, $failed failed"
  [ "$failed" = 0 ]
}
