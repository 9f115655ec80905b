#!/usr/bin/env bash
# In a manylinux image: the libraries of the engines (cibuildwheel's before-all; as root). Its own liburing, where it has
# one, is older than what the io_uring engine uses; the release below is built as a static library. Its checksum is that
# of the archive that its author has signed (liburing-2.9.tar.gz.asc), which Debian 13 has as liburing_2.9.orig.tar.gz.
set -euo pipefail
version=2.9
sha256=57e9b36e4ac1e46b8e0351dfb1694dc59638fc25e384b4ba36d87b800b16db1a
url=https://brick.kernel.dk/snaps/liburing-$version.tar.gz

dnf install -y libaio-devel

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
archive=$work/liburing.tar.gz
curl --fail --silent --show-error --location --retry 3 --output "$archive" "$url"
echo "$sha256  $archive" | sha256sum --check
tar -xzf "$archive" -C "$work" --strip-components=1
cd "$work"
./configure --prefix=/usr/local
CFLAGS="-O2 -fPIC" make -C src install ENABLE_SHARED=0 # it becomes part of a shared object
