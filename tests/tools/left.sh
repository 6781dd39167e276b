# Sourced by the demos: runs one as a test, and looks for what it has left behind: files, processes, a port.

# left OUTPUT: whether something is, of a demo that has said this.
left() {
  local scratch port process bad=1
  scratch=$(grep -oEm 1 '/tmp/again-demo[a-z-]*\.[A-Za-z0-9]+' <<< "$1" | head -n 1) || { echo 'the demo named no directory'; return 0; }
  port=$(sed -n 's/.*etcd on localhost:\([0-9]*\).*/\1/p' <<< "$1" | head -n 1)
  if [ -e "$scratch" ]; then echo "left behind: $scratch"; bad=0; fi
  for process in /proc/[0-9]*; do
    if grep -qsaF "$scratch" "$process/environ" "$process/cmdline" ||
       { readlink "$process/cwd" "$process/exe" 2> /dev/null | grep -qF "$scratch"; }; then
      # What has ended meanwhile was not left.
      [ ! -e "$process" ] || { echo "left running: ${process#/proc/} $(tr '\0' ' ' < "$process/cmdline")"; bad=0; }
    fi
  done
  if [ -n "$port" ] && (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null; then echo "left open: port $port"; bad=0; fi
  return $bad
}

# check_demo NAME [LINE]: with the programs in dist, to the end; and with LINE once more, interrupted when the demo has said that.
check_demo() {
  export PROGRAMS=${PROGRAMS:-$repo/dist}
  local demo=$repo/tests/tools/$1 tests=1 failed=0 pid status n
  # Not local: the trap outlives this function.
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  "$demo" 2>&1 | tee "$log" || failed=1
  ! left "$(cat "$log")" || failed=1
  if [ -n "${2:-}" ]; then
    tests=2
    env --default-signal=INT "$demo" > "$log" 2>&1 &
    pid=$!
    while kill -0 $pid 2> /dev/null && ! grep -qF "$2" "$log"; do sleep 0.1; done
    # Every ten seconds, as a person would: bash 5.2 loses a signal that comes while it reads a $(…).
    for n in {0..5999}; do
      kill -0 $pid 2> /dev/null || break
      ((n % 100)) || kill -s INT $pid || true
      sleep 0.1
    done
    status=0
    wait $pid || status=$?
    # A demo that has ended by itself was not interrupted.
    [ $status = 130 ] || { cat "$log"; echo "interrupted, it ended with $status"; failed=$((failed + 1)); }
    ! left "$(cat "$log")" || failed=$((failed + 1))
  fi
  [ $failed -le $tests ] || failed=$tests
  echo "$1: $((tests - failed)) passed, $failed failed"
  return $((failed > 0))
}
