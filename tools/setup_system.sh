#!/bin/sh
# Install the system programs that some tests start. Where that is not possible, those tests skip and
# give the reason.
set -eu

missing=""
command -v redis-server >/dev/null 2>&1 || missing="$missing redis-server"
command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
command -v haproxy >/dev/null 2>&1 || missing="$missing haproxy"
command -v prometheus >/dev/null 2>&1 || missing="$missing prometheus"
command -v openssl >/dev/null 2>&1 || missing="$missing openssl"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "Not installed:$missing. The tests that need it are skipped." >&2
    exit 0
fi
echo "Installing$missing, which some tests start."
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086  # a list of names
if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >/dev/null; then
    echo "Could not install:$missing. The tests that need it are skipped." >&2
fi
