#include "python/request.h"

#include <climits>
#include <string>

#include "python/buffer_sources.h"
#include "python/keep_alive.h"
#include "python/new_reference.h"

namespace deepnvme::python {

const std::shared_ptr<io::File>& OpenFile::opened() const {
    if (file == nullptr) {
        throw py::value_error("the file is closed; open it again");
    }
    return file;
}

std::string path_name(py::handle path) {
    PyObject* encoded = nullptr;
    if (PyUnicode_FSConverter(path.ptr(), &encoded) == 0) {
        throw py::error_already_set();
    }
    return py::reinterpret_steal<py::bytes>(encoded);
}

io::FileName file_name(py::handle file) {
    io::FileName name;
    if (py::isinstance<OpenFile>(file)) {
        name.opened = file.cast<OpenFile&>().opened();
        return name;
    }
    if (PyLong_Check(file.ptr()) != 0 && PyBool_Check(file.ptr()) == 0) {
        const long descriptor = PyLong_AsLong(file.ptr());
        const bool overflow = PyErr_Occurred() != nullptr;
        PyErr_Clear();
        if (overflow || descriptor < 0 || descriptor > INT_MAX) {
            throw py::value_error(
                "file descriptor is " + std::string(py::str(file)) +
                ", but must be that of an open file; give a path or an open descriptor");
        }
        name.descriptor = static_cast<int>(descriptor);
        return name;
    }
    name.path = path_name(file);
    if (name.path.empty()) {
        throw py::value_error("filename is empty; give a path or an open descriptor");
    }
    return name;
}

off_t file_offset(py::handle offset) {
    const py::object index = new_reference(PyNumber_Index(offset.ptr()));
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow != 0 || value < 0) {
        throw py::value_error(
            "file_offset is " + std::string(py::str(index)) +
            ", but must be from 0 to 9223372036854775807; give the byte of the file to start at");
    }
    return value;
}

io::Request make_request(py::handle buffer, bool write) {
    const py::object source =
        write ? resolve_lazy_views(buffer) : py::reinterpret_borrow<py::object>(buffer);
    const bool tensor = is_torch_tensor(source);
    BufferView view = view_buffer(source, true);
    if (!write && !view.writable) {
        throw py::value_error(
            "the buffer to read into is read-only; give one that can be written, such as a "
            "bytearray");
    }
    if (!write && view.may_overlap) {
        throw py::value_error(
            "the tensor to read into has elements that overlap in memory (it was expanded, or "
            "as_strided), so that what "
            "is read could not be told apart; read into a contiguous tensor");
    }
    io::Request request;
    request.data = view.data;
    request.nbytes = view.nbytes;
    request.write = write;
    if (!view.contiguous) {
        request.layout = std::make_shared<io::Layout>(view.shape, view.strides, view.itemsize);
    }
    request.region = pin::deepspeed_pin_tensor_t::instance().use(view.span.data, view.span.nbytes);
    if (!request.region) {
        if (tensor) {
            hold_storage(source, view);  // not of a pinned tensor: a storage that cannot shrink
        }
        request.keepalive = keep_alive(view.owner ? view.owner : source);
    }
    return request;
}

}  // namespace deepnvme::python
