// Words of memory that others may write to unseen.
#include <cstdint>
#include <cstring>

#include "bindings/bind.h"

namespace rlopt {

namespace {

/// The words at some addresses, as they were when this was made.
class MemoryWords {
 public:
  explicit MemoryWords(std::vector<uint64_t> addresses) : addresses_(std::move(addresses)) {
    for (const uint64_t address : addresses_) words_.push_back(word_at(address));
  }

  bool is_unchanged() const {
    for (size_t i = 0; i < addresses_.size(); ++i)
      if (word_at(addresses_[i]) != words_[i]) return false;
    return true;
  }

 private:
  static uint32_t word_at(uint64_t address) {
    uint32_t word = 0;
    std::memcpy(&word, reinterpret_cast<const void*>(address), sizeof(word));  // NOLINT: it is an address
    return word;
  }

  std::vector<uint64_t> addresses_;
  std::vector<uint32_t> words_;
};

}  // namespace

void bind_memory(py::module_& m) {
  py::class_<MemoryWords>(
      m, "MemoryWords", "The 32-bit words at some addresses, which have to be readable whenever it is used.")
      .def(py::init<std::vector<uint64_t>>(), py::arg("addresses"))
      .def("is_unchanged", &MemoryWords::is_unchanged, "Whether each word is what it was.");
}

}  // namespace rlopt
