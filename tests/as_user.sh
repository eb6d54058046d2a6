#!/bin/sh
# Runs a command as a user who is not root: as nobody where root starts it, with a home folder that goes away with it.
set -eu
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
export HOME="$home" PYTHONDONTWRITEBYTECODE=1
unset XDG_CACHE_HOME XDG_DATA_HOME
if [ "$(id -u)" -ne 0 ]; then
    "$@"
else
    chown 65534:65534 "$home"
    setpriv --reuid=65534 --regid=65534 --clear-groups "$@" --basetemp="$home/tests"
fi
