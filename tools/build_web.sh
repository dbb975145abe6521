#!/bin/sh
# Build the web page into the package if it is older than its sources. Needs Node.js 20 with npm, and
# a network the first time; without them the server still serves the API.
set -eu
cd "$(dirname "$0")/../web"
page=../realtime/server/assets/index.html

major=$(node -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0)
if [ "$major" -lt 20 ] || ! command -v npm >/dev/null 2>&1; then
    echo "Node.js 20 or newer is not installed: the page is not built, everything else works." >&2
    exit 1
fi
if [ ! node_modules/.package-lock.json -nt package-lock.json ]; then
    echo "Installing the packages that build the page."
    if ! npm ci --silent --no-progress; then
        echo "npm ci failed: the page is not built, everything else works." >&2
        exit 1
    fi
    touch node_modules/.package-lock.json
fi
# src/client/dist is the built client library, not a source.
newer=$(find src public ./*.html ./*.ts package-lock.json -path src/client/dist -prune -o \
    -type f -newer "$page" -print 2>/dev/null | head -1)
if [ ! -e "$page" ] || [ -n "$newer" ]; then
    echo "Building the page."
    npm run --silent build -- --logLevel warn
fi
