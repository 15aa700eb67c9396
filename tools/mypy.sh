#!/usr/bin/env bash
# mypy sees the rooms of the house as eroica.*: a tree of links under build/, since type checkers do not follow editable installs.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=build/links/eroica
rm -rf build/links && mkdir -p "$tree"
ln -s "$PWD"/eroica/__init__.py "$PWD"/eroica/py.typed "$tree"/
for room in schemas topology bus producers streams localizer consumers simulator offline cli; do
  [ -d "$room" ] && ln -s "$PWD/$room" "$tree/$room"
done
export MYPYPATH="$PWD/build/links"
exec "${PYTHON:-.venv/bin/python}" -m mypy --config-file pyproject.toml -p eroica "$@"
