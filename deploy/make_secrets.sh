#!/bin/sh
# What compose.yaml and the Kubernetes manifests give to the services as secrets, made once. A key
# for clients is printed.
set -eu
folder=${1:-secrets}
umask 077
mkdir -p "$folder"
random() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }
[ -s "$folder/link" ] || random >"$folder/link"
if [ ! -s "$folder/api_keys" ]; then
    key="sk-$(random)"
    printf '[[keys]]\nkey = "%s"\ntenant = "default"\nscopes = ["converse", "read"]\n' "$key" >"$folder/api_keys"
    echo "A key for clients, also in $folder/api_keys: $key"
fi
# The key of the operator, with which Prometheus scrapes the gateways.
if [ ! -s "$folder/metrics_key" ]; then
    printf 'sk-%s' "$(random)" >"$folder/metrics_key"
    printf '\n[[keys]]\nkey = "%s"\ntenant = "metrics"\nscopes = ["admin"]\n' \
        "$(cat "$folder/metrics_key")" >>"$folder/api_keys"
fi
# The users of Redis: one for Continuo, with all that it and `continuo store` need, and the default
# user, who may only ask whether Redis answers.
if [ ! -s "$folder/redis_users" ] || [ ! -s "$folder/store" ]; then
    password=$(random)
    cat >"$folder/redis_users" <<USERS
user default on nopass resetkeys resetchannels -@all +ping
user continuo on >$password resetchannels ~continuo:* -@all +@read +@write +@scripting +@connection +time +info +config|get +memory|purge -keys
USERS
    echo "store = \"redis://continuo:$password@redis:6379/0\"" >"$folder/store"
fi
# The services run as another user; nobody else can enter the folder.
chmod 644 "$folder/link" "$folder/api_keys" "$folder/redis_users" "$folder/store" "$folder/metrics_key"
