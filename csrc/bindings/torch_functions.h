// What is read of tensors through functions that the loaded libtorch exports.
//
// Nothing is compiled or linked against torch. Where a function is missing nothing is read, and whoever reads
// makes sure that the numbers are those that Python tells, or that changes are seen.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "bindings/bind.h"

namespace rlopt {

/// Each takes the address of an at::Tensor, which is one pointer to its implementation.
struct TorchFunctions {
  using Read = int32_t(const void*, void*);  // of the stable C interface, aoti_torch_get_...; 0 is success

  int64_t (*version)(const void*) = nullptr;  // at::TensorBase::_version() const, since PyTorch 1.6
  Read* data_ptr = nullptr;
  Read* dtype = nullptr;  // an int32_t
  Read* dim = nullptr;
  Read* sizes = nullptr;
  Read* strides = nullptr;
  bool (*requires_grad)(const void*) =
      nullptr;  // c10::TensorImpl::requires_grad() const: of the implementation
  // Number of dimensions, sizes, strides, type, kind and index of the device; a new at::Tensor on the heap.
  int32_t (*empty)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, void**) = nullptr;
  int32_t (*forget)(void*) = nullptr;        // deletes it
  PyObject* (*wrap)(const void*) = nullptr;  // THPVariable_Wrap(const at::TensorBase&)
  int32_t (*float32)() = nullptr;
  int32_t (*bfloat16)() = nullptr;
  int (*num_threads)() = nullptr;      // at::get_num_threads()
  bool (*is_in_parallel)() = nullptr;  // at::in_parallel_region()

  static const TorchFunctions& loaded();
  bool has_layout() const { return dim != nullptr && sizes != nullptr && strides != nullptr; }
  bool has_state() const { return version != nullptr && data_ptr != nullptr && has_layout(); }
  bool has_facts() const { return has_layout() && requires_grad != nullptr; }
  bool has_new() const {
    return data_ptr != nullptr && has_layout() && empty != nullptr && forget != nullptr && wrap != nullptr &&
           dtype != nullptr && float32 != nullptr && bfloat16 != nullptr && num_threads != nullptr &&
           is_in_parallel != nullptr;
  }
};

/// What of this thread decides which kernels run: the words of c10's local set of dispatch keys; null where
/// this PyTorch does not show them.
const uint64_t* local_dispatch_keys();

/// The machine word in an object; `offset` lies inside of it.
inline uintptr_t word_at(const void* object, size_t offset) {
  uintptr_t word = 0;
  std::memcpy(&word, static_cast<const char*>(object) + offset, sizeof(word));
  return word;
}

/// The tensor in its Python object.
inline const void* tensor_at(const PyObject* object, size_t offset) {
  return reinterpret_cast<const char*>(object) + offset;  // NOLINT: memory of it
}

/// Where in its Python object a tensor lies, which differs between versions of torch; ValueError where it is
/// not found.
size_t tensor_offset(const PyObject* object, uintptr_t implementation);

/// Where a tensor lies in memory, as hints: the lines that come in ahead of a look at it.
class TensorMemory {
 public:
  TensorMemory(const PyObject* object, uintptr_t implementation)
      : object_(object),
        implementation_(reinterpret_cast<const char*>(implementation)) {  // NOLINT: it is one
    // Among its first words are the pointers to its storage, its version and what autograd knows.
    for (size_t i = 0; i < kPointers; ++i)
      pointers_[i] = word_at(implementation_, (2 + i) * sizeof(uintptr_t));
  }

  void prefetch() const {
    __builtin_prefetch(object_);
    for (size_t line = 0; line < kLines; ++line) __builtin_prefetch(implementation_ + line * kLine);
    // What is no address is none of anything: the processor passes it over.
    for (const uintptr_t word : pointers_) __builtin_prefetch(reinterpret_cast<const void*>(word));  // NOLINT
  }

 private:
  static constexpr size_t kLine = 64, kLines = 3, kPointers = 4;

  const PyObject* object_;
  const char* implementation_;
  std::array<uintptr_t, kPointers> pointers_{};
};

/// All of a tensor that compiled code hangs on but its numbers. Keeps nothing alive.
///
/// Sizes and strides of up to five dimensions lie inside of the implementation, and behind them, to its end,
/// the offset, the number of elements, the type, the device, and the set of dispatch keys, which has layout
/// and negation in it. These bytes are compared. That they are the right ones is not known here: whoever uses
/// this tries once whether changes are seen.
class TensorFacts {
 public:
  /// ValueError where they cannot be read.
  TensorFacts(PyObject* object, uintptr_t implementation);

  void prefetch() const { memory_.prefetch(); }

  /// Whether the object, which is alive, is what it was.
  bool hold() const {
    // Of another implementation nothing is looked into: the one that there was may be gone.
    return Py_TYPE(object_) == type_ && word_at(object_, offset_) == implementation_ && has_same_words() &&
           requires_grad() == requires_grad_;
  }

 private:
  static constexpr size_t kInline = 5;  // dimensions
  static constexpr size_t kWords = 1 + 2 * kInline + 2 + 2;
  using Words = std::array<uint64_t, kWords>;

  /// Without a branch or call for each: next to all are equal.
  bool has_same_words() const {
    Words words;
    std::memcpy(words.data(), place_, sizeof(words));
    uint64_t difference = 0;
    for (size_t i = 0; i < kWords; ++i) difference |= words[i] ^ words_[i];
    return difference == 0;
  }

  bool requires_grad() const {
    return TorchFunctions::loaded().requires_grad(
        reinterpret_cast<const void*>(implementation_));  // NOLINT: it is one
  }

  PyObject* object_;
  PyTypeObject* type_;
  size_t offset_;
  uintptr_t implementation_;
  TensorMemory memory_;
  const char* place_ = nullptr;  // in the implementation
  Words words_{};
  bool requires_grad_ = false;
};

}  // namespace rlopt
