#!/bin/sh
# Set up entrobench on a freshly installed machine, and run the smallest matrix there.
#
#     tests/fresh.sh [--tests] [SUITE [further arguments for mmdebstrap]]
#
# mmdebstrap creates a Debian (trixie, whose Python is 3.13) with only python3, python3-venv, make and git. The script sets
# up entrobench there, runs `smoke` and, with --tests, the test suite; then the Debian is deleted. An ordinary user can
# run this if user namespaces are allowed. For a suite under development whose index has expired: tests/fresh.sh forky '--aptopt=Acquire::Check-Valid-Until "false"'
set -eu
tests=""
if [ "${1:-}" = "--tests" ]; then
    tests=yes
    shift
fi
suite=${1:-trixie}
[ $# -eq 0 ] || shift
command -v mmdebstrap >/dev/null || { echo "mmdebstrap is missing; Debian, Ubuntu: apt install mmdebstrap" >&2; exit 2; }
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A clone, so that files outside git have no effect.
git clone --quiet --no-hardlinks "$here" "$work/entrobench"

cat > "$work/inside.sh" <<'INSIDE'
set -eu
cd /root/entrobench
echo "== $(. /etc/os-release && echo "$PRETTY_NAME"), $(python3 --version), $(nproc) cores"
received() { awk '/:/ && !/lo:/ {sum += $2} END {printf "%d\n", sum / 1e6}' /proc/net/dev; }
megabytes=$(received); begun=$(date +%s)
make .venv/ready 2>&1 | grep --line-buffered --invert-match WARNING
test -e .venv/ready
echo "== set up in $(($(date +%s) - begun)) s, $(($(received) - megabytes)) MB received, $(du -sm .venv | cut -f1) MB on disk"
begun=$(date +%s)
.venv/bin/entrobench run smoke
echo "== the smallest matrix took $(($(date +%s) - begun)) s"
mkdir /root/crowded && cd /root/crowded
for name in tasks baselines harness configs; do echo "raise SystemExit('$name.py of the folder was imported')" > $name.py; done
/root/entrobench/.venv/bin/entrobench list tasks | grep countdown
echo "== files of the current folder hide nothing"
if [ -n "${TESTS:-}" ]; then
    cd /root/entrobench
    make test
fi
INSIDE

cat > "$work/hook.sh" <<'HOOK'
set -eu
root=$1 work=$2
cp -r "$work/entrobench" "$root/root/entrobench"
cp "$work/inside.sh" "$root/root/"
# This machine's certificates, which may include that of a company's proxy.
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
chroot "$root" env --ignore-environment HOME=/root PATH=/usr/bin:/bin LANG=C.UTF-8 TESTS="${TESTS:-}" \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    sh /root/inside.sh
HOOK

begun=$(date +%s)
TESTS=$tests mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,make,git,ca-certificates \
    --customize-hook="sh $work/hook.sh \"\$1\" $work" --format=null "$@" "$suite" -
echo "== $(($(date +%s) - begun)) s in all"
