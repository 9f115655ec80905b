// The DLPack interface for exchanging tensors: its C structs, as the specification lays them out.
// https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once

#include <cstdint>

namespace deepnvme::python::dlpack {

enum DeviceType : int32_t { kCPU = 1, kCUDAHost = 3, kROCMHost = 11 };
enum TypeCode : uint8_t { kInt = 0, kUInt = 1, kBool = 6 };

struct Device {
    int32_t type;
    int32_t id;
};

struct DataType {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
};

struct Tensor {
    void* data;
    Device device;
    int32_t ndim;
    DataType dtype;
    int64_t* shape;
    int64_t* strides;  // elements; null when row-major and without gaps
    uint64_t byte_offset;
};

struct ManagedTensor {  // in a capsule named "dltensor"
    Tensor tensor;
    void* manager_context;
    void (*deleter)(ManagedTensor*);
};

struct Version {
    uint32_t major;
    uint32_t minor;
};

constexpr uint64_t flag_read_only = 1;
constexpr uint64_t flag_copied = 2;

struct VersionedTensor {  // in a capsule named "dltensor_versioned"
    Version version;
    void* manager_context;
    void (*deleter)(VersionedTensor*);
    uint64_t flags;
    Tensor tensor;
};

// What a tensor type offers in a capsule named "dlpack_exchange_api" (DLPack 1.2 and later).
struct ExchangeApi {
    Version version;
    ExchangeApi* previous;
    void* managed_tensor_allocator;
    void* managed_tensor_from_py_object_no_sync;
    void* managed_tensor_to_py_object_no_sync;
    int (*tensor_from_py_object_no_sync)(void* object, Tensor* out);  // borrowed; may be null
    void* current_work_stream;
};

}  // namespace deepnvme::python::dlpack
