#include <cstdint>
#include <string>
#include <vector>

#include "python/buffer_sources.h"
#include "python/dlpack_abi.h"

namespace deepnvme::python {
namespace {

struct Torch {
    PyTypeObject* tensor;
    PyObject* no_dispatch;  // the __torch_dispatch__ of types that do not have their own
    PyObject* strided;      // torch.strided
    // One call for address, shape and strides; null where this torch has none.
    int (*describe)(void* tensor, dlpack::Tensor* out);
};

// Null until the program has imported torch: without it there are no tensors, and importing it
// takes seconds. Found once; its references are kept for good.
const Torch* torch() {
    static Torch found{};
    if (found.tensor != nullptr) {
        return &found;
    }
    static PyObject* const name = PyUnicode_InternFromString("torch");
    const auto module = py::reinterpret_steal<py::object>(PyImport_GetModule(name));
    // A module that another thread is importing has no Tensor yet.
    const py::object tensor = module ? py::getattr(module, "Tensor", py::none()) : py::none();
    const py::object strided = module ? py::getattr(module, "strided", py::none()) : py::none();
    if (!PyType_Check(tensor.ptr()) || strided.is_none()) {
        return nullptr;
    }
    const py::object api = py::getattr(tensor, "__dlpack_c_exchange_api__", py::none());
    if (PyCapsule_IsValid(api.ptr(), "dlpack_exchange_api") != 0) {
        const auto* exchange = static_cast<dlpack::ExchangeApi*>(
            PyCapsule_GetPointer(api.ptr(), "dlpack_exchange_api"));
        found.describe =
            exchange->version.major == 1 ? exchange->tensor_from_py_object_no_sync : nullptr;
        py::object(api).release();  // kept for good, like the rest
    }
    found.no_dispatch = py::object(tensor.attr("__torch_dispatch__")).release().ptr();
    found.strided = py::object(strided).release().ptr();
    found.tensor = reinterpret_cast<PyTypeObject*>(py::object(tensor).release().ptr());
    return &found;
}

// What matters of a torch.dtype, of which there are a few dozen.
struct DtypeTraits {
    PyObject* dtype;
    size_t itemsize;
    bool quantized;
    bool may_be_conj;  // complex: a view may be its lazy conjugate
    bool may_be_neg;   // complex, or the imaginary part of one: a view may be lazily negated
};

const DtypeTraits& traits_of(py::handle tensor) {
    static const Name dtype_name("dtype");
    static std::vector<DtypeTraits> known;
    const py::object dtype = dtype_name.of(tensor);
    for (const DtypeTraits& traits : known) {
        if (traits.dtype == dtype.ptr()) {
            return traits;
        }
    }
    const bool complex = dtype.attr("is_complex").cast<bool>();
    const bool floating = dtype.attr("is_floating_point").cast<bool>();
    known.push_back({dtype.ptr(), dtype.attr("itemsize").cast<size_t>(),
                     tensor.attr("is_quantized").cast<bool>(), complex, complex || floating});
    dtype.inc_ref();  // kept for good
    return known.back();
}

// A subclass that computes in Python what its operations do (FakeTensor, FunctionalTensor, jagged
// tensors) may have no memory, or memory that is not its elements.
bool has_own_dispatch(py::handle tensor) {
    static const Name dispatch("__torch_dispatch__");
    PyTypeObject* type = Py_TYPE(tensor.ptr());
    return type != torch()->tensor &&
           dispatch.of(reinterpret_cast<PyObject*>(type)).ptr() != torch()->no_dispatch;
}

std::byte* address_of(py::handle tensor) {
    static const Name data_ptr("data_ptr");
    const py::object address = data_ptr.call_on(tensor);
    void* pointer = PyLong_AsVoidPtr(address.ptr());
    if (pointer == nullptr && PyErr_Occurred() != nullptr) {
        throw py::error_already_set();
    }
    return static_cast<std::byte*>(pointer);
}

size_t to_size(const py::object& number) {
    const size_t size = PyLong_AsSize_t(number.ptr());
    if (size == static_cast<size_t>(-1) && PyErr_Occurred() != nullptr) {
        throw py::error_already_set();
    }
    return size;
}

std::vector<int64_t> integers(const py::object& tuple, int64_t scale) {
    std::vector<int64_t> values;
    for (py::handle value : py::reinterpret_borrow<py::tuple>(tuple)) {
        values.push_back(value.cast<int64_t>() * scale);
    }
    return values;
}

// Everything but the owner, of a strided tensor in host memory.
BufferView view_elements(py::handle tensor, std::byte* data) {
    static const Name nbytes("nbytes"), is_contiguous("is_contiguous"), shape("shape"),
        stride("stride");
    BufferView view;
    view.data = data;
    view.nbytes = to_size(nbytes.of(tensor));
    view.itemsize = traits_of(tensor).itemsize;
    view.contiguous = is_contiguous.called_true_on(tensor);
    if (!view.contiguous) {
        view.shape = integers(shape.of(tensor), 1);
        view.strides = integers(stride.call_on(tensor), static_cast<int64_t>(view.itemsize));
    }
    measure(view);
    return view;
}

[[noreturn]] void refuse(const std::string& what) { throw py::type_error(what); }

// Inside torch.func transforms, and for functionalized tensors, torch raises RuntimeError.
std::byte* transferable_address(py::handle tensor_or_storage) {
    try {
        return address_of(tensor_or_storage);
    } catch (py::error_already_set& error) {
        if (!error.matches(PyExc_RuntimeError)) {
            throw;
        }
        py::raise_from(error, PyExc_TypeError, "the tensor has no memory of its own to transfer");
        throw py::error_already_set();
    }
}

// A storage can be made smaller under its tensors: resize_(0) frees a parameter until it is needed.
void check_inside(const ByteSpan& span, py::handle storage) {
    static const Name nbytes("nbytes");
    if (span.nbytes == 0) {
        return;
    }
    const std::byte* base = transferable_address(storage);
    const size_t size = to_size(nbytes.call_on(storage));
    if (span.data < base || span.data + span.nbytes > base + size) {
        throw py::value_error("the tensor reaches beyond its storage, which holds " +
                              std::to_string(size) +
                              " bytes: it was resized; resize it back first");
    }
}

// Throws TypeError where the memory of a tensor is not its value.
void refuse_lazy_views(py::handle tensor) {
    static const Name is_conj("is_conj"), is_neg("is_neg");
    const DtypeTraits traits = traits_of(tensor);
    if (traits.may_be_conj && is_conj.called_true_on(tensor)) {
        refuse("the memory of a lazily conjugated tensor is not its value; pass resolve_conj()");
    }
    if (traits.may_be_neg && is_neg.called_true_on(tensor)) {
        refuse("the memory of a lazily negated tensor is not its value; pass resolve_neg()");
    }
}

// Throws TypeError for a tensor that is not one block of strided host memory.
void check_plain(py::handle tensor) {
    static const Name layout("layout"), is_nested("is_nested"), is_cpu("is_cpu"), device("device");
    if (const py::object found = layout.of(tensor); found.ptr() != torch()->strided) {
        refuse("a tensor of layout " + std::string(py::str(found)) +
               " is not one block of memory; pass its parts, or to_dense()");
    }
    if (is_nested.true_of(tensor)) {
        refuse("a nested tensor is not one block of memory; pass its parts: unbind()");
    }
    if (traits_of(tensor).quantized) {
        refuse(
            "the bytes of a quantized tensor leave out its scale; pass int_repr() and keep the "
            "scale");
    }
    if (!is_cpu.true_of(tensor)) {
        refuse("a tensor on device '" + std::string(py::str(device.of(tensor))) +
               "' is not in host memory; pass a CPU tensor");
    }
    refuse_lazy_views(tensor);
}

// The quick way: false where this torch has none, or where the tensor is not what it is for; the
// slow way then says why.
bool describe(py::handle tensor, BufferView& view) {
    const auto describe_tensor = torch()->describe;
    dlpack::Tensor described;
    if (describe_tensor == nullptr) {
        return false;
    }
    if (describe_tensor(tensor.ptr(), &described) != 0) {
        PyErr_Clear();
        return false;
    }
    if (described.device.type != dlpack::kCPU || described.dtype.lanes != 1 ||
        described.dtype.bits % 8 != 0) {
        return false;
    }
    const uint8_t code = described.dtype.code;
    if (code != dlpack::kInt && code != dlpack::kUInt && code != dlpack::kBool) {
        refuse_lazy_views(tensor);
    }
    view.data = static_cast<std::byte*>(described.data) + described.byte_offset;
    view.itemsize = described.dtype.bits / 8;
    size_t elements = 1;
    view.contiguous = true;
    for (int32_t d = described.ndim; d-- > 0;) {
        view.contiguous &= described.shape[d] == 1 || described.strides == nullptr ||
                           described.strides[d] == static_cast<int64_t>(elements);
        elements *= static_cast<size_t>(described.shape[d]);
    }
    view.nbytes = elements * view.itemsize;
    view.contiguous |= elements == 0;
    if (!view.contiguous) {
        view.shape.assign(described.shape, described.shape + described.ndim);
        for (int32_t d = 0; d < described.ndim; ++d) {
            view.strides.push_back(described.strides[d] * static_cast<int64_t>(view.itemsize));
        }
    }
    measure(view);
    return true;
}

}  // namespace

bool is_torch_tensor(py::handle object) {
    const Torch* found = torch();
    return found != nullptr && PyObject_TypeCheck(object.ptr(), found->tensor);
}

py::object resolve_lazy_views(py::handle object) {
    static const Name is_conj("is_conj"), is_neg("is_neg"), resolve_conj("resolve_conj"),
        resolve_neg("resolve_neg");
    if (is_torch_tensor(object) && !has_own_dispatch(object)) {
        const DtypeTraits traits = traits_of(object);
        if ((traits.may_be_conj && is_conj.called_true_on(object)) ||
            (traits.may_be_neg && is_neg.called_true_on(object))) {
            return resolve_neg.call_on(resolve_conj.call_on(object));
        }
    }
    return py::reinterpret_borrow<py::object>(object);
}

void hold_storage(py::handle tensor, BufferView& view) {
    static const Name untyped_storage("untyped_storage");
    view.owner = untyped_storage.call_on(tensor);
    check_inside(view.span, view.owner);
}

BufferView view_torch(py::handle tensor) {
    if (has_own_dispatch(tensor)) {
        refuse(
            std::string(Py_TYPE(tensor.ptr())->tp_name) +
            " has a __torch_dispatch__ of its own, so its elements are not plain memory; pass the "
            "tensors that it wraps");
    }
    BufferView view;
    if (!describe(tensor, view)) {
        check_plain(tensor);
        view = view_elements(tensor, transferable_address(tensor));
    }
    return view;
}

std::optional<ByteSpan> torch_span_if(py::handle tensor, bool (*worth_a_look)(const void*)) {
    static const Name is_cpu("is_cpu"), is_nested("is_nested");
    if (has_own_dispatch(tensor)) {
        return std::nullopt;
    }
    std::byte* data = nullptr;
    try {
        data = address_of(tensor);
    } catch (py::error_already_set& error) {
        if (!error.matches(PyExc_RuntimeError) && !error.matches(PyExc_ValueError)) {
            throw;
        }
        // torch says so of tensors without storage, and of uninitialised parameters.
        return std::nullopt;
    }
    if (!worth_a_look(data) || !is_cpu.true_of(tensor) || is_nested.true_of(tensor)) {
        return std::nullopt;
    }
    return view_elements(tensor, data).span;
}

}  // namespace deepnvme::python
