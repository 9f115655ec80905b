// Arguments from Python as a request: buffer, file and offset.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "io/file.h"
#include "io/operation.h"

namespace deepnvme::python {

// A file that a handle has opened, for several requests.
struct OpenFile {
    std::shared_ptr<io::File> file;                   // null once closed
    const std::shared_ptr<io::File>& opened() const;  // throws ValueError once closed
};

// A path as bytes. Throws TypeError for what is none, ValueError for one with a null byte.
std::string path_name(pybind11::handle path);

// An OpenFile, an int for an open descriptor, or a path. Throws TypeError or ValueError.
io::FileName file_name(pybind11::handle file);

// A byte of a file, or ValueError for what is negative or beyond 2**63 - 1.
off_t file_offset(pybind11::handle offset);

// The memory of `buffer`, held until the request is over: by its pinned region, or by the object
// that owns it. Throws TypeError for what is not host memory, ValueError for a destination that is
// read-only or whose elements overlap, or for a tensor that reaches beyond its storage.
io::Request make_request(pybind11::handle buffer, bool write);

}  // namespace deepnvme::python
