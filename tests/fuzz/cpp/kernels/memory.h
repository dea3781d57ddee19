// Memory with a page in front of it and one behind it that nobody may touch: an access beyond an operand ends
// the process there and then, also one by instructions that a sanitizer does not see.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(begin, size) ((void)(begin), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(begin, size) ((void)(begin), (void)(size))
#endif

namespace rlopt::fuzz {

class Memory {
 public:
  /// So many bytes, right behind the first page or right in front of the last one. What is left of their own
  /// pages is closed to AddressSanitizer.
  Memory(size_t size, bool is_first) : size_(size) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t inside = (size + page - 1) / page * page;
    length_ = inside + 2 * page;
    void* const mapped = mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED || mprotect(mapped, page, PROT_NONE) != 0 ||
        mprotect(static_cast<char*>(mapped) + page + inside, page, PROT_NONE) != 0) {
      std::perror("no memory for a case");
      std::exit(3);
    }
    start_ = static_cast<char*>(mapped);
    data_ = start_ + page + (is_first ? 0 : inside - size);
    ASAN_POISON_MEMORY_REGION(start_ + page, inside);
    ASAN_UNPOISON_MEMORY_REGION(data_, size);
  }
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept {
    std::swap(start_, other.start_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(length_, other.length_);
    return *this;
  }
  ~Memory() {
    if (start_ == nullptr) return;
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    ASAN_UNPOISON_MEMORY_REGION(start_ + page, length_ - 2 * page);  // others are given these pages
    munmap(start_, length_);
  }

  char* data() const { return data_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }
  size_t size() const { return size_; }

 private:
  char *start_ = nullptr, *data_ = nullptr;
  size_t size_ = 0, length_ = 0;
};

}  // namespace rlopt::fuzz
