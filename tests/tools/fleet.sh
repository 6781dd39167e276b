# Sourced by what shows a fleet: a Puppet CA, an etcd, and nodes as processes on loopback, all in $scratch. A node has its own state, settings,
# certificate, and its two processes; `begin_fleet` before, `end_fleet` after whatever happened.
fleet_needs='puppet-agent ruby-puppetserver-ca-cli etcd-server etcd-client systemd util-linux binutils gcc libc6-dev protobuf-compiler libprotobuf-dev'
nodes=() pids=()

# begin_fleet DIRECTORY-OF-PROGRAMS
begin_fleet() {
  mkdir -p "$scratch"/{bin,ca,code/environments/production/modules,shared}
  cp "$1/again" "$1/again-fleet" "$scratch/bin/"
  cd /
  ln -s "$repo/puppet-module" "$scratch/code/environments/production/modules/common"
  ruby "$repo/fleet/tests/support/ca.rb" "$scratch/ca" > "$scratch/ca.log" 2>&1 || { cat "$scratch/ca.log" >&2; return 1; }
  local attempt
  for attempt in $(seq 20); do
    port=$((20000 + RANDOM % 10000))
    start_etcd && return
  done
  cat "$scratch/etcd.log" >&2
  return 1
}

# start_etcd: on $port; fails if somebody else has it.
start_etcd() {
  local ca=$scratch/ca member=http://127.0.0.1:0
  in_background "$scratch/etcd.log" etcd --name demo --data-dir "$scratch/etcd" --logger zap --client-cert-auth \
    --cert-file "$ca/server.test.pem" --key-file "$ca/server.test.key" --trusted-ca-file "$ca/ca.pem" --client-crl-file "$ca/crl.pem" \
    --listen-client-urls "https://127.0.0.1:$port" --advertise-client-urls "https://localhost:$port" \
    --listen-peer-urls $member --initial-advertise-peer-urls $member --initial-cluster demo=$member
  etcd_pid=$!
  local since=$SECONDS
  while [ $((SECONDS - since)) -lt 180 ]; do
    etcd_as lb1.test endpoint health > /dev/null 2>&1 && return
    kill -0 $etcd_pid 2> /dev/null || return
    sleep 0.1
  done
  return 1
}

# etcd_as NODE WORD…: etcdctl with that node's certificate.
etcd_as() {
  ETCDCTL_API=3 etcdctl --endpoints "https://localhost:$port" --cacert "$scratch/ca/ca.pem" --cert "$scratch/ca/$1.pem" --key "$scratch/ca/$1.key" "${@:2}"
}

# in_background LOG COMMAND…: its pid is $!. It ends with this shell, however that ends.
in_background() {
  setpriv --pdeathsig KILL -- "${@:2}" < /dev/null >> "$1" 2>&1 &
  pids+=($!)
}

# end_process PID SIGNAL
end_process() {
  kill -s "$2" "$1" 2> /dev/null || true
  wait "$1" 2> /dev/null || true
}

# node NAME SETTING…: with its settings, not yet running.
node() {
  local name=$1 dir=$scratch/${1%.test}
  shift
  nodes+=("$name")
  mkdir -p "$dir"/{bin,run,puppet}
  printf '%s\n' '[main]' "certname = $name" "vardir = $dir/puppet/var" "rundir = $dir/puppet/run" "publicdir = $dir/puppet/public" \
    "codedir = $scratch/code" > "$dir/puppet/puppet.conf"
  printf '%s\n' "state_dir = \"$dir/again\"" "log_dir = \"$dir/log\"" 'jitter = 0' 'container = "stays"' > "$dir/again.toml"
  printf '%s\n' "endpoints = [\"localhost:$port\"]" "certname = \"$name\"" \
    "cert = \"$scratch/ca/$name.pem\"" "key = \"$scratch/ca/$name.key\"" "ca = \"$scratch/ca/ca.pem\"" "crl = \"$scratch/ca/crl.pem\"" \
    "run_cmd = [\"puppet\", \"apply\", \"--confdir\", \"$dir/puppet\", \"$scratch/site.pp\"]" "cwd = \"$PWD\"" \
    "helper = \"$scratch/bin/again\"" "run_dir = \"$dir/run\"" "state_dir = \"$dir/fleet\"" "$@" > "$dir/again-fleet.toml"
  # What a run finds in its path; on a machine of its own the settings are in /etc.
  printf '#!/bin/sh\nexport AGAIN_FLEET_CONFIG=%s\nexec %s "$@"\n' "$dir/again-fleet.toml" "$scratch/bin/again-fleet" > "$dir/bin/again-fleet"
  chmod 755 "$dir/bin/again-fleet"
}

# on NODE COMMAND…: with that node's settings, which of NODE puts into $with.
of() { with=(env "AGAIN_CONFIG=$scratch/${1%.test}/again.toml" "PATH=$scratch/${1%.test}/bin:$scratch/bin:$PATH"); }
on() {
  of "$1"
  "${with[@]}" "${@:2}"
}

# puppet_on NODE: a run of Puppet, as a person or cron starts it; its output is in run.log.
puppet_on() {
  of "$1"
  : > "$scratch/run.log"
  in_background "$scratch/run.log" "${with[@]}" puppet apply --color false --confdir "$scratch/${1%.test}/puppet" "$scratch/site.pp"
  wait $!
}

# start_node NAME: its two processes, as its units would start them; it is back when the backend is reached.
start_node() {
  local dir=$scratch/${1%.test}
  rm -f "$dir/run/executor"
  in_background "$dir/executor.log" systemd-socket-activate --listen "$dir/run/executor" -E "AGAIN_CONFIG=$dir/again.toml" -E "AGAIN_FLEET_CONFIG=$dir/again-fleet.toml" \
    -E "PATH=$dir/bin:$scratch/bin:$PATH" -E "HOME=$HOME" -- "$scratch/bin/again-fleet" executor --idle 1h
  echo $! > "$dir/executor.pid"
  in_background "$dir/serve.log" env "AGAIN_FLEET_CONFIG=$dir/again-fleet.toml" "$scratch/bin/again-fleet" serve
  echo $! > "$dir/serve.pid"
  until_ 'a service' reached "$1"
}
reached() { on "$1" again-fleet check 2> /dev/null | grep -q '^ok *link'; }

# stop_node NAME: as a machine that is switched off stops them.
stop_node() {
  local dir=$scratch/${1%.test} which
  for which in serve executor; do end_process "$(cat "$dir/$which.pid")" KILL; done
}

# until_ WHAT COMMAND…: waits for the command to succeed, ten minutes at most.
until_() {
  local since=$SECONDS
  until "${@:2}"; do
    if [ $((SECONDS - since)) -gt 600 ]; then
      echo "waited in vain for $1" >&2
      tail -n 20 "$scratch"/*/serve.log "$scratch"/*/executor.log >&2
      exit 1
    fi
    sleep 0.4
  done
}

# end_fleet: no process is left, and no file.
end_fleet() {
  trap '' INT TERM
  local name pid
  # What an Exec waits for.
  rm -rf "$scratch/shared"
  for name in "${nodes[@]}"; do
    stop_node "$name"
    on "$name" again stop --run > /dev/null 2>&1 || true
  done
  for pid in "${pids[@]}"; do end_process "$pid" KILL; done
  rm -rf "$scratch"
}
