// A memory arena for values with different lifetimes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

namespace rlopt::kernels {

/// Blocks of the arena start on cache lines; size of a line in floats.
constexpr int64_t kLineOfArena = 16;

/// Allocates blocks of the arena: first fit, lowest free offset.
class Arena {
 public:
  int64_t take(int64_t size) {
    // An empty block takes a line too, so that no two blocks start at the same offset.
    size = (std::max<int64_t>(size, 1) + kLineOfArena - 1) / kLineOfArena * kLineOfArena;
    int64_t at = kLineOfArena;
    for (const auto& [begin, end] : taken_) {
      if (begin - at >= size) break;
      at = end;
    }
    taken_[at] = at + size;
    most_ = std::max(most_, at + size);
    return at;
  }
  void give_back(int64_t at) { taken_.erase(at); }
  int64_t most() const { return most_ + kLineOfArena; }

 private:
  std::map<int64_t, int64_t> taken_;  // from begin to end of each block
  int64_t most_ = 0;
};

}  // namespace rlopt::kernels
