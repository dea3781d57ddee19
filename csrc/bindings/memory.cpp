// Detects changes to words of memory that others may write to without notice.
#include <cstring>

#include "bindings/bind.h"

namespace rlopt {

namespace {

/// The words at some addresses, as they were at construction.
class MemoryWords {
 public:
  explicit MemoryWords(const std::vector<uint64_t>& addresses) {
    for (const uint64_t address : addresses) words_.push_back({address, word_at(address)});
  }

  /// The addresses have to be readable.
  bool is_unchanged() const {
    uint32_t difference = 0;  // one branch in all: nearly always all words are equal
    for (const Word& word : words_) difference |= word_at(word.address) ^ word.value;
    return difference == 0;
  }

 private:
  struct Word {
    uint64_t address;
    uint32_t value;
  };

  static uint32_t word_at(uint64_t address) {
    uint32_t word = 0;
    std::memcpy(&word, reinterpret_cast<const void*>(address), sizeof(word));  // NOLINT: it is an address
    return word;
  }

  std::vector<Word> words_;
};

}  // namespace

void bind_memory(py::module_& m) {
  py::class_<MemoryWords>(
      m, "MemoryWords", "The 32-bit words at some addresses, which have to be readable whenever it is used.")
      .def(py::init<const std::vector<uint64_t>&>(), py::arg("addresses"))
      .def("is_unchanged", &MemoryWords::is_unchanged, "Whether each word is what it was.");
}

}  // namespace rlopt
