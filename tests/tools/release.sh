# Sourced by the suites that make releases: keys, and trees as a maintainer commits them.

# release_keys DIRECTORY: keys without passphrases in it, and the variables that name them.
release_keys() {
  mkdir -m 700 "$1" "$1/gnupg"
  export SIGNING_KEY=$1/key GNUPGHOME=$1/gnupg GPG_KEY='again releases'
  ssh-keygen -q -t ed25519 -N '' -C '' -f "$SIGNING_KEY"
  # The secret key is enough.
  rm "$SIGNING_KEY.pub"
  # Older than the commits.
  gpg --batch --quiet --faked-system-time 20200101T000000 --passphrase '' --quick-generate-key "$GPG_KEY" ed25519 sign never
}

# end_release_keys: ends the agent of the keyring.
end_release_keys() { [ -z "${GNUPGHOME:-}" ] || gpgconf --kill all 2> /dev/null || true; }

# release_tree DIRECTORY VERSION DATE: this tree as a release of that version, committed at that date, with the programs in dist.
release_tree() {
  local version
  version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
  mkdir -p "$1/dist" .cache
  git ls-files -z --cached --others --exclude-standard | tar -c --null --files-from - | tar -x -C "$1"
  # What a release installs is there for the next one.
  ln -s "$PWD/.cache" "$1/.cache"
  find dist -maxdepth 1 -regex '.*/again\(-fleet\)?\(-aarch64\)?\(\.debug\)?' -exec cp --target-directory "$1/dist" {} +
  cp -r puppet-module/files "$1/puppet-module/"
  (
    cd "$1"
    sed -i "/^version = /s/\"$version\"/\"$2\"/" Cargo.toml fleet/Cargo.toml
    sed -i "/^name = \"again\(-fleet\)\{0,1\}\"\$/,/^version = /s/\"$version\"/\"$2\"/" Cargo.lock
    sed -i "/^  \"version\": /s/\"$version\"/\"$2\"/" puppet-module/metadata.json
    sed -i "0,/^## .*/s//## [$2] - ${3%T*}/" CHANGELOG.md
    sed -i 's/again\.invalid/again.example.com/; s/packages\.invalid/again.example.com/' release.toml
    git init --quiet
    git add --all
    GIT_AUTHOR_DATE=$3 GIT_COMMITTER_DATE=$3 git -c user.name=maintainer -c user.email=maintainer@example.com -c gc.auto=0 commit --quiet -m "Release $2"
  )
}

# release_commands HEADING [NUMBER]: the block of commands with that number (1) below that heading of doc/install.md.
release_commands() {
  awk -v heading="## $1" -v number="${2:-1}" '/^## / { below = $0 == heading; count = 0 }
    below && /^```sh$/ { count++; on = count == number; next }
    /^```$/ { on = 0 } on' doc/install.md
}
