#!/usr/bin/env bash
# Prints the folder that holds onnxruntime_c_api.h, looking in this order:
#   1. $ONNXRUNTIME_INCLUDE_DIR;
#   2. the system's include path;
#   3. Debian's libonnxruntime-dev, unpacked below build/ (nothing is installed on the machine).
# For 3 the machine's own Debian sources are read with a newer suite in place of theirs, because Debian 12 has no such
# package and Debian 13's is too old. apt keeps its signature check and uses lists and a cache of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
dest=$root/build/ort-headers
need=23 # the first ORT_API_VERSION with plugin providers that this project uses

say() { printf '%s\n' "$*" >&2; }
advice="set ONNXRUNTIME_INCLUDE_DIR to the folder that holds onnxruntime_c_api.h and onnxruntime_ep_c_api.h of ONNX Runtime 1.23 or newer (the include folder of its C/C++ release archive)"

usable() {  # usable FOLDER: both headers, of a version that has plugin providers
  [ -f "$1/onnxruntime_c_api.h" ] && [ -f "$1/onnxruntime_ep_c_api.h" ] || return 1
  local version
  version=$(sed -n 's/^#define ORT_API_VERSION \([0-9]*\).*/\1/p' "$1/onnxruntime_c_api.h")
  [ "${version:-0}" -ge "$need" ]
}

if [ -n "${ONNXRUNTIME_INCLUDE_DIR:-}" ]; then
  usable "$ONNXRUNTIME_INCLUDE_DIR" && { echo "$ONNXRUNTIME_INCLUDE_DIR"; exit; }
  say "error: ONNXRUNTIME_INCLUDE_DIR=$ONNXRUNTIME_INCLUDE_DIR has no ONNX Runtime headers of version 1.23 or newer; $advice"
  exit 2
fi

for prefix in /usr/local/include /usr/include "/usr/include/$(uname -m)-linux-gnu"; do
  for folder in "$prefix/onnxruntime" "$prefix/onnxruntime/core/session" "$prefix"; do
    usable "$folder" && { echo "$folder"; exit; }
  done
done

found="$dest/usr/include/onnxruntime"
usable "$found" && { echo "$found"; exit; }

# From here on: a Debian machine only.
codename=$(. /etc/os-release 2>/dev/null && [ "${ID:-}" = debian ] && echo "${VERSION_CODENAME:-}" || true)
if [ -z "$codename" ] || ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  say "error: no ONNX Runtime headers found, and this is not a Debian machine they could be fetched on; $advice"
  exit 2
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/tilegraph-headers.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/unpacked"
chmod -R a+rX "$work" # apt downloads as a user of its own when root calls it

write_sources() {  # write_sources SUITE: this machine's main archive with that suite
  rm -f "$work"/sources.*
  local file
  for file in /etc/apt/sources.list.d/*.sources; do
    [ -f "$file" ] || continue
    # One stanza a record; keep the one whose Suites name this release itself (not only -updates or -security).
    awk -v want="$codename" -v suite="$1" 'BEGIN { RS = ""; FS = "\n" } {
      types = suites = 0
      for (i = 1; i <= NF; i++) {
        if ($i ~ /^Types:.*deb( |$)/) types = 1
        if ($i ~ /^Suites:/) { n = split($i, words, /[ \t]+/); for (j = 2; j <= n; j++) if (words[j] == want) suites = 1 }
        if ($i ~ /^Enabled:[ \t]*no/) types = 0
      }
      if (!types || !suites) next
      for (i = 1; i <= NF; i++) {
        if ($i ~ /^#/) continue
        if ($i ~ /^Types:/) $i = "Types: deb"
        if ($i ~ /^Suites:/) $i = "Suites: " suite
        if ($i ~ /^Components:/) $i = "Components: main"
        print $i
      }
      print ""
    }' "$file" >> "$work/sources.sources"
  done
  [ -s "$work/sources.sources" ] && { echo "$work/sources.sources"; return; }
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ -f "$file" ] || continue
    awk -v want="$codename" -v suite="$1" '/^deb / {
      for (i = 2; i <= NF; i++) if ($i == want) { line = "deb"; for (j = 2; j < i; j++) line = line " " $j; print line " " suite " main"; next }
    }' "$file" >> "$work/sources.list"
  done
  [ -s "$work/sources.list" ] && echo "$work/sources.list"
}

fetch() {  # fetch SUITE
  local sources
  sources=$(write_sources "$1") || return 1
  local apt=(apt-get -q -o "Dir::Etc::SourceList=$sources" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o Debug::NoLocking=1
    -o Acquire::Languages=none -o APT::Get::List-Cleanup=0 -o Acquire::Retries=2)
  "${apt[@]}" update >"$work/log" 2>&1 || return 1
  (cd "$work/cache" && "${apt[@]}" download libonnxruntime-dev >>"$work/log" 2>&1) || return 1
  dpkg-deb -x "$work"/cache/libonnxruntime-dev_*.deb "$work/unpacked" >>"$work/log" 2>&1 || return 1
  usable "$work/unpacked/usr/include/onnxruntime"
}

for suite in forky sid; do
  say "fetching the ONNX Runtime headers from Debian $suite (once)"
  if fetch "$suite"; then
    rm -rf "$dest"
    mkdir -p "$(dirname "$dest")"
    mv "$work/unpacked" "$dest"
    echo "$found"
    exit
  fi
  sed 's/^/  apt: /' "$work/log" 2>/dev/null | tail -n 5 >&2 || true
  rm -f "$work"/cache/*.deb
done
say "error: Debian's libonnxruntime-dev could not be fetched; check the network, or $advice"
exit 2
