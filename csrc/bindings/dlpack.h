// Reads tensors in place through DLPack's C exchange interface, which PyTorch offers since 2.10.
//
// The declarations are the part of DLPack 1.3 (https://github.com/dmlc/dlpack, include/dlpack/dlpack.h) that
// reading needs; their layout is stable within a major version. Nothing is compiled or linked against torch.
#pragma once

#include <cstdint>
#include <optional>

#include "bindings/bind.h"

namespace rlopt::dlpack {

inline constexpr uint32_t kMajor = 1;
inline constexpr int32_t kCpu = 1;
inline constexpr uint8_t kFloat = 2, kBfloat = 4;  // codes of `Type`

struct Device {
  int32_t type;
  int32_t index;

  bool operator==(const Device&) const = default;
};

struct Type {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;

  bool operator==(const Type&) const = default;
};

/// Borrowed: valid while the tensor is alive and keeps its memory.
struct Tensor {
  void* data;
  Device device;
  int32_t rank;
  Type type;
  int64_t* sizes;
  int64_t* strides;  // in elements
  uint64_t byte_offset;

  char* first() const { return static_cast<char*>(data) + byte_offset; }
};

struct Exchange {
  uint32_t major;
  uint32_t minor;
  Exchange* previous;  // of an older major version
  void* allocate;
  void* to_managed;
  void* from_managed;
  int (*read)(void* object, Tensor* out);  // 0, or -1 with a Python exception; may be null
  void* current_stream;
};

/// Reads objects of torch.Tensor and its subclasses.
class Reader {
 public:
  /// ValueError if this PyTorch does not offer the interface.
  Reader() {
    const py::object type = py::module_::import("torch").attr("Tensor");
    type_ = reinterpret_cast<PyTypeObject*>(type.ptr());  // NOLINT: torch lives as long as the process
    const py::object capsule = py::getattr(type, "__dlpack_c_exchange_api__", py::none());
    if (!capsule.is_none()) {
      const auto* found =
          static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
      if (found == nullptr) throw py::error_already_set();
      while (found != nullptr && found->major != kMajor) found = found->previous;
      if (found != nullptr) read_ = found->read;
    }
    if (read_ == nullptr) throw py::value_error("this PyTorch does not show its tensors by DLPack 1");
  }

  /// The class torch.Tensor itself.
  const PyTypeObject* type() const { return type_; }

  /// Nothing for objects that are not tensors, and for tensors without plain memory, such as sparse ones.
  std::optional<Tensor> read(PyObject* object) const {
    if (!PyObject_TypeCheck(object, type_)) return std::nullopt;
    Tensor found{};
    if (read_(object, &found) != 0) {
      PyErr_Clear();
      return std::nullopt;
    }
    if (found.rank > 0 && (found.sizes == nullptr || found.strides == nullptr)) return std::nullopt;
    return found;
  }

 private:
  PyTypeObject* type_;
  int (*read_)(void*, Tensor*) = nullptr;
};

}  // namespace rlopt::dlpack
