# Sourced by the module's tests: the module under both of its names, as its two packages have it.

# write_trees DIRECTORY PROGRAM: DIRECTORY/common/common and DIRECTORY/again/again, each with the other one beside it as `other`, and each with
# PROGRAM and its pages among its files.
write_trees() {
  local repo name files
  repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
  mkdir -p "$1"/{common,again} && cp -r "$repo/puppet-module" "$1/common/common" && rm -rf "$1"/common/common/{.bundle,Gemfile.lock,spec/fixtures,files} &&
    "$repo/packaging/rename-module" "$1/common/common" "$1/again/again" && ln -s ../again/again "$1/common/other" && ln -s ../common/common "$1/again/other" || return 1
  for name in common again; do
    files=$1/$name/$name/files
    mkdir -p "$files"/{x86_64,aarch64,man,completions} && install -m 0755 "$2" "$files/$(uname -m)/again" &&
      cp "$repo"/man/again{.8,-json.5,.toml.5} "$files/man/" &&
      cp "$repo"/completions/{again.bash,_again,again.fish} "$files/completions/" || return 1
  done
}
