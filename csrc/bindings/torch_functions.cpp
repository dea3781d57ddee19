#include "bindings/torch_functions.h"

#include <dlfcn.h>

namespace rlopt {

namespace {

template <class Function>
void find(void* library, const char* name, Function*& function) {
  void* symbol = library == nullptr ? nullptr : dlsym(library, name);
  std::memcpy(&function, &symbol, sizeof(symbol));
}

}  // namespace

const TorchFunctions& TorchFunctions::loaded() {
  static const TorchFunctions functions = [] {
    TorchFunctions found;
    void* torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    void* c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
    void* python = dlopen("libtorch_python.so", RTLD_LAZY | RTLD_NOLOAD);
    find(torch, "_ZNK2at10TensorBase8_versionEv", found.version);
    find(torch, "aoti_torch_get_data_ptr", found.data_ptr);
    find(torch, "aoti_torch_get_dtype", found.dtype);
    find(torch, "aoti_torch_get_dim", found.dim);
    find(torch, "aoti_torch_get_sizes", found.sizes);
    find(torch, "aoti_torch_get_strides", found.strides);
    find(c10, "_ZNK3c1010TensorImpl13requires_gradEv", found.requires_grad);
    find(torch, "aoti_torch_empty_strided", found.empty);
    find(torch, "aoti_torch_delete_tensor_object", found.forget);
    find(torch, "aoti_torch_dtype_float32", found.float32);
    find(torch, "aoti_torch_dtype_bfloat16", found.bfloat16);
    find(torch, "_ZN2at15get_num_threadsEv", found.num_threads);
    find(torch, "_ZN2at18in_parallel_regionEv", found.is_in_parallel);
    find(python, "_Z16THPVariable_WrapRKN2at10TensorBaseE", found.wrap);
    return found;
  }();
  return functions;
}

const uint64_t* local_dispatch_keys() {
  static void* const c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  // The symbol is of a variable that each thread has of its own.
  thread_local const void* const keys =
      c10 == nullptr ? nullptr : dlsym(c10, "_ZN3c104impl26raw_local_dispatch_key_setE");
  return static_cast<const uint64_t*>(keys);
}

size_t tensor_offset(const PyObject* object, uintptr_t implementation) {
  const auto size = static_cast<size_t>(Py_TYPE(object)->tp_basicsize);
  for (size_t offset = sizeof(PyObject); offset + sizeof(uintptr_t) <= size; offset += sizeof(uintptr_t))
    if (word_at(object, offset) == implementation) return offset;
  throw py::value_error("this PyTorch keeps its tensors elsewhere");
}

TensorFacts::TensorFacts(PyObject* object, uintptr_t implementation)
    : object_(object),
      type_(Py_TYPE(object)),
      offset_(tensor_offset(object, implementation)),
      implementation_(implementation),
      memory_(object, implementation) {
  const TorchFunctions& torch = TorchFunctions::loaded();
  const void* tensor = tensor_at(object_, offset_);
  int64_t dim = -1;
  const char* sizes = nullptr;
  const char* strides = nullptr;
  const bool is_read = torch.has_facts() && torch.dim(tensor, &dim) == 0 &&
                       torch.sizes(tensor, static_cast<void*>(&sizes)) == 0 &&
                       torch.strides(tensor, static_cast<void*>(&strides)) == 0;
  // The number of dimensions, sizes and strides follow on each other.
  if (!is_read || dim < 0 || dim > static_cast<int64_t>(kInline) ||
      strides != sizes + kInline * sizeof(int64_t) ||
      word_at(sizes - sizeof(int64_t), 0) != static_cast<uintptr_t>(dim))
    throw py::value_error("this PyTorch cannot be read from C++");
  place_ = sizes - sizeof(int64_t);
  std::memcpy(words_.data(), place_, sizeof(words_));
  requires_grad_ = requires_grad();
}

}  // namespace rlopt
