#!/bin/sh
# make_venv.sh FOLDER: create a virtual environment with the first Python on PATH that is new enough.
set -eu
folder=$1
start=$(date +%s)
for python in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python; do
    command -v "$python" >/dev/null 2>&1 || continue
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
    if ! "$python" -m venv "$folder" 2>/dev/null; then
        rm -rf "$folder"
        echo "$python cannot create virtual environments (on Debian: apt-get install python3-venv)." >&2
        exit 1
    fi
    printf '  %-14s%s in %s, %d s\n' Python "$("$folder/bin/python" -V | cut -d' ' -f2)" "$folder" \
        $(($(date +%s) - start))
    exit 0
done
found=$(python3 --version 2>/dev/null || echo "no Python at all")
echo "Continuo needs Python 3.11 or newer; found $found. Choose another with: make PYTHON=/path/to/python3.12 ..." >&2
exit 1
