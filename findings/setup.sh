# Read by the scripts beside it: goes into a temporary folder, gone at the end, with the scripted server in a project of its own.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$here/server.mjs" "$folder"
cd "$folder"
echo '{"private": true, "type": "module"}' >package.json
