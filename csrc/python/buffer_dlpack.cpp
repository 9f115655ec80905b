#include <cstdint>
#include <string>
#include <utility>

#include "python/buffer_sources.h"
#include "python/dlpack_abi.h"

namespace deepnvme::python {
namespace {

// The tensor of a capsule, which is ours, to be deleted with `owner`, once the capsule is renamed,
// as DLPack's Python protocol has it.
template <typename Managed>
Managed* consume(py::handle capsule, const char* name, const char* used, py::object& owner) {
    auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
    owner = py::capsule(managed, [](void* pointer) {
        auto* owned = static_cast<Managed*>(pointer);
        if (owned->deleter != nullptr) {
            owned->deleter(owned);
        }
    });
    PyCapsule_SetName(capsule.ptr(), used);
    return managed;
}

int32_t device_type(py::handle object) {
    return object.attr("__dlpack_device__")().cast<std::pair<int32_t, int32_t>>().first;
}

bool is_host(int32_t device) {
    return device == dlpack::kCPU || device == dlpack::kCUDAHost || device == dlpack::kROCMHost;
}

py::object exported(py::handle object) {
    try {
        return object.attr("__dlpack__")(py::arg("max_version") = py::make_tuple(1, 0));
    } catch (py::error_already_set& error) {
        if (!error.matches(PyExc_TypeError)) {
            throw;
        }
        return object.attr("__dlpack__")();  // an exporter from before DLPack 1.0
    }
}

// A stride, which may be negative, in bytes.
int64_t stride_in_bytes(int64_t elements, size_t itemsize) {
    int64_t bytes = 0;
    if (__builtin_mul_overflow(elements, static_cast<int64_t>(itemsize), &bytes)) {
        throw py::value_error("the DLPack tensor says that it has a stride of " +
                              std::to_string(elements) + " elements of " +
                              std::to_string(itemsize) +
                              " bytes, which cannot be; correct its exporter");
    }
    return bytes;
}

// An exporter may say anything.
int64_t checked_product(int64_t bytes, int64_t factor) {
    int64_t product = 0;
    if (factor < 0 || __builtin_mul_overflow(bytes, factor, &product)) {
        throw py::value_error("the DLPack tensor says that it has a dimension of " +
                              std::to_string(factor) + " elements of " + std::to_string(bytes) +
                              " bytes, which cannot be; correct its exporter");
    }
    return product;
}

}  // namespace

bool has_dlpack(py::handle object) {
    return py::hasattr(object, "__dlpack__") && py::hasattr(object, "__dlpack_device__");
}

bool dlpack_in_host_memory(py::handle object) { return is_host(device_type(object)); }

BufferView view_dlpack(py::handle object) {
    if (const int32_t device = device_type(object); !is_host(device)) {
        throw py::type_error(std::string(Py_TYPE(object.ptr())->tp_name) +
                             " is on DLPack device type " + std::to_string(device) +
                             ", not in host memory; copy it there first");
    }
    const py::object capsule = exported(object);
    BufferView view;
    const dlpack::Tensor* tensor = nullptr;
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
        auto* managed = consume<dlpack::VersionedTensor>(capsule, "dltensor_versioned",
                                                         "used_dltensor_versioned", view.owner);
        if (managed->version.major != 1) {  // fields may lie elsewhere; the deleter may not
            throw py::type_error("DLPack " + std::to_string(managed->version.major) +
                                 " is not known here");
        }
        // A copy that the exporter made is lost when it goes, and with it what was read into it.
        view.writable = (managed->flags & (dlpack::flag_read_only | dlpack::flag_copied)) == 0;
        tensor = &managed->tensor;
    } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor") != 0) {
        tensor = &consume<dlpack::ManagedTensor>(capsule, "dltensor", "used_dltensor", view.owner)
                      ->tensor;
    } else {
        throw py::type_error(std::string("the __dlpack__() of ") + Py_TYPE(object.ptr())->tp_name +
                             " returned no capsule with a tensor, or one that is used already; "
                             "correct its exporter");
    }
    const unsigned bits = unsigned{tensor->dtype.bits} * tensor->dtype.lanes;
    if (bits % 8 != 0) {
        throw py::type_error("elements of " + std::to_string(bits) + " bits are not whole bytes");
    }
    view.itemsize = bits / 8;
    view.data = static_cast<std::byte*>(tensor->data) + tensor->byte_offset;
    auto expected =
        static_cast<int64_t>(view.itemsize);  // row-major stride of the dimension at hand
    for (int d = tensor->ndim - 1; d >= 0; --d) {
        const int64_t length = tensor->shape[d];
        if (tensor->strides != nullptr && length > 1) {
            view.contiguous &= stride_in_bytes(tensor->strides[d], view.itemsize) == expected;
        }
        expected = checked_product(expected, length);
    }
    view.nbytes = static_cast<size_t>(expected);
    view.contiguous |= view.nbytes == 0;
    if (!view.contiguous) {
        for (int d = 0; d < tensor->ndim; ++d) {
            view.shape.push_back(tensor->shape[d]);
            // That of a dimension of one element may be anything, and is not used.
            const int64_t stride = tensor->shape[d] > 1 ? tensor->strides[d] : 1;
            view.strides.push_back(stride_in_bytes(stride, view.itemsize));
        }
    }
    measure(view);
    return view;
}

}  // namespace deepnvme::python
