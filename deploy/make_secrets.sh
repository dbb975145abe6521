#!/bin/sh
# What compose.yaml gives to its services as secrets, made once. A key for clients is printed.
set -eu
folder=${1:-secrets}
umask 077
mkdir -p "$folder"
random() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }
[ -s "$folder/link" ] || random >"$folder/link"
if [ ! -s "$folder/api_keys" ]; then
    key="sk-$(random)"
    echo "$key = default" >"$folder/api_keys"
    echo "A key for clients, also in $folder/api_keys: $key"
fi
# The services run as another user; nobody else can enter the folder.
chmod 644 "$folder/link" "$folder/api_keys"
