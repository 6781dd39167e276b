# Runs a puppetserver for as long as somebody holds the other end of our standard input, then ends it and removes its
# directory. Usage: server.sh DIRECTORY COMMAND… ; the test program's death, of whatever kind, closes the pipe, and the death
# of this shell takes the server with it.
dir=$1
shift
if [ "$(id -u)" = 0 ]; then
    chown -R puppet:puppet "$dir"
    set -- setpriv --reuid puppet --regid puppet --clear-groups --pdeathsig KILL "$@"
else
    set -- setpriv --pdeathsig KILL "$@"
fi
trap '' INT HUP
"$@" >"$dir/log/output.log" 2>&1 </dev/null &
server=$!
echo "$server" >"$dir/pid"
cat >/dev/null
kill -KILL "$server"
wait "$server"
rm -rf "$dir"
